"""A session: one assignment of one partition to this process, from assigned to revoked or lost."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from aioparallel.engine.sources import Source
from aioparallel.errors import FetchFailed
from aioparallel.group.client import CommitFault, Committed, Generation
from aioparallel.group.companions import Beside
from aioparallel.group.leader_epochs import LeaderEpochs
from aioparallel.offsets import Ledger
from aioparallel.records import Record, TopicPartition

if TYPE_CHECKING:
    from aioparallel.group.arrivals import Arrivals

__all__ = ["COMMITTABLE", "Session", "SessionState"]


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


COMMITTABLE = (SessionState.OPEN, SessionState.DRAINING)
"""While something of a session may be committed."""


class Session(Source):
    """One partition under one epoch: a source whose completions go into a ledger.

    Written by: the assignment with opener, resets and holds (``opened``, ``resetting``, ``unreadable``, ``waits``,
    generation, ledger, target), the
    scheduler (what a source has), the committer (``acknowledged`` and what follows). Everything on one event loop.
    """

    __slots__ = (
        "_beside",
        "_ledger",
        "abandoned",
        "acknowledged",
        "acknowledged_version",
        "arrivals",
        "cut",
        "epoch",
        "fault",
        "fenced",
        "generation",
        "leader_epochs",
        "opened",
        "partition",
        "promised",
        "resetting",
        "start",
        "target",
        "topic_id",
        "truncated",
        "unreadable",
        "waits",
        "wrote_dense",
    )

    def __init__(
        self,
        partition: TopicPartition,
        epoch: int = 0,
        generation: Generation | None = None,
        base: int = 0,
    ) -> None:
        super().__init__(partition)
        self._beside: Beside | None = None
        self.partition = partition
        self.epoch = epoch
        self.generation = generation or Generation(-1, "")
        self.ledger = Ledger(base)
        # Which leaders wrote what was read, and in which topic of that name: other ones mean another log.
        self.leader_epochs = LeaderEpochs()
        self.topic_id = b""
        # What is said of a log that lost records, until those read instead are committed; and up to which offset.
        self.truncated: tuple[str, int] | None = None
        # When its records came, where somebody asks.
        self.arrivals: Arrivals | None = None
        self.opened = False
        # The log does not hold the position: a reset looks for the next one, nothing is fetched.
        self.resetting = False
        # Why the data at its position cannot be read; and whether nothing is fetched, until it is tried anew.
        self.unreadable: FetchFailed | None = None
        self.waits = False
        # Offsets from here on are not admitted: the end offset of the start under until="end".
        self.target = sys.maxsize

        # The committer's.
        self.acknowledged: Committed | None = None
        self.acknowledged_version: tuple[int, int] | None = None
        self.fault: CommitFault | None = None  # what became of the last commit
        self.fenced = False
        self.abandoned = False  # fenced, and nobody knows what became of its last commit: under no generation again
        self.cut: int | None = None  # highest offset the last map could say, when it could not say all
        self.wrote_dense = False
        # The highest offset that a committed map speaks of: what it calls complete must not be run again where outputs
        # are committed with it.
        self.promised = base - 1

    def register(self, records: Sequence[Record], next_offset: int) -> Sequence[Record]:
        """Take in what was read: ``records`` ascending by offset, and the position after them. Returns those that must
        run: not what the restored offset map says is done, nor what a companion leaves out."""
        wanted = self.ledger.register([record.offset for record in records], next_offset)
        if len(wanted) != len(records):
            chosen = set(wanted)
            records = [record for record in records if record.offset in chosen]
        return records if self._beside is None else self._fresh(records, self._beside)

    def _fresh(self, records: Sequence[Record], beside: Beside) -> Sequence[Record]:
        fresh = beside.fresh(records)
        if len(fresh) != len(records):
            chosen = {record.offset for record in fresh}
            self.ledger.complete_all([record.offset for record in records if record.offset not in chosen])
        return fresh

    @property
    def ledger(self) -> Ledger:
        """Which offsets are complete. Set anew once the committed offset and map are known."""
        return self._ledger

    @ledger.setter
    def ledger(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.start = ledger.position
        """Where reading begins."""
        self._connect()

    @property
    def beside(self) -> Beside | None:
        """A companion's view of it. Set before anything is registered."""
        return self._beside

    @beside.setter
    def beside(self, beside: Beside | None) -> None:
        self._beside = beside
        self._connect()

    def _connect(self) -> None:
        ledger, beside = self._ledger, self._beside
        self.complete, self.complete_all = ledger.complete, ledger.complete_all
        if beside is not None:
            self.complete, self.complete_all = _both(ledger, beside)
            self.put_away = beside.put_away

    @property
    def state(self) -> SessionState:
        """Follows from what was done to it: opened, stopped, dropped."""
        if self.dropped:
            return SessionState.DROPPED
        if self.stopped:
            return SessionState.DRAINING
        return SessionState.OPEN if self.opened else SessionState.OPENING

    def may_commit(self) -> bool:
        """Whether what it says counts in the group."""
        return not self.fenced and self.state in COMMITTABLE

    @property
    def dirty(self) -> bool:
        """Whether the broker has not acknowledged what the ledger says now, or what goes with it."""
        return self.acknowledged_version != self.ledger.version or self.has_news

    @property
    def has_news(self) -> bool:
        """Whether a commit would bring something, though its position is acknowledged already."""
        return self._beside is not None and self._beside.has_news

    def owes(self, version: tuple[int, int]) -> bool:
        """Whether the broker has not acknowledged what the ledger said at this version, or what goes with it."""
        return self.acknowledged_version is None or self.acknowledged_version < version or self.has_news

    def __repr__(self) -> str:
        return f"<Session {self.partition} epoch {self.epoch} {self.state.value}>"


def _both(ledger: Ledger, beside: Beside) -> tuple[Callable[[int], None], Callable[[Sequence[int]], None]]:
    """The ledger is told first, which refuses what was never registered."""

    def complete(offset: int) -> None:
        ledger.complete(offset)
        beside.completed(offset)

    def complete_all(offsets: Sequence[int]) -> None:
        ledger.complete_all(offsets)
        beside.completed_all(offsets)

    return complete, complete_all
