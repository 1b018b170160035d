"""How fetched records reach the engine: at once, or after another component has handled them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from aioparallel.engine.run.processor import Processor
from aioparallel.group.sessions import Session
from aioparallel.records.record import Record

__all__ = ["Admission", "AtOnce"]


class Admission(Protocol):
    """Takes the registered records of sessions, and lets the engine run them.

    It decides when an offset of the session's ledger is complete: when the handler has ended, or earlier if the record
    is stored elsewhere.
    """

    def admit(self, session: Session, records: Sequence[Record]) -> int:
        """Take records, ascending by offset. Returns how many bytes they add to the buffer."""

    def waiting(self) -> tuple[int, int]:
        """Return the records and bytes that count towards ``max_buffered`` but are in no session's buffer."""

    async def settle(self, sessions: Collection[Session], seconds: float, cancel_grace: float) -> None:
        """Start nothing more of these sessions, and return when their ledgers are final. Running handlers are cancelled
        after ``seconds`` and get ``cancel_grace`` seconds to end."""

    async def drain(self, sessions: Collection[Session], seconds: float, cancel_grace: float) -> None:
        """Do the same as :meth:`settle` when the run ends."""

    @property
    def is_idle(self) -> bool:
        """Whether all records that were read have ended."""


class AtOnce:
    """Runs records directly. Their offsets are complete when the records have ended."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor

    def admit(self, session: Session, records: Sequence[Record]) -> int:
        """Give the records to the engine. Returns how many bytes they add to the buffer."""
        before = session.buffered_bytes
        self._processor.admit(session, records)
        return session.buffered_bytes - before

    def waiting(self) -> tuple[int, int]:
        """Return zeros: nothing waits outside of the sessions."""
        return 0, 0

    async def settle(self, sessions: Collection[Session], seconds: float, cancel_grace: float) -> None:
        """Drain these sessions."""
        await self._processor.drain(list(sessions), seconds, cancel_grace)

    drain = settle

    @property
    def is_idle(self) -> bool:
        """Whether all admitted records have ended."""
        return not self._processor.scheduler.unfinished
