"""Running one handler after the other inside contexts of their own, within a worker's task.

A worker has a *driver*: a generator that awaits the handler of each record sent to it, and yields how it ended. The
worker makes each step itself, ``context.run(driver.send, record)``: a handler that never suspends has ended after that
one call. What one that does suspend yields (futures) the worker passes on to its task, and sends or throws what the
task gives back, each time inside the same context; see ``workers.py``, and :func:`resume` for the same as a coroutine.

Half the time of a coroutine's own ``send``, which tells its end by raising StopIteration.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextvars import Context
from typing import Any, Final

from aioparallel.history import refuse_undecodable
from aioparallel.records import Record

__all__ = ["ENDED", "Driver", "Ended", "drive", "resume"]

ENDED: Final = object()
"""The handler has returned None, and nothing else is to be done about the record."""


def _at_once() -> Iterable[None]:
    return ()


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
def drive(handler: Callable[[Record[Any, Any]], Coroutine[Any, Any, object]], cancelling: Callable[[], int]) -> Driver:
    """Await the handler of each record that is sent; yield :data:`ENDED` when there is nothing more to do about it,
    or an :class:`Ended`. To be started with ``send(None)``.

    ``cancelling``: of the task it runs in. A cancellation that was requested and not delivered is something to do.
    """
    record: Record[Any, Any] = yield None
    plain = Ended(None, is_plain=True)
    while True:
        try:
            if record._history is not None:
                refuse_undecodable(record)
            value: object = yield from handler(record)  # type: ignore[func-returns-value]
        except GeneratorExit as error:  # the worker's end, or the handler has raised it
            error.add_note(f"raised by the handler for {record.place}")
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
def resume(
    driver: Driver, context: Context, yielded: object, breathe: Callable[[], Iterable[None]] = _at_once
) -> Generator[Any, Any, object]:
    """Await the rest of the handler whose first step in ``context`` has yielded ``yielded``; how it ended.
    ``breathe()``: what is yielded before it goes on."""
    while yielded is not ENDED and type(yielded) is not Ended:
        try:
            sent = yield yielded
            yield from breathe()
        except GeneratorExit:
            context.run(driver.close)
            raise
        except BaseException as error:
            thrown = error
        else:
            yielded = context.run(driver.send, sent)
            continue
        # Not above: it would be the context of whatever the handler raises later, long after it has come over it.
        yielded = context.run(driver.throw, thrown)
        del thrown
    return yielded
