"""Where records go that leave the handlers, as the engine sees it: rooms above it implement these.

Both kinds take a record that is *producing* and say later, once, how it went.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from aioparallel.errors import InvalidOutput
from aioparallel.records import Record

__all__ = ["Abandoned", "Disposal", "Done", "NoOutlet", "Offered", "Outlet", "Receipts", "Unfit"]

Done = Callable[[Record[Any, Any], Exception | None], None]
"""``done(record, None)`` when it is put away, or ``done(record, error)``; :class:`Unfit` is an error that is no end."""


class Offered(enum.Enum):
    """What became of a value that was offered to an outlet."""

    LEAVING = "leaving"
    """It is on its way: the record is producing until its receipt comes."""
    LEFT = "left"
    """Nothing more is waited for: the record is complete."""


class Receipts(Protocol):
    """Hears how it went with what an outlet has taken; of each record once, later, or within the call of
    :meth:`Outlet.deliver` that gave it away."""

    def delivered(self, records: Sequence[Record[Any, Any]]) -> None:
        """What was to leave of these is acknowledged, all of it. Those of a whole batch come together."""

    def undelivered(self, record: Record[Any, Any], error: Exception) -> None:
        """Not all of it left, or it is not known."""


class Abandoned(Exception):
    """As the error that is told: nothing left, and that is nobody's failure. The record runs again."""


class Unfit(Exception):
    """As the error that is told: the retry topic does not take the record, so what follows these is its turn.
    ``failure``: why the record has failed."""

    def __init__(self, failure: Exception) -> None:
        super().__init__(str(failure))
        self.failure = failure


class Outlet(Protocol):
    """Takes what handlers return, unless it is None."""

    is_exact: bool
    """Whether nothing that was taken may be taken again: of a record that runs once more it must have nothing. Then
    what is not taken is told within :meth:`deliver`."""

    def offer(self, record: Record[Any, Any], value: object, receipts: Receipts) -> Offered | None:
        """Let it leave at once, in the plain case and with room. None: ask :meth:`collect`, :meth:`room` and
        :meth:`deliver` one by one; nothing was done."""

    def collect(self, record: Record[Any, Any], value: object) -> object | None:
        """What is to leave of the value a handler returned; None when nothing is.

        Raises InvalidOutput, which fails the record.
        """

    def room(self) -> Awaitable[None] | None:
        """None when there is room for more, else what to await before asking again."""

    def deliver(
        self,
        record: Record[Any, Any],
        collected: object,
        receipts: Receipts,
        together: Sequence[Record[Any, Any]] = (),
    ) -> None:
        """Let it leave, room or not. ``together``: all records that it is made of, where that is not this one alone."""


class Disposal(Protocol):
    """Takes records whose patience has ended."""

    def room(self) -> Awaitable[None] | None:
        """None when there is room for more, else what to await before asking again."""

    def dispose(self, record: Record[Any, Any], error: Exception, retry_topic: str | None, done: Done) -> None:
        """Put the record into the retry topic, or where dead letters go; tried until it works or its session is gone.

        ``done`` is called later, or within this call.
        """


class NoOutlet:
    """For engines that produce nothing: a handler may return None only, and patience never ends in a dead letter."""

    is_exact = False

    def offer(self, record: Record[Any, Any], value: object, receipts: Receipts) -> Offered | None:
        """Nothing is plain here."""
        return None

    def collect(self, record: Record[Any, Any], value: object) -> object | None:
        """Nothing can leave here."""
        if value is None:
            return None
        raise InvalidOutput(f"the handler returned {type(value).__name__}, and nothing can be produced here")

    def room(self) -> Awaitable[None] | None:
        """Always."""
        return None

    def deliver(
        self,
        record: Record[Any, Any],
        collected: object,
        receipts: Receipts,
        together: Sequence[Record[Any, Any]] = (),
    ) -> None:
        """Never called: nothing is ever collected."""
        raise NotImplementedError

    def dispose(self, record: Record[Any, Any], error: Exception, retry_topic: str | None, done: Done) -> None:
        """Never called where the options have no dead letters."""
        raise NotImplementedError
