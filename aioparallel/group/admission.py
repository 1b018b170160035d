"""How what was read comes to the engine: at once, or after something else was done about it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from aioparallel.engine.processor import Processor
from aioparallel.group.sessions import Session
from aioparallel.records import Record

__all__ = ["Admission", "AtOnce", "MakeAdmission", "at_once"]


class Admission(Protocol):
    """Takes the records of sessions that were read and registered, and lets the engine run them.

    Whose completion is whose business is decided here: an offset of the session's ledger completes with the handler's
    end, or when something else answers for the record from then on.
    """

    def admit(self, session: Session, records: Sequence[Record]) -> int:
        """These were read, ascending. Returns their size in bytes."""

    def waiting(self) -> tuple[int, int]:
        """Records, and bytes, that take room and are not in a buffer of the sessions held now."""

    async def settle(self, sessions: Collection[Session], seconds: float, cancel_grace: float) -> None:
        """These are given away: start nothing more for them, and return when their ledgers say all that they will.
        Takes so many seconds, and the grace, at most."""

    async def drain(self, sessions: Collection[Session], seconds: float, cancel_grace: float) -> None:
        """The same where the whole run ends."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do about all that was read."""


class AtOnce:
    """Records run, and complete their offsets when they have ended: what a consumer does that keeps its position in
    the group."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor

    def admit(self, session: Session, records: Sequence[Record]) -> int:
        """See :class:`Admission`."""
        before = session.buffered_bytes
        self._processor.admit(session, records)
        return session.buffered_bytes - before

    def waiting(self) -> tuple[int, int]:
        """None do."""
        return 0, 0

    async def settle(self, sessions: Collection[Session], seconds: float, cancel_grace: float) -> None:
        """See :class:`Admission`."""
        await self._processor.drain(list(sessions), seconds, cancel_grace)

    drain = settle

    @property
    def is_idle(self) -> bool:
        """See :class:`Admission`."""
        return not self._processor.scheduler.unfinished


MakeAdmission = Callable[[Processor, Callable[[BaseException], None]], Admission]
"""From the engine, and what is to be told of an error that must end the run."""


def at_once(processor: Processor, fatal: Callable[[BaseException], None]) -> Admission:
    """As nearly all do."""
    return AtOnce(processor)
