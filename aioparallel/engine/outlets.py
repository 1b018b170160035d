"""Where records go that leave the handlers, as the engine sees it: rooms above it implement these.

Both kinds take a record that is *producing* and say later, once, how it went: ``done(record, None)`` when what was to
leave is acknowledged, or ``done(record, error)``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from aioparallel.errors import InvalidOutput
from aioparallel.records import Record

__all__ = ["Abandoned", "Disposal", "Done", "NoOutlet", "Outlet"]

Done = Callable[[Record[Any, Any], Exception | None], None]


class Abandoned(Exception):
    """As the argument of ``done``: nothing left, and that is nobody's failure. The record runs again."""


class Outlet(Protocol):
    """Takes what handlers return, unless it is None."""

    def offer(self, record: Record[Any, Any], value: object, done: Done) -> bool:
        """Let it leave at once, in the plain case and with room. False: ask :meth:`collect`, :meth:`room` and
        :meth:`deliver` one by one; nothing was done. ``done`` is called later, never within this call."""

    def collect(self, record: Record[Any, Any], value: object) -> object | None:
        """What is to leave of the value a handler returned; None when nothing is.

        Raises InvalidOutput, which fails the record.
        """

    def room(self) -> Awaitable[None] | None:
        """None when there is room for more, else what to await before asking again."""

    def deliver(self, record: Record[Any, Any], collected: object, done: Done) -> None:
        """Let it leave, room or not. ``done`` is called later, never within this call."""


class Disposal(Protocol):
    """Takes records whose patience has ended."""

    def room(self) -> Awaitable[None] | None:
        """None when there is room for more, else what to await before asking again."""

    def dispose(self, record: Record[Any, Any], error: Exception, retry_topic: str | None, done: Done) -> None:
        """Put the record into the retry topic, or where dead letters go; tried until it works or its session is gone.

        ``done`` is called later, never within this call.
        """


class NoOutlet:
    """For engines that produce nothing: a handler may return None only, and patience never ends in a dead letter."""

    def offer(self, record: Record[Any, Any], value: object, done: Done) -> bool:
        """Nothing is plain here."""
        return False

    def collect(self, record: Record[Any, Any], value: object) -> object | None:
        """Nothing can leave here."""
        if value is None:
            return None
        raise InvalidOutput(f"the handler returned {type(value).__name__}, and nothing can be produced here")

    def room(self) -> Awaitable[None] | None:
        """Always."""
        return None

    def deliver(self, record: Record[Any, Any], collected: object, done: Done) -> None:
        """Never called: nothing is ever collected."""
        raise NotImplementedError

    def dispose(self, record: Record[Any, Any], error: Exception, retry_topic: str | None, done: Done) -> None:
        """Never called where the options have no dead letters."""
        raise NotImplementedError
