"""Parking: half of the bound is reserved for the assignments in equal parts, the rest is for whoever comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from hypothesis import given
from hypothesis import strategies as st

from aioparallel.config.handling import Ordering
from aioparallel.engine.outcomes.retries import Retries
from aioparallel.engine.schedule.parking import Parking
from aioparallel.engine.schedule.scheduler import Scheduler
from aioparallel.engine.sources import NO_CEILING, Source
from aioparallel.group.assignment import Assignment
from aioparallel.group.pauses import Pauses
from aioparallel.records.record import Record, TopicPartition
from tests.support.engine.taking import take


class Heard:
    """Parking over some assignments, with what it said."""

    def __init__(self, bound: int, assignments: int) -> None:
        self.assignments = [Assignment(TopicPartition("t", number)) for number in range(assignments)]
        self.changes: list[tuple[int, bool]] = []
        self.parking = Parking(bound, self.assignments, self._note)
        for assignment in self.assignments:
            self.parking.join(assignment)

    def _note(self, source: Source) -> None:
        assert isinstance(source, Assignment)
        self.changes.append((source.partition.partition, source.full))

    def park(self, number: int, count: int = 1) -> None:
        for _ in range(count):
            record = Record("t", number, 0)
            record._source = self.assignments[number]
            self.parking.enter(record)

    def leave(self, number: int, count: int = 1) -> None:
        for _ in range(count):
            self.parking.leave(next(iter(self.assignments[number].parked)))

    @property
    def full(self) -> list[int]:
        return [assignment.partition.partition for assignment in self.assignments if assignment.full]


def scheduler_with(
    max_parked: int, *records: int, on_full: Callable[[Source], None] = lambda _: None
) -> tuple[Scheduler, list[Assignment]]:
    """A scheduler without order, and assignments with so many records each."""
    scheduler = Scheduler(Ordering.UNORDERED, max_parked=max_parked, on_full=on_full)
    return scheduler, [admit(scheduler, partition, count) for partition, count in enumerate(records)]


def admit(scheduler: Scheduler, partition: int, count: int) -> Assignment:
    """A new assignment with so many records."""
    assignment = Assignment(TopicPartition("t", partition))
    assignment.opened = True
    offsets = list(range(count))
    assignment.ledger.register(offsets, count)
    scheduler.admit(assignment, [Record("t", partition, offset) for offset in offsets])
    return assignment


def start(scheduler: Scheduler) -> Record:
    record = take(scheduler)
    assert record is not None
    return record


def test_one_partition_alone_has_the_whole_bound() -> None:
    """Nothing is reserved for others."""
    heard = Heard(bound=100, assignments=1)
    heard.park(0, 99)
    assert heard.full == []
    heard.park(0)
    assert heard.full == [0]
    assert heard.changes == [(0, True)]


def test_what_is_reserved_for_others_is_left_to_them() -> None:
    """One of five has the free half and its own tenth; the others go on to theirs."""
    heard = Heard(bound=100, assignments=5)
    heard.park(0, 59)
    assert heard.full == []
    heard.park(0)
    assert heard.full == [0]
    heard.park(1, 9)
    assert heard.full == [0]
    heard.park(1)
    assert heard.full == [0, 1]


def test_several_greedy_ones_are_full_at_the_same_moment() -> None:
    """All that are beyond their reserve, not only the one that parked last: each could start a pool's worth."""
    heard = Heard(bound=100, assignments=5)
    heard.park(0, 35)
    heard.park(1, 34)
    assert heard.full == []
    heard.park(0)
    assert heard.full == [0, 1]


def test_at_the_bound_all_are_full() -> None:
    """Even those with nothing parked."""
    heard = Heard(bound=8, assignments=3)
    heard.park(0, 8)
    assert heard.full == [0, 1, 2]


def test_a_full_one_goes_on_an_eighth_below() -> None:
    """Not to and fro with each record: from 100 on it is full, until 87 are left."""
    heard = Heard(bound=100, assignments=1)
    heard.park(0, 100)
    heard.leave(0, 12)
    assert heard.full == [0]
    heard.leave(0)
    assert heard.full == []
    assert heard.changes == [(0, True), (0, False)]


def test_others_go_on_when_the_sick_one_recovers() -> None:
    """An assignment that is full with nothing of its own parked is freed by the others' leaving."""
    heard = Heard(bound=8, assignments=2)
    heard.park(0, 8)
    heard.leave(0, 2)
    assert heard.full == [0]
    heard.leave(0, 3)
    assert heard.full == []


def test_forgetting_a_assignment_frees_its_places_and_the_others() -> None:
    """When a partition is given away, what it had parked counts no more; nobody stays full because of it."""
    heard = Heard(bound=8, assignments=2)
    heard.park(0, 8)
    gone = heard.assignments.pop(0)
    heard.parking.forget(gone)
    assert (heard.parking.count, len(gone.parked), gone.full) == (0, 0, False)
    assert heard.full == []


def test_a_full_assignment_starts_retries_only() -> None:
    """What was parked and is due starts; new records wait until it is full no more, and lose nothing."""
    scheduler, [assignment] = scheduler_with(2, 3)
    first, second = start(scheduler), start(scheduler)
    scheduler.park(first)
    scheduler.park(second)
    assert assignment.full
    assert take(scheduler) is None
    scheduler.unpark(second)
    assert take(scheduler) is second
    third = take(scheduler)
    assert (third and third.offset) == 2, "one parked of two: new ones start again"


def test_a_retry_above_the_ceiling_waits() -> None:
    """In a full assignment a retry starts, but not one above what the offset map can say; it counts as parked."""
    scheduler, [assignment] = scheduler_with(2, 2)
    first, second = start(scheduler), start(scheduler)
    scheduler.park(first)
    scheduler.park(second)
    scheduler.set_ceiling(assignment, 0)
    scheduler.unpark(second)
    assert take(scheduler) is None
    assert (scheduler.ready, scheduler.parked) == (0, 2)
    scheduler.unpark(first)
    assert take(scheduler) is first
    assert take(scheduler) is None
    scheduler.set_ceiling(assignment, NO_CEILING)
    assert take(scheduler) is second


def test_on_full_hears_each_change() -> None:
    """Once when an assignment becomes full, once when it does no more."""
    heard: list[bool] = []
    scheduler, [assignment] = scheduler_with(1, 2, on_full=lambda one: heard.append(one.full))
    record = start(scheduler)
    scheduler.park(record)
    scheduler.drop(assignment)
    assert heard == [True]
    assert not assignment.full


def test_a_assignment_that_comes_at_the_bound_is_full_at_once() -> None:
    """Regression: it started a whole pool's worth before its first failure, and so did each one after it (I4)."""
    heard: list[tuple[object, bool]] = []
    scheduler, _ = scheduler_with(1, 1, on_full=lambda one: heard.append((one.name, one.full)))
    failed = start(scheduler)
    scheduler.park(failed)
    late = admit(scheduler, 1, 5)
    assert take(scheduler) is None
    scheduler.unpark(failed)
    assert take(scheduler) is failed
    scheduler.succeed(failed)
    assert (late.name, False) in heard, "it goes on"
    assert take(scheduler) is not None


def test_assignments_come_back_in_the_order_in_which_they_came() -> None:
    """A simulation takes the same turns each time: those that were full go on in the order in which they came,
    behind the four whose retries kept them in the line, wherever objects lie in memory."""
    scheduler, assignments = scheduler_with(4, *[2] * 40)
    first = [start(scheduler) for _ in range(4)]
    for record in first:
        scheduler.park(record)
    assert take(scheduler) is None
    assert all(assignment.full for assignment in assignments)
    for record in first:
        scheduler.unpark(record)
    for record in first:
        assert take(scheduler) is record
        scheduler.succeed(record)
    assert [start(scheduler).partition for _ in range(40)] == [*range(4, 40), *range(4)]


@given(
    bound=st.integers(1, 40),
    assignments=st.integers(1, 4),
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(-6, 6)), max_size=60),
)
def test_full_means_no_room_and_is_said_once(bound: int, assignments: int, steps: list[tuple[int, int]]) -> None:
    """After any parking and leaving: at the bound all are full, nobody is full without reason, and each change is
    heard exactly once."""
    heard = Heard(bound, assignments)
    for number, change in steps:
        one = number % assignments
        heard.park(one, max(0, change))
        heard.leave(one, min(max(0, -change), len(heard.assignments[one].parked)))
        count = sum(len(assignment.parked) for assignment in heard.assignments)
        assert heard.parking.count == count
        reserve = bound // 2 // assignments
        claimed = sum(max(len(assignment.parked), reserve) for assignment in heard.assignments)
        for assignment in heard.assignments:
            assert assignment.full or count < bound
            assert assignment.full or claimed < bound or len(assignment.parked) < reserve
            reason = count >= bound * 7 / 8 or (claimed >= bound * 7 / 8 and len(assignment.parked) >= reserve * 7 / 8)
            assert reason or not assignment.full
    last = dict(heard.changes)
    assert {number for number, full in last.items() if full} == set(heard.full)
    for number in range(assignments):
        said = [full for one, full in heard.changes if one == number]
        assert said == [index % 2 == 0 for index in range(len(said))]


async def test_what_is_forgotten_with_its_partition_takes_nobody_along() -> None:
    """Thousands of records that waited for hours go with their partition; those of another one run again in time."""
    scheduler, (gone, kept) = scheduler_with(100_000, 3_000, 3)
    retries = Retries(scheduler, lambda: None)
    started = [start(scheduler) for _ in range(3_003)]
    mine = [record for record in started if record._source is kept]
    for record in mine[:2]:
        retries.park(record, 10.0)
    for record in started:
        if record._source is gone:
            retries.park(record, 100_000.0)
    scheduler.drop(gone)
    retries.park(mine[2], 10.0)
    assert len(retries._queue) == 3
    await asyncio.sleep(9.9)
    assert take(scheduler) is None
    await asyncio.sleep(0.2)
    assert {start(scheduler) for _ in mine} == set(mine)
    retries.close()


def test_what_is_skipped_of_a_paused_assignment_does_not_count_for_the_others() -> None:
    """The parked records of a paused one count half; those that have gone count neither for nor against anybody."""
    heard = Heard(bound=100, assignments=2)
    heard.park(0, 60)
    heard.assignments[0].paused = True
    heard.parking.follow_pauses([heard.assignments[0]])
    heard.leave(0, 60)
    heard.park(1, 75)
    assert heard.full == [1]


def test_a_pause_of_many_partitions_is_one_step() -> None:
    """Each of them looks at all: with 500 partitions, a step for each would block the event loop for a third of a
    second."""
    scheduler, assignments = scheduler_with(1_000, *[2] * 50)
    looks = list[int]()
    look = scheduler._parking._look

    def counted(sources: Collection[Source]) -> None:
        looks.append(len(sources))
        look(sources)

    scheduler._parking._look = counted  # type: ignore[method-assign]
    for paused in (True, False):
        scheduler.pauses_of = lambda name, paused=paused: (paused, None)  # type: ignore[misc]
        scheduler.follow_pauses(assignments)
        assert all(assignment.paused is paused for assignment in assignments)
        assert sum(looks) == 50
        looks.clear()


def test_records_that_stay_paused_are_not_looked_at_again_in_a_turn() -> None:
    """A resume of one of many keys makes only its record ready."""
    scheduler = Scheduler(Ordering.KEY)
    assignment = Assignment(TopicPartition("t", 0))
    assignment.opened = True
    keys = [b"%d" % number for number in range(100)]
    pauses = Pauses()
    pauses.pause_keys("t", keys)
    scheduler.pauses_of = pauses.of
    assignment.ledger.register(list(range(100)), 100)
    scheduler.admit(assignment, [Record("t", 0, offset, key=key) for offset, key in enumerate(keys)])
    assert take(scheduler) is None
    assert len(assignment.held) == 100
    pauses.resume_keys("t", [b"42"])
    scheduler.follow_pauses([assignment])
    assert [record.offset for record in assignment.ready] == [42]
    assert start(scheduler).offset == 42
    assert len(assignment.held) == 99
