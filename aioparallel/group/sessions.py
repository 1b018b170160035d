"""A session: one assignment of one partition to this process, from assigned to revoked or lost."""

from __future__ import annotations

import enum
import sys
from collections.abc import Sequence

from aioparallel.engine.sources import Source
from aioparallel.group.client import CommitFault, Committed, Generation
from aioparallel.offsets import Ledger
from aioparallel.records import Record, TopicPartition

__all__ = ["Session", "SessionState"]


class SessionState(enum.Enum):
    """Where a session stands."""

    OPENING = "opening"
    """Assigned; its committed offset and map are being read."""
    OPEN = "open"
    """Records are fetched and run."""
    DRAINING = "draining"
    """Nothing new is started; those in flight end, then a last commit."""
    DROPPED = "dropped"
    """Over: outcomes that still arrive change nothing."""


class Session(Source):
    """One partition under one epoch: a source whose completions go into a ledger.

    Written by: the assignment with opener and resets (``opened``, ``resetting``, generation, ledger, target), the
    scheduler (what a source has), the committer (``acknowledged`` and what follows). Everything on one event loop.
    """

    __slots__ = (
        "_ledger",
        "acknowledged",
        "acknowledged_version",
        "cut",
        "epoch",
        "fault",
        "fenced",
        "generation",
        "opened",
        "partition",
        "resetting",
        "target",
        "wrote_dense",
    )

    def __init__(
        self, partition: TopicPartition, epoch: int = 0, generation: Generation | None = None, base: int = 0
    ) -> None:
        super().__init__(partition)
        self.partition = partition
        self.epoch = epoch
        self.generation = generation or Generation(-1, "")
        self.ledger = Ledger(base)
        self.opened = False
        # The log does not hold the position: a reset looks for the next one, nothing is fetched.
        self.resetting = False
        # Offsets from here on are not admitted: the end offset of the start under until="end".
        self.target = sys.maxsize

        # The committer's.
        self.acknowledged: Committed | None = None
        self.acknowledged_version: tuple[int, int] | None = None
        self.fault: CommitFault | None = None  # what became of the last commit
        self.fenced = False
        self.cut: int | None = None  # highest offset the last map could say, when it could not say all
        self.wrote_dense = False

    def register(self, records: Sequence[Record], next_offset: int) -> Sequence[Record]:
        """Take in what was read: ``records`` ascending by offset, and the position after them. Returns those that must
        run: not what the restored offset map says is done."""
        wanted = self.ledger.register([record.offset for record in records], next_offset)
        if len(wanted) == len(records):
            return records
        chosen = set(wanted)
        return [record for record in records if record.offset in chosen]

    @property
    def ledger(self) -> Ledger:
        """Which offsets are complete. Set anew once the committed offset and map are known."""
        return self._ledger

    @ledger.setter
    def ledger(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.complete, self.complete_all = ledger.complete, ledger.complete_all

    @property
    def state(self) -> SessionState:
        """Follows from what was done to it: opened, stopped, dropped."""
        if self.dropped:
            return SessionState.DROPPED
        if self.stopped:
            return SessionState.DRAINING
        return SessionState.OPEN if self.opened else SessionState.OPENING

    @property
    def dirty(self) -> bool:
        """Whether the broker has not acknowledged what the ledger says now."""
        return self.acknowledged_version != self.ledger.version

    def owes(self, version: tuple[int, int]) -> bool:
        """Whether the broker has not acknowledged what the ledger said at this version, or more."""
        return self.acknowledged_version is None or self.acknowledged_version < version

    def __repr__(self) -> str:
        return f"<Session {self.partition} epoch {self.epoch} {self.state.value}>"
