"""Runs handlers one after the other in a worker's task, each in its own context.

A worker has a *driver*: a generator that awaits the handler of each record sent to it, and yields how the handler
ended. The worker makes the first step itself, with ``context.run(driver.send, record)``. A handler that never suspends
has ended after that one call. If it suspends, the driver yields a future: the worker yields it to its own task, and
sends or throws the task's answer back into the driver, in the same context. :func:`resume` does the same as a
coroutine.

This takes half the time of ``send`` on the handler's own coroutine, which ends by raising StopIteration.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextvars import Context
from typing import Any, Final

from aioparallel.records.history import refuse_undecodable
from aioparallel.records.record import Record

__all__ = ["ENDED", "Driver", "Ended", "drive", "resume"]

ENDED: Final = object()
"""The handler has returned None, and the record needs nothing else."""


def _at_once() -> Iterable[None]:
    return ()


class Ended:
    """A handler has returned ``value``, or raised ``error``.

    ``is_plain``: only ``value`` must be sent. A driver reuses one object for all plain ends, so it is valid until the
    next record is sent to the driver.
    """

    __slots__ = ("error", "is_plain", "value")

    def __init__(self, value: object, error: BaseException | None = None, *, is_plain: bool = False) -> None:
        self.value = value
        self.error = error
        self.is_plain = is_plain


Driver = Generator[object, Any, None]


@types.coroutine
def drive(handler: Callable[[Record[Any, Any]], Coroutine[Any, Any, object]], cancelling: Callable[[], int]) -> Driver:
    """Await the handler of each record that is sent. Yields :data:`ENDED` if the record needs nothing else, or an
    :class:`Ended`. Start it with ``send(None)``.

    ``cancelling``: the method of the task in which it runs. An end is not plain while a cancellation is requested but
    not delivered.
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
    """Await the rest of a handler whose first step in ``context`` has yielded ``yielded``. Returns how it ended.
    ``breathe()``: what to yield to the loop before the handler resumes."""
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
        # Outside of the except block: inside, this error would become the __context__ of every error that the handler
        # raises later, even after it has handled this one.
        yielded = context.run(driver.throw, thrown)
        del thrown
    return yielded
