"""How assignments come and go in the model test: assigned, read, drained, revoked, lost; what others do meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from aioparallel.config.handling import Ordering
from aioparallel.config.options import Options
from aioparallel.engine.outcomes.retries import RetryQueue
from aioparallel.engine.schedule.scheduler import Scheduler
from aioparallel.engine.signals import Signals
from aioparallel.engine.sources import Source
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Generation
from aioparallel.group.pauses import Pauses
from aioparallel.handlers.stack import Batchings
from aioparallel.offsets import Ledger, OffsetMap, decode_offset_map
from aioparallel.records.record import Record, TopicPartition
from tests.support.model.group import TOPIC, Commits, Group
from tests.support.model.model import BEGUN, GAP, Cell, Entry, Holding, Known, Model, State

__all__ = ["PARTITION", "PARTITIONS", "PICK", "Assignments", "having", "with_single"]

KEYS = st.sampled_from([b"a", b"ab", b"b", b"", None, None, GAP])
CELLS = st.lists(KEYS, min_size=2, max_size=8)
PARTITIONS = 3
PARTITION = st.integers(0, PARTITIONS - 1)
PICK = st.integers(0, 7)
MAX_COMPACTIONS = 3


def first_byte(record: Record[Any, Any]) -> bytes | None:
    """An ``order_by`` that puts several keys into one lane."""
    return (record.key or b"")[:1] or None


def having(state: State, *more: State) -> Callable[[Assignments], bool]:
    """Whether a record of such a state is there."""
    return lambda machine: bool(machine.model.entries(state, *more))


def with_single(state: State, *more: State) -> Callable[[Assignments], bool]:
    """Whether a record of such a state is there that can have an outcome of its own."""
    return lambda machine: bool(machine.singles(state, *more))


class Assignments(RuleBasedStateMachine):
    """The sync core, the model beside it, and the partitions of both."""

    @initialize(
        ordering=st.sampled_from([*Ordering, None]),
        workers=st.integers(1, 5),
        max_parked=st.integers(1, 8),
        block=st.booleans(),
        metadata_limit=st.integers(0, 12),
        believed_limit=st.sampled_from([4096, 20, 12, 0]),
        logs=st.lists(CELLS, min_size=1, max_size=PARTITIONS),
    )
    def begin(
        self,
        ordering: Ordering | None,
        workers: int,
        max_parked: int,
        block: bool,
        metadata_limit: int,
        believed_limit: int,
        logs: list[list[Cell]],
    ) -> None:
        """``ordering`` None means an ``order_by``. Something is read of some partitions."""
        by_first_byte = ordering is None
        ordering = ordering or Ordering.KEY
        self.model = Model(ordering, by_first_byte)
        # As the processor makes it: max_parked of the options, less what may be in flight when it is looked at.
        self.scheduler = Scheduler(
            ordering,
            first_byte if by_first_byte else None,
            slots=workers,
            max_parked=max_parked,
            on_drained=self._note_drained,
            signals=self.signals(),
            batchings=self.batchings(),
        )
        self.pauses = Pauses()
        self.scheduler.pauses_of = self.pauses.of
        self.was_paused = False
        self.group = Group(PARTITIONS, metadata_limit)
        self.block = block
        options = Options(when_map_is_full="block" if block else "continue")
        self.commits = Commits(self.group, options, self.scheduler)
        self.commits.committer.limit.characters = believed_limit
        self.retries = RetryQueue()
        self.sleeping: list[tuple[float, Entry]] = []
        self.now = 0.0
        self.workers, self.max_parked = workers, max_parked
        self.most_producing = 0
        self.compactions = 0
        self.epoch = 0
        self.drained = False
        for partition, cells in enumerate(logs):
            self.fetch(partition, cells, 0)

    def signals(self) -> Signals:
        """What hears the scheduler."""
        return Signals()

    def batchings(self) -> Batchings | None:
        """Which records go into batches: none."""
        return None

    @property
    def most_in_flight(self) -> int:
        """Records."""
        return self.workers

    def singles(self, *states: State) -> list[Entry]:
        """Those that have an outcome of their own now."""
        return self.model.entries(*states)

    def _note_drained(self, source: Source) -> None:
        self.drained = True

    def holding_of(self, partition: int) -> Holding:
        """What is held of the partition now; assigned and opened first where nothing is."""
        if partition not in self.model.holdings:
            self._assign(partition)
        return self.model.holdings[partition]

    def _assign(self, partition: int) -> None:
        generation = self._rebalance()
        self.epoch += 1
        assignment = Assignment(TopicPartition(TOPIC, partition), self.epoch, generation)
        committed = self.group.logs[partition].committed
        said = None
        if committed is None:
            known = Known(OffsetMap(0, -1))
        else:
            restored = decode_offset_map(committed.offset, committed.metadata)
            known = Known(restored)
            assignment.ledger = Ledger(committed.offset, restored)
            assignment.acknowledged, assignment.acknowledged_version = committed, assignment.ledger.version
            said = known.said()
        assignment.opened = True
        self.scheduler.follow_pauses((assignment,))
        self.model.holdings[partition] = Holding(assignment, partition, known, said, generation.id)

    def _rebalance(self) -> Generation:
        """What is kept moves to the new generation."""
        generation = self.group.new_generation()
        for holding in self.model.holdings.values():
            holding.assignment.generation, holding.generation = generation, generation.id
            holding.assignment.fenced = holding.fenced = False
        return generation

    @rule(partition=PARTITION, cells=CELLS, back=st.integers(0, 2))
    def fetch(self, partition: int, cells: list[Cell], back: int) -> None:
        """Read so many offsets on, some of them again; the log grows by ``cells`` where it ends."""
        holding = self.holding_of(partition)
        if holding.stopped:
            return
        log, known, ledger = self.group.logs[partition].cells, holding.known, holding.assignment.ledger
        until = known.position + len(cells)
        missing = max(0, until - len(log))
        log += cells[len(cells) - missing :]
        until = min(until, len(log))
        records = self.group.logs[partition].read(partition, known.position - back, until)
        wanted = ledger.register([record.offset for record in records], until)
        expected = known.deliver([record.offset for record in records], until)
        assert list(wanted) == expected
        chosen = [record for record in records if record.offset in set(wanted)]
        if chosen:
            self.scheduler.admit(holding.assignment, chosen)
            self.model.admit(holding, chosen)

    @precondition(having(*BEGUN))
    @rule(partition=PARTITION)
    def drain(self, partition: int) -> None:
        holding = self.model.holdings.get(partition)
        if holding is not None:
            holding.stopped = True
            assert self.scheduler.stop(holding.assignment) == holding.count(*BEGUN)

    @precondition(having(*BEGUN))
    @rule(pick=PICK)
    def lose(self, pick: int) -> None:
        """Drop an assignment in the middle, or after its drain."""
        begun = self.model.entries(*BEGUN)
        self._drop(begun[pick % len(begun)].owner)

    @precondition(lambda self: any(holding.stopped for holding in self.model.holdings.values()))
    @rule(partition=PARTITION)
    def revoke(self, partition: int) -> None:
        """Drop an assignment that has drained."""
        holding = self.model.holdings.get(partition)
        if holding is not None and holding.stopped and not holding.count(*BEGUN):
            self._drop(holding)

    def _drop(self, holding: Holding) -> None:
        if holding.dropped:
            return
        self.scheduler.drop(holding.assignment)
        self.model.drop(holding)
        holding.frozen = (holding.assignment.ledger.version, dict(holding.assignment.ledger.incompletes))

    @precondition(lambda self: self.model.gone)
    @rule(partition=PARTITION, ended=st.sets(st.integers(0, 15)))
    def another_member(self, partition: int, ended: set[int]) -> None:
        """Who had the partition meanwhile has ended some of it and committed that."""
        if partition not in self.model.holdings and self.group.logs[partition].cells:
            self._rebalance()
            self.group.progress_elsewhere(partition, ended)

    @precondition(lambda self: self.compactions < MAX_COMPACTIONS)
    @rule(partition=PARTITION, pick=PICK)
    def compact(self, partition: int, pick: int) -> None:
        """A record that a committed map lists vanishes from the log: who reads on from there is not given it."""
        log = self.group.logs[partition]
        listed = decode_offset_map(*log.committed[:2]).incompletes if log.committed else ()
        if listed:
            log.cells[listed[pick % len(listed)]] = GAP
            self.compactions += 1
