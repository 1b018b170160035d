"""A session: one assignment of one partition to this process, from assigned to revoked or lost."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from aioparallel.engine.sources import Source
from aioparallel.errors import FetchFailed
from aioparallel.extension import PartitionState, overrides
from aioparallel.group.client import CommitFault, Committed, Generation
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
        "_fail",
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
        "partition_states",
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
        self.partition = partition
        self.partition_states: Sequence[PartitionState] = ()
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
        run: not what the restored offset map says is done, nor what an extension leaves out."""
        wanted = self.ledger.register([record.offset for record in records], next_offset)
        if len(wanted) != len(records):
            chosen = set(wanted)
            records = [record for record in records if record.offset in chosen]
        for number, state in enumerate(self.partition_states):
            selected = state.select(records)
            if len(selected) != len(records):
                chosen = {record.offset for record in selected}
                left_out = [record.offset for record in records if record.offset not in chosen]
                self.ledger.complete_all(left_out)
                for before in self.partition_states[:number]:  # which have selected them
                    before.completed_all(left_out)
            records = selected
        return records

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

    def extend(self, states: Sequence[PartitionState], fail: Callable[[BaseException], None]) -> None:
        """Keep these for the partition. Called before anything is registered. ``fail(error)`` ends the run when one of
        them raises."""
        self.partition_states = states
        self._fail = fail
        self._connect()

    def _state_failed(self, error: Exception) -> None:
        """A state does not know what has completed, so nothing of the partition is committed any more."""
        self.fenced = self.abandoned = True
        self._fail(error)

    def _connect(self) -> None:
        ledger, states = self._ledger, self.partition_states
        self.complete, self.complete_all = ledger.complete, ledger.complete_all
        listening = [one for one in states if _overrides(one, "completed") or _overrides(one, "completed_all")]
        for state in listening:
            self.complete, self.complete_all = _then(self.complete, self.complete_all, state, self._state_failed)
        giving_up = [state.gave_up for state in states if _overrides(state, "gave_up")]
        if giving_up:
            self.gave_up = partial(_each, giving_up, self._state_failed)

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
        return any(state.has_news for state in self.partition_states)

    def owes(self, version: tuple[int, int]) -> bool:
        """Whether the broker has not acknowledged what the ledger said at this version, or what goes with it."""
        return self.acknowledged_version is None or self.acknowledged_version < version or self.has_news

    def __repr__(self) -> str:
        return f"<Session {self.partition} epoch {self.epoch} {self.state.value}>"


def _then(
    first: Callable[[int], None],
    first_all: Callable[[Sequence[int]], None],
    state: PartitionState,
    failed: Callable[[Exception], None],
) -> tuple[Callable[[int], None], Callable[[Sequence[int]], None]]:
    """The state hears of it after the ledger, which refuses what was never registered."""

    def complete(offset: int) -> None:
        first(offset)
        try:
            state.completed(offset)
        except Exception as error:
            failed(error)

    def complete_all(offsets: Sequence[int]) -> None:
        first_all(offsets)
        try:
            state.completed_all(offsets)
        except Exception as error:
            failed(error)

    return complete, complete_all


def _each(calls: Sequence[Callable[[int], None]], failed: Callable[[Exception], None], offset: int) -> None:
    for call in calls:
        try:
            call(offset)
        except Exception as error:
            failed(error)


def _overrides(state: PartitionState, name: str) -> bool:
    return overrides(state, PartitionState, name)
