"""The scheduler against its invariants, by hand and by hypothesis."""

from __future__ import annotations

import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aioparallel.config.handling import Ordering
from aioparallel.engine.isolation import Ended
from aioparallel.engine.schedule.scheduler import AnyRecord, Scheduler
from aioparallel.engine.signals import Signals
from aioparallel.engine.sinks import Offered
from aioparallel.group.assignment import Assignment, AssignmentState
from aioparallel.records.record import Record, TopicPartition
from tests.support.engine.taking import take
from tests.support.examples import examples


def make_assignment(partition: int = 0, epoch: int = 1) -> Assignment:
    assignment = Assignment(TopicPartition("t", partition), epoch)
    assignment.opened = True
    return assignment


def feed(scheduler: Scheduler, assignment: Assignment, *keys: bytes | None, first: int | None = None) -> list[Record]:
    start = assignment.ledger.position if first is None else first
    records: list[Record] = [
        Record("t", assignment.partition.partition, start + i, key, b"v") for i, key in enumerate(keys)
    ]
    assignment.ledger.register([record.offset for record in records], start + len(records))
    scheduler.admit(assignment, records)
    return records


def drain_ready(scheduler: Scheduler) -> list[Record]:
    taken = []
    while (record := take(scheduler)) is not None:
        taken.append(record)
    return taken


def test_counters_that_are_flushed_while_an_output_is_sent() -> None:
    """The record is reported like the others, once."""
    attempted = list[AnyRecord]()
    signals = Signals(attempted=lambda records, *_: attempted.extend(records))
    scheduler = Scheduler(signals=signals)
    records = feed(scheduler, make_assignment(), *(b"k%d" % n for n in range(5)))

    def hand_over(record: AnyRecord, ended: Ended) -> Offered:
        if record.offset == 2:
            scheduler.flush_counters()
        return Offered.LEAVING

    while scheduler.has_ready:
        assert scheduler.run_ready(lambda record: Ended(b"1", is_plain=True), hand_over, [None] * 16) is None
    assert attempted == records
    assert scheduler.counters.producing == 5


def test_a_assignment_beyond_its_share_of_the_slots_lets_the_others_go_first() -> None:
    """One whose handlers never end keeps its part; the others get all that they free again. Alone it has everything."""
    scheduler = Scheduler(slots=10)
    hanging, healthy = make_assignment(0), make_assignment(1)
    feed(scheduler, hanging, *(b"h%d" % n for n in range(50)))
    feed(scheduler, healthy, *(b"k%d" % n for n in range(500)))
    running: list[Record] = []
    for _ in range(400):
        while scheduler.counters.in_flight < 10:
            record = take(scheduler)
            assert record is not None
            if record.partition == 1:
                running.append(record)
        assert len(hanging.in_flight) <= 6
        scheduler.succeed(running.pop(0))
    for record in running:
        scheduler.succeed(record)
    while scheduler.counters.in_flight < 10 and (record := take(scheduler)) is not None:
        if record.partition == 1:
            scheduler.succeed(record)
    assert (len(hanging.in_flight), healthy.buffered) == (10, 0)


def test_a_lane_has_one_record_in_flight() -> None:
    """Of each key one record starts; the next one only after its outcome (I3)."""
    scheduler, assignment = Scheduler(), make_assignment()
    a1, b1, a2 = feed(scheduler, assignment, b"a", b"b", b"a")
    assert drain_ready(scheduler) == [a1, b1]
    scheduler.succeed(a1)
    assert drain_ready(scheduler) == [a2]


def test_records_without_key_have_no_order() -> None:
    """Records whose key is None all start at once; an empty key is a key."""
    scheduler, assignment = Scheduler(), make_assignment()
    records = feed(scheduler, assignment, None, None, b"", b"")
    assert drain_ready(scheduler) == records[:3]


def test_partition_ordering_is_one_lane_per_partition() -> None:
    """Under PARTITION one record of each partition runs."""
    scheduler = Scheduler(Ordering.PARTITION)
    first, second = make_assignment(0), make_assignment(1)
    [a, _] = feed(scheduler, first, None, b"x")
    [b] = feed(scheduler, second, b"y")
    assert drain_ready(scheduler) == [a, b]


def test_unordered_starts_everything() -> None:
    """Under UNORDERED equal keys run together."""
    scheduler, assignment = Scheduler(Ordering.UNORDERED), make_assignment()
    records = feed(scheduler, assignment, b"a", b"a", b"a")
    assert drain_ready(scheduler) == records


def test_order_by_names_the_lane() -> None:
    """With order_by its result is the lane's key, and None means no order."""
    scheduler = Scheduler(order_by=lambda record: (record.key or b"")[:1] or None)
    a1, _a2, n1, n2 = feed(scheduler, make_assignment(), b"ax", b"ay", None, b"")
    assert drain_ready(scheduler) == [a1, n1, n2]


def test_partitions_take_turns() -> None:
    """A partition with much ready does not run before one with little."""
    scheduler = Scheduler()
    big, small = make_assignment(0), make_assignment(1)
    feed(scheduler, big, *[str(i).encode() for i in range(100)])
    [late] = feed(scheduler, small, b"k")
    assert late in [take(scheduler), take(scheduler)]


def test_parked_record_holds_its_lane_and_no_other() -> None:
    """A parked record keeps its place; it counts as parked until it starts again, with attempt 2."""
    scheduler, assignment = Scheduler(), make_assignment()
    a1, _a2, _b1 = feed(scheduler, assignment, b"a", b"a", b"b")
    assert take(scheduler) is a1
    assert scheduler.park(a1)
    assert [r.key for r in drain_ready(scheduler)] == [b"b"]
    scheduler.unpark(a1)
    assert scheduler.parked == 1
    assert take(scheduler) is a1
    assert (a1.attempt, scheduler.parked) == (2, 0)


def test_outcomes_of_a_dropped_assignment_change_nothing_but_keep_the_key_closed() -> None:
    """Revoked and assigned again while a handler runs: its key stays closed until that handler ends (I3, I6)."""
    scheduler, old, new = Scheduler(), make_assignment(epoch=1), make_assignment(epoch=2)
    [running] = feed(scheduler, old, b"a")
    assert take(scheduler) is running
    scheduler.drop(old)
    again, other = feed(scheduler, new, b"a", b"b")
    assert drain_ready(scheduler) == [other]
    scheduler.succeed(running)
    assert new.ledger.next_commit == 0
    assert drain_ready(scheduler) == [again]


def test_key_stays_closed_over_two_reassignments() -> None:
    """The lane that waited for an old handler may be dropped itself; the third one still waits."""
    scheduler = Scheduler()
    first, second, third = (make_assignment(epoch=i) for i in (1, 2, 3))
    [running] = feed(scheduler, first, b"a")
    take(scheduler)
    scheduler.drop(first)
    feed(scheduler, second, b"a")
    scheduler.drop(second)
    [last] = feed(scheduler, third, b"a")
    assert take(scheduler) is None
    scheduler.succeed(running)
    assert take(scheduler) is last


def test_draining_counts_success_and_starts_nothing() -> None:
    """After stop() what is in flight may still complete; on_drained says when the last one has ended."""
    calls: list[int] = []
    scheduler, assignment = Scheduler(on_drained=lambda one: calls.append(one.begun)), make_assignment()
    a, b, _ = feed(scheduler, assignment, b"a", b"b", b"a")
    drain_ready(scheduler)
    assert scheduler.stop(assignment) == 2
    scheduler.succeed(a)
    assert take(scheduler) is None
    scheduler.park(b)
    assert calls == [0]
    assert assignment.ledger.next_commit == 1
    scheduler.drop(assignment)
    assert scheduler.counters.admitted == 3 == scheduler.counters.succeeded + scheduler.counters.dropped


def test_ceiling_holds_back_higher_offsets() -> None:
    """Nothing above the ceiling starts; when it rises, what was held back does."""
    scheduler, assignment = Scheduler(), make_assignment()
    low, high = feed(scheduler, assignment, b"a", b"b")
    scheduler.set_ceiling(assignment, 0)
    assert drain_ready(scheduler) == [low]
    scheduler.set_ceiling(assignment, 10)
    assert drain_ready(scheduler) == [high]


def test_paused_takes_nothing() -> None:
    """While paused nothing starts, and nothing is forgotten."""
    scheduler = Scheduler()
    [record] = feed(scheduler, make_assignment(), b"a")
    scheduler.pause()
    assert take(scheduler) is None
    scheduler.resume()
    assert take(scheduler) is record


def test_bytes_count_key_value_and_headers() -> None:
    """buffered_bytes is what the buffered records hold, and back to 0 when they have started."""
    scheduler, assignment = Scheduler(), make_assignment()
    record = Record("t", 0, 0, b"kk", b"vvv", (("h", b"xx"), ("n", None)))
    assignment.ledger.register([0], 1)
    scheduler.admit(assignment, [record])
    assert scheduler.buffered_bytes == 2 + 3 + 3 + 1
    take(scheduler)
    assert scheduler.buffered_bytes == 0


@pytest.mark.parametrize("ending", ["succeed", "drop"])
def test_an_ended_record_is_freed_at_once(ending: str) -> None:
    """Nothing refers back to a record that has ended, nor to those that came after one that somebody keeps."""
    scheduler, assignment = Scheduler(), make_assignment()
    kept, *others = feed(scheduler, assignment, b"a", b"a", b"a")
    last = sys.getrefcount(others[-1])
    if ending == "drop":
        scheduler.drop(assignment)
    else:
        while (record := take(scheduler)) is not None:
            scheduler.succeed(record)
            del record
    if ending == "succeed":
        assert kept._next is None
    now = sys.getrefcount(others[-1])
    assert now < last


KEYS = st.sampled_from([b"a", b"b", b"c", None])


class SchedulerMachine(RuleBasedStateMachine):
    """Any interleaving of admit, start, succeed, fail, wake, put back, drain, revoke and reassign."""

    @initialize(ordering=st.sampled_from(Ordering))
    def start(self, ordering: Ordering) -> None:
        self.ordering = ordering
        self.scheduler = Scheduler(ordering)
        self.epoch = 0
        self.assignments: dict[int, Assignment] = {}
        self.parked: list[Record] = []
        self.running: list[Record] = []
        self.log: dict[int, int] = {0: 0, 1: 0}
        self.done: dict[int, set[int]] = {0: set(), 1: set()}
        self.seen: list[tuple[Assignment, Record]] = []

    def lane(self, record: Record) -> object:
        if self.ordering is Ordering.PARTITION:
            return record.partition
        if self.ordering is Ordering.UNORDERED or record.key is None:
            return (record.partition, record.offset, id(record._source))
        return (record.partition, record.key)

    @rule(partition=st.integers(0, 1), keys=st.lists(KEYS, min_size=1, max_size=5))
    def admit(self, partition: int, keys: list[bytes | None]) -> None:
        assignment = self.assignments.get(partition)
        if assignment is None:
            self.epoch += 1
            assignment = self.assignments[partition] = make_assignment(partition, self.epoch)
        if assignment.state is AssignmentState.OPEN:
            feed(self.scheduler, assignment, *keys)

    @rule()
    def take(self) -> None:
        record = take(self.scheduler)
        if record is None:
            return
        assert self.lane(record) not in [self.lane(other) for other in self.running], "two of a lane at once"
        assignment = record._source
        assert isinstance(assignment, Assignment)
        assert assignment.state is AssignmentState.OPEN
        if self.ordering is not Ordering.UNORDERED and (record.key is not None or self.ordering is Ordering.PARTITION):
            earlier = [
                r
                for s, r in self.seen
                if s is assignment and self.lane(r) == self.lane(record) and r.offset > record.offset
            ]
            assert not earlier, "a later record of the lane started before"
        self.seen.append((assignment, record))
        self.running.append(record)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        record = data.draw(st.sampled_from(self.running))
        self.running.remove(record)
        self.scheduler.succeed(record)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        record = data.draw(st.sampled_from(self.running))
        self.running.remove(record)
        if self.scheduler.park(record):
            self.parked.append(record)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        record = data.draw(st.sampled_from(self.running))
        self.running.remove(record)
        self.scheduler.put_back(record)

    @precondition(lambda self: self.parked)
    @rule(data=st.data())
    def wake(self, data: st.DataObject) -> None:
        record = data.draw(st.sampled_from(self.parked))
        self.parked.remove(record)
        self.scheduler.unpark(record)

    @rule(partition=st.integers(0, 1))
    def drain(self, partition: int) -> None:
        assignment = self.assignments.get(partition)
        if assignment is not None:
            self.scheduler.stop(assignment)

    @rule(partition=st.integers(0, 1))
    def revoke(self, partition: int) -> None:
        assignment = self.assignments.pop(partition, None)
        if assignment is not None:
            self.scheduler.drop(assignment)

    @invariant()
    def nothing_appears_or_vanishes(self) -> None:
        s, counters = self.scheduler, self.scheduler.counters
        assert counters.admitted == s.buffered + s.parked + counters.in_flight + counters.succeeded + counters.dropped
        assert counters.in_flight == len(self.running)
        for assignment in self.assignments.values():
            assert assignment.in_flight == {r for r in self.running if r._source is assignment}
        assert s.ready == sum(len(assignment.ready) for assignment in self.assignments.values())
        assert s.buffered >= 0
        assert s.buffered_bytes >= 0

    @invariant()
    def nothing_is_committed_that_has_not_ended(self) -> None:
        for assignment in self.assignments.values():
            unfinished = {r.offset for r in self.running if r._source is assignment}
            assert all(offset >= assignment.ledger.next_commit for offset in unfinished)

    @invariant()
    def nothing_ready_is_stuck(self) -> None:
        """With nothing running or parked, whatever an open assignment holds is ready."""
        if not self.running:
            for assignment in self.assignments.values():
                if assignment.state is AssignmentState.OPEN and assignment.buffered and not assignment.parked:
                    assert assignment.ready


TestSchedulerMachine = SchedulerMachine.TestCase
SchedulerMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=60)
