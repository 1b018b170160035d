"""How fetched records reach the engine: at once, or after another component has handled them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from aioparallel.engine.run.processor import Processor
from aioparallel.group.assignment import Assignment
from aioparallel.records.record import Record

__all__ = ["Admission", "AtOnce"]


class Admission(Protocol):
    """Takes the registered records of assignments, and lets the engine run them.

    It decides when an offset of the assignment's ledger is complete: when the handler has ended, or earlier if the
    record is stored elsewhere.
    """

    def admit(self, assignment: Assignment, records: Sequence[Record]) -> int:
        """Take records, ascending by offset. Returns how many bytes they add to the buffer."""

    def waiting(self) -> tuple[int, int]:
        """Return the records and bytes that count towards ``max_buffered`` but are in no assignment's buffer."""

    async def settle(self, assignments: Collection[Assignment], seconds: float, cancel_grace: float) -> None:
        """Start nothing more of these assignments, and return when their ledgers are final. Running handlers are
        cancelled after ``seconds`` and get ``cancel_grace`` seconds to end."""

    async def drain(self, assignments: Collection[Assignment], seconds: float, cancel_grace: float) -> None:
        """Do the same as :meth:`settle` when the run ends."""

    @property
    def is_idle(self) -> bool:
        """Whether all records that were read have ended."""


class AtOnce:
    """Runs records directly. Their offsets are complete when the records have ended."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor

    def admit(self, assignment: Assignment, records: Sequence[Record]) -> int:
        """Give the records to the engine. Returns how many bytes they add to the buffer."""
        before = assignment.buffered_bytes
        self._processor.admit(assignment, records)
        return assignment.buffered_bytes - before

    def waiting(self) -> tuple[int, int]:
        """Return zeros: nothing waits outside of the assignments."""
        return 0, 0

    async def settle(self, assignments: Collection[Assignment], seconds: float, cancel_grace: float) -> None:
        """Drain these assignments."""
        await self._processor.drain(list(assignments), seconds, cancel_grace)

    drain = settle

    @property
    def is_idle(self) -> bool:
        """Whether all admitted records have ended."""
        return not self._processor.scheduler.unfinished
