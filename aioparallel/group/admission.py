"""How fetched records come to the engine: at once, or after something else was done about them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from aioparallel.engine.processor import Processor
from aioparallel.group.sessions import Session
from aioparallel.records import Record

__all__ = ["Admission", "AtOnce"]


class Admission(Protocol):
    """Takes the registered records of sessions and lets the engine run them.

    It decides when an offset of the session's ledger is complete: when the handler has ended, or earlier, when
    something else keeps the record.
    """

    def admit(self, session: Session, records: Sequence[Record]) -> int:
        """Take records, ascending by offset. Returns their size in bytes."""

    def waiting(self) -> tuple[int, int]:
        """Return records and bytes that count against ``max_buffered`` and are in no buffer of a current session."""

    async def settle(self, sessions: Collection[Session], seconds: float, cancel_grace: float) -> None:
        """These sessions end: start nothing more of them, and return when their ledgers are final. Takes at most
        ``seconds`` and ``cancel_grace`` seconds."""

    async def drain(self, sessions: Collection[Session], seconds: float, cancel_grace: float) -> None:
        """The same when the run ends."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do for what was read."""


class AtOnce:
    """Records run, and their offsets are complete when they have ended."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor

    def admit(self, session: Session, records: Sequence[Record]) -> int:
        """See :class:`Admission`."""
        before = session.buffered_bytes
        self._processor.admit(session, records)
        return session.buffered_bytes - before

    def waiting(self) -> tuple[int, int]:
        """Nothing waits outside of the sessions."""
        return 0, 0

    async def settle(self, sessions: Collection[Session], seconds: float, cancel_grace: float) -> None:
        """See :class:`Admission`."""
        await self._processor.drain(list(sessions), seconds, cancel_grace)

    drain = settle

    @property
    def is_idle(self) -> bool:
        """See :class:`Admission`."""
        return not self._processor.scheduler.unfinished
