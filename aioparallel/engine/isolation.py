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
    """A handler has returned ``value``, or raised ``error``.

    ``is_plain``: all there is to do is to let ``value`` leave. A driver has one of these for all its records: it is
    valid until the next one is sent to it.
    """

    __slots__ = ("error", "is_plain", "value")

    def __init__(self, value: object, error: BaseException | None = None, *, is_plain: bool = False) -> None:
        self.value = value
        self.error = error
        self.is_plain = is_plain


Driver = Generator[object, Any, None]


@types.coroutine
def drive(handler: Callable[[AnyRecord], Coroutine[Any, Any, object]], cancelling: Callable[[], int]) -> Driver:
    """Await the handler of each record that is sent; yield :data:`ENDED` when there is nothing more to do about it,
    or an :class:`Ended`. To be started with ``send(None)``.

    ``cancelling``: of the task it runs in. A cancellation that was requested and not delivered is something to do.
    """
    record: AnyRecord = yield None
    plain = Ended(None, is_plain=True)
    while True:
        try:
            value: object = yield from handler(record)  # type: ignore[func-returns-value]
        except GeneratorExit:
            raise
        except BaseException as error:
            outcome: object = Ended(None, error)
        else:
            if record._history is not None or cancelling():
                outcome = Ended(value)
            elif value is None:
                outcome = ENDED
            else:
                plain.value = value
                outcome = plain
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
