"""An assignment: the time for which this process has a partition, from assigned to revoked or lost, with its ledger."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from aioparallel.config.extension import PartitionState, overrides
from aioparallel.engine.sources import Source
from aioparallel.group.client import CommitFault, Committed, Generation
from aioparallel.group.leader_epochs import LeaderEpochs
from aioparallel.offsets import Ledger
from aioparallel.records.errors import FetchFailed
from aioparallel.records.record import Record, TopicPartition

if TYPE_CHECKING:
    from aioparallel.group.arrivals import Arrivals

__all__ = ["COMMITTABLE", "Assignment", "AssignmentState"]

T = TypeVar("T")


class AssignmentState(enum.Enum):
    """The state of an assignment."""

    OPENING = "opening"
    """Assigned; its committed offset and map are being read."""
    OPEN = "open"
    """Records are fetched and run."""
    DRAINING = "draining"
    """Nothing new is started. Records in flight end, then there is a last commit."""
    DROPPED = "dropped"
    """It has ended. Outcomes that still arrive change nothing."""


COMMITTABLE = (AssignmentState.OPEN, AssignmentState.DRAINING)
"""States in which an assignment may be committed."""


class Assignment(Source):
    """One assignment of a partition. The scheduler takes records from it (see ``Source``), and completed offsets go
    into its ledger.

    Who writes what, all on one event loop:

    * the rebalancer, opener, resets and unreadable partitions: ``opened``, ``resetting``, ``unreadable``, ``waits``,
      generation, ledger, target
    * the scheduler: the attributes of a source
    * the committer: ``acknowledged`` and those after it
    """

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
        # The leader epochs and the topic id of the records that were read. Others mean that the log is another one.
        self.leader_epochs = LeaderEpochs()
        self.topic_id = b""
        # Set if the log has lost records: the text of the health problem, and an offset. Cleared when an offset above
        # that one is committed.
        self.truncated: tuple[str, int] | None = None
        # When its records arrived, if an extension needs that.
        self.arrivals: Arrivals | None = None
        self.opened = False
        # A reset looks for a position inside the log; nothing is fetched meanwhile.
        self.resetting = False
        # Why the data at its position cannot be read, and whether fetching is held until the next try.
        self.unreadable: FetchFailed | None = None
        self.waits = False
        # Offsets from here on are not admitted. With until="end" it is the end offset when the run began.
        self.target = sys.maxsize

        # Written by the committer:
        self.acknowledged: Committed | None = None
        self.acknowledged_version: tuple[int, int] | None = None
        self.fault: CommitFault | None = None  # why the last commit failed
        self.fenced = False
        self.abandoned = False  # fenced for good: its last commit is in doubt, so it commits in no later generation
        self.cut: int | None = None  # the highest offset in the last map, if the map was cut
        self.wrote_dense = False
        # The highest offset that a committed map covers. If outputs are committed with the map, records that it marks
        # as complete must not run again.
        self.promised = base - 1

    def register(self, records: Sequence[Record], next_offset: int) -> Sequence[Record]:
        """Register fetched ``records``, ascending by offset, and the position after them. Returns the records that must
        run. Those that the restored offset map marks as complete are left out, and so are those that an extension
        leaves out."""
        wanted = self.ledger.register([record.offset for record in records], next_offset)
        if len(wanted) != len(records):
            chosen = set(wanted)
            records = [record for record in records if record.offset in chosen]
        for number, state in enumerate(self.partition_states):
            selected = state.select(records)
            if len(selected) != len(records):
                chosen = {record.offset for record in selected}
                left_out = [record.offset for record in records if record.offset not in chosen]
                selecting = [before.completed_all for before in self.partition_states[:number]]
                _chain(self.ledger.complete_all, selecting, self._state_failed)(left_out)
            records = selected
        return records

    def complete_unread(self, offsets: Sequence[int]) -> None:
        """Complete ascending offsets that are not fetched yet. Their records do not run when they come."""
        self.ledger.complete_unread(offsets)
        try:
            for state in self.partition_states:
                state.completed_unread(offsets)
        except BaseException as error:
            self._state_failed(error)

    @property
    def ledger(self) -> Ledger:
        """Which offsets are complete. Replaced when the committed offset and map are known."""
        return self._ledger

    @ledger.setter
    def ledger(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.start = ledger.position
        """The position at which reading begins."""
        self._connect()

    def extend(self, states: Sequence[PartitionState], fail: Callable[[BaseException], None]) -> None:
        """Set the extensions' states, before anything is registered. If a method of one of the states raises,
        ``fail(error)`` is called, which ends the run."""
        self.partition_states = states
        self._fail = fail
        self._connect()

    def _state_failed(self, error: BaseException) -> None:
        """End the run and commit nothing more of the partition: the state has missed a completed offset."""
        self.fenced = self.abandoned = True
        self._fail(error)

    def _connect(self) -> None:
        ledger, states, failed = self._ledger, self.partition_states, self._state_failed
        self.complete, self.complete_all = ledger.complete, ledger.complete_all
        listening = [one for one in states if _overrides(one, "completed") or _overrides(one, "completed_all")]
        if listening:
            self.complete = _chain(ledger.complete, [state.completed for state in listening], failed)
            self.complete_all = _chain(ledger.complete_all, [state.completed_all for state in listening], failed)
        if giving_up := [state.gave_up for state in states if _overrides(state, "gave_up")]:
            self.gave_up = _chain(_ignore, giving_up, failed)

    @property
    def state(self) -> AssignmentState:
        """Derived from the flags ``opened``, ``stopped`` and ``dropped``."""
        if self.dropped:
            return AssignmentState.DROPPED
        if self.stopped:
            return AssignmentState.DRAINING
        return AssignmentState.OPEN if self.opened else AssignmentState.OPENING

    def may_commit(self) -> bool:
        """Whether the group would accept a commit of this assignment."""
        return not self.fenced and self.state in COMMITTABLE

    @property
    def dirty(self) -> bool:
        """Whether the current ledger, or data of an extension, is not acknowledged yet."""
        return self.acknowledged_version != self.ledger.version or self.has_news

    @property
    def has_news(self) -> bool:
        """Whether an extension has something to commit, even if the position is acknowledged."""
        return any(state.has_news for state in self.partition_states)

    def owes(self, version: tuple[int, int]) -> bool:
        """Whether this version of the ledger, or data of an extension, is not acknowledged yet."""
        return self.acknowledged_version is None or self.acknowledged_version < version or self.has_news

    def __repr__(self) -> str:
        return f"<Assignment {self.partition} epoch {self.epoch} {self.state.value}>"


def _ignore(offset: int) -> None:
    pass


def _chain(
    first: Callable[[T], None], others: Sequence[Callable[[T], None]], failed: Callable[[BaseException], None]
) -> Callable[[T], None]:
    """Return a function that calls all of these. ``first``: the ledger, which raises for offsets that were never
    registered. ``failed(error)`` is called with the errors of the others, of any kind: raised from here, they would end
    the engine's step in the middle."""

    def call(argument: T) -> None:
        first(argument)
        for other in others:
            try:
                other(argument)
            except BaseException as error:
                failed(error)

    return call


def _overrides(state: PartitionState, name: str) -> bool:
    return overrides(state, PartitionState, name)
