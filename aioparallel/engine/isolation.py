"""Running one handler after the other inside contexts of their own, within a worker's task.

A worker has a *driver*: a generator that awaits the handler of each record sent to it, and yields how it ended. The
worker makes each step itself, ``context.run(driver.send, record)``: a handler that never suspends has ended after that
one call. One that does suspend goes on through :func:`resume`, which passes what it yields (futures) up to the
worker's task, and what the task sends or throws back down, each time inside the same context.

Half the time of a coroutine's own ``send``, which tells its end by raising StopIteration.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any

from aioparallel.engine.scheduler import ENDED, AnyRecord

__all__ = ["Driver", "Ended", "drive", "resume"]


class Ended:
    """A handler has returned ``value``, or raised ``error``."""

    __slots__ = ("error", "value")

    def __init__(self, value: object, error: BaseException | None = None) -> None:
        self.value = value
        self.error = error


Driver = Generator[object, Any, None]


@types.coroutine
def drive(handler: Callable[[AnyRecord], Coroutine[Any, Any, object]], cancelling: Callable[[], int]) -> Driver:
    """Await the handler of each record that is sent; yield :data:`ENDED` when there is nothing more to do about it,
    or an :class:`Ended`. To be started with ``send(None)``.

    ``cancelling``: of the task it runs in. A cancellation that was requested and not delivered is something to do.
    """
    record: AnyRecord = yield None
    while True:
        try:
            value: object = yield from handler(record)  # type: ignore[func-returns-value]
        except GeneratorExit:
            raise
        except BaseException as error:
            outcome: object = Ended(None, error)
        else:
            plain = value is None and record._history is None and not cancelling()
            outcome = ENDED if plain else Ended(value)
        record = yield outcome


@types.coroutine
def resume(driver: Driver, context: Context, yielded: object) -> Generator[Any, Any, object]:
    """Await the rest of the handler whose first step in ``context`` has yielded ``yielded``; how it ended."""
    # Nothing is bound ahead: most handlers suspend once, and what this frame holds lives as long as the handler.
    while True:
        try:
            sent = yield yielded
        except GeneratorExit:
            context.run(driver.close)
            raise
        except BaseException as error:
            yielded = context.run(driver.throw, error)
        else:
            yielded = context.run(driver.send, sent)
        if yielded is ENDED or type(yielded) is Ended:
            return yielded
