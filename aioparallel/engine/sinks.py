"""The interface to the code that sends outputs and dead letters, implemented by ``delivery/`` and
``persistence/transactions/``.

A record that a sink has taken is *producing*. The sink reports the result once, later.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from aioparallel.records.errors import InvalidOutput
from aioparallel.records.record import Record

__all__ = ["Abandoned", "DeadLetterSink", "DeliveryListener", "Done", "NoOutputs", "Offered", "OutputSink", "Unfit"]

Done = Callable[[Record[Any, Any], Exception | None], None]
"""``done(record, None)`` means that it is stored; an :class:`Unfit` error in place of None is not final."""


class Offered(enum.Enum):
    """How a sink answers a value that is offered to it."""

    LEAVING = "leaving"
    """It is being sent. The record is producing until the listener is called."""
    LEFT = "left"
    """Nothing more needs to be sent: the record is complete."""


class DeliveryListener(Protocol):
    """Receives one result for each record that a sink has taken, later or within :meth:`OutputSink.deliver`."""

    def delivered(self, records: Sequence[Record[Any, Any]]) -> None:
        """All outputs of these records are acknowledged. The records of a whole batch come together."""

    def undelivered(self, record: Record[Any, Any], error: Exception) -> None:
        """An output of this record was not written, or it is unknown whether it was."""


class Abandoned(Exception):
    """Reported as the error of a record that has not failed: nothing was sent, and the record runs again."""


class Unfit(Exception):
    """Reported as the error if the retry topic does not accept the record. The record then ends as after the last retry
    topic. ``failure``: why the record failed."""

    def __init__(self, failure: Exception) -> None:
        super().__init__(str(failure))
        self.failure = failure


class OutputSink(Protocol):
    """Takes the values that handlers return, unless they are None."""

    is_exact: bool
    """Whether outputs are written exactly once: the sink must get none for a record that runs again. Then
    :meth:`deliver` reports what it refuses before it returns."""

    def offer(self, record: Record[Any, Any], value: object, listener: DeliveryListener) -> Offered | None:
        """Send a plain value at once if there is capacity. None: nothing was done; call :meth:`collect`, :meth:`room`
        and :meth:`deliver` instead."""
        return None

    def collect(self, record: Record[Any, Any], value: object) -> object | None:
        """Return the outputs in the value that a handler returned; None if there are none.

        Raises InvalidOutput, which fails the record.
        """

    def room(self) -> Awaitable[None] | None:
        """Return None if there is capacity for more, else what to await before asking again."""
        return None

    def deliver(
        self,
        record: Record[Any, Any],
        collected: object,
        listener: DeliveryListener,
        together: Sequence[Record[Any, Any]] = (),
    ) -> None:
        """Send outputs, even without capacity. ``together``: the records that they come from, if there are several."""


class DeadLetterSink(Protocol):
    """Takes records that failed for good, and those that go to a retry topic."""

    def room(self) -> Awaitable[None] | None:
        """Return None if there is capacity for more, else what to await before asking again."""
        return None

    def dispose(self, record: Record[Any, Any], error: Exception, retry_topic: str | None, done: Done) -> None:
        """Write the record to the retry or dead-letter topic. Tries until it succeeds or the source is dropped.

        ``done`` is called later, or within this call.
        """


class NoOutputs(OutputSink, DeadLetterSink):
    """The sink of an engine that produces nothing: handlers return None, and there are no dead letters."""

    is_exact = False

    def collect(self, record: Record[Any, Any], value: object) -> object | None:
        """Accept only None."""
        if value is None:
            return None
        raise InvalidOutput(f"the handler returned {type(value).__name__}, and nothing can be produced here")

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
        """Never called: the options have no dead letters."""
        raise NotImplementedError
