"""What the engine needs of the code that sends outputs and dead letters; ``delivery/`` and ``transactions/`` have it.

A sink takes a record, which is *producing* from then on, and reports the result once, later.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from aioparallel.errors import InvalidOutput
from aioparallel.records import Record

__all__ = ["Abandoned", "DeadLetterSink", "DeliveryListener", "Done", "NoOutputs", "Offered", "OutputSink", "Unfit"]

Done = Callable[[Record[Any, Any], Exception | None], None]
"""``done(record, None)`` when it is stored, or ``done(record, error)``. An :class:`Unfit` error is not final."""


class Offered(enum.Enum):
    """How a sink answers a value that is offered to it."""

    LEAVING = "leaving"
    """It is being sent: the record is producing until the listener is called."""
    LEFT = "left"
    """Nothing more is to come: the record is complete."""


class DeliveryListener(Protocol):
    """Receives the results of what a sink has taken: once for each record, later, or within the call of
    :meth:`OutputSink.deliver`."""

    def delivered(self, records: Sequence[Record[Any, Any]]) -> None:
        """All outputs of these records are acknowledged. The records of a whole batch come together."""

    def undelivered(self, record: Record[Any, Any], error: Exception) -> None:
        """An output of this record was not sent, or it is not known whether it was."""


class Abandoned(Exception):
    """Reported as the error: nothing was sent, and that is no failure of the record. It runs again."""


class Unfit(Exception):
    """Reported as the error: the retry topic does not take the record, so what follows retry topics is next.
    ``failure``: why the record failed."""

    def __init__(self, failure: Exception) -> None:
        super().__init__(str(failure))
        self.failure = failure


class OutputSink(Protocol):
    """Takes the values that handlers return, unless they are None."""

    is_exact: bool
    """Whether it may not take outputs of a record twice: it must have none of a record that runs again. Then
    :meth:`deliver` reports what it does not take before it returns."""

    def offer(self, record: Record[Any, Any], value: object, listener: DeliveryListener) -> Offered | None:
        """Send it at once, in the plain case and if there is room. None: nothing was done; call :meth:`collect`,
        :meth:`room` and :meth:`deliver` one by one."""

    def collect(self, record: Record[Any, Any], value: object) -> object | None:
        """Return the outputs in the value of a handler; None if there are none.

        Raises InvalidOutput, which fails the record.
        """

    def room(self) -> Awaitable[None] | None:
        """Return None if there is room for more, else what to await before asking again."""

    def deliver(
        self,
        record: Record[Any, Any],
        collected: object,
        listener: DeliveryListener,
        together: Sequence[Record[Any, Any]] = (),
    ) -> None:
        """Send it, room or not. ``together``: all records that it is made of, if that is not this one alone."""


class DeadLetterSink(Protocol):
    """Takes records that failed for good, and those that go to a retry topic."""

    def room(self) -> Awaitable[None] | None:
        """Return None if there is room for more, else what to await before asking again."""

    def dispose(self, record: Record[Any, Any], error: Exception, retry_topic: str | None, done: Done) -> None:
        """Write the record to the retry or dead-letter topic. This is tried until it works or the session is gone.

        ``done`` is called later, or within this call.
        """


class NoOutputs:
    """For engines that produce nothing: handlers return None, and there are no dead letters."""

    is_exact = False

    def offer(self, record: Record[Any, Any], value: object, listener: DeliveryListener) -> Offered | None:
        """Take nothing."""
        return None

    def collect(self, record: Record[Any, Any], value: object) -> object | None:
        """Accept None alone."""
        if value is None:
            return None
        raise InvalidOutput(f"the handler returned {type(value).__name__}, and nothing can be produced here")

    def room(self) -> Awaitable[None] | None:
        """There is always room."""
        return None

    def deliver(
        self,
        record: Record[Any, Any],
        collected: object,
        listener: DeliveryListener,
        together: Sequence[Record[Any, Any]] = (),
    ) -> None:
        """Never called: nothing is collected."""
        raise NotImplementedError

    def dispose(self, record: Record[Any, Any], error: Exception, retry_topic: str | None, done: Done) -> None:
        """Never called where the options have no dead letters."""
        raise NotImplementedError
