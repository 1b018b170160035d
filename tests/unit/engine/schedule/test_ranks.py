"""Whose turn it is where some sources are more urgent than others."""

from __future__ import annotations

import math
from collections import Counter, deque
from functools import partial

import pytest

from aioparallel.config.handling import Ordering
from aioparallel.engine.schedule.fairness import WeightedFairQueue
from aioparallel.engine.schedule.scheduler import Scheduler
from aioparallel.handlers.batches import Batch, Batching, Call, batches
from aioparallel.handlers.stack import Batchings
from aioparallel.records.record import Record, TopicPartition
from tests.support.engine.taking import take
from tests.unit.engine.schedule.test_scheduler import feed, make_assignment


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Course:
    """A scheduler with ranks, whose handlers end in the order in which they began; or of whom some last longer."""

    def __init__(self, weights: list[float], slots: int, ageing: float = math.inf, partitions: int = 1) -> None:
        self.clock = Clock()
        turns = partial(WeightedFairQueue, weights=weights, ageing=ageing, clock=self.clock)
        self.scheduler = Scheduler(Ordering.UNORDERED, slots=slots, turns=turns)
        self.slots = slots
        self.assignments = {}
        self.running: deque[Record] = deque()
        self.started: Counter[int] = Counter()
        for rank in range(len(weights)):
            for partition in range(partitions):
                assignment = make_assignment(100 * rank + partition)
                assignment.rank = rank
                self.assignments[rank, partition] = assignment

    def feed(self, rank: int, count: int, partition: int = 0) -> None:
        feed(self.scheduler, self.assignments[rank, partition], *[None] * count)

    def fill(self) -> None:
        """Start as many as there are slots for."""
        while len(self.running) < self.slots and (record := take(self.scheduler)) is not None:
            self.running.append(record)
            self.started[self.rank_of(record)] += 1

    def rank_of(self, record: Record) -> int:
        return record.partition // 100

    def end_one(self) -> None:
        self.scheduler.succeed(self.running.popleft())
        self.fill()


@pytest.mark.parametrize("slots", [1, 3, 10, 100, 1_000])
@pytest.mark.parametrize("weights", [[1.0, 2.0, 4.0], [1.0, 1.0], [1.0, 9.5], [1.0, 2.0, 4.0, 8.0, 16.0]])
def test_starts_go_by_weight(slots: int, weights: list[float]) -> None:
    """Whatever the number of slots, while all have something ready."""
    course = Course(weights, slots, partitions=3)
    for rank in range(len(weights)):
        for partition in range(3):
            course.feed(rank, 4_000, partition)
    course.fill()
    before = Counter(course.started)
    for _ in range(3_000):
        course.end_one()
    course.started.subtract(before)
    for rank, weight in enumerate(weights):
        assert course.started[rank] == pytest.approx(3_000 * weight / sum(weights), rel=0.02, abs=3)


def test_what_one_does_not_use_the_others_do() -> None:
    """And who was away for long has saved nothing up, nor does it owe anything."""
    course = Course([1.0, 2.0, 4.0], 10)
    course.feed(0, 50_000)
    course.fill()
    for _ in range(10_000):
        course.end_one()
    assert course.started == {0: 10_010}
    course.feed(2, 700)
    course.started.clear()
    for _ in range(500):
        course.end_one()
    assert course.started[2] == pytest.approx(400, abs=4)
    for _ in range(5_000):
        course.end_one()
    course.feed(2, 700)
    course.feed(1, 700)
    course.started.clear()
    for _ in range(700):
        course.end_one()
    assert course.started[1] == pytest.approx(200, abs=3)
    assert course.started[2] == pytest.approx(400, abs=6)


def test_an_urgent_record_has_the_next_turn() -> None:
    """A flood that was read already does not stand before it."""
    course = Course([1.0, 2.0, 4.0], 10)
    course.feed(0, 10_000)
    course.fill()
    for _ in range(100):
        course.end_one()
    course.feed(2, 1)
    course.end_one()
    assert course.rank_of(course.running[-1]) == 2


def test_slow_handlers_of_one_rank_do_not_take_all_slots() -> None:
    """While another has something ready that rank has no more than its part, one beyond it at most."""
    course = Course([1.0, 2.0, 4.0], 70)
    course.feed(0, 5_000)
    course.feed(2, 5_000)
    quick: list[Record] = []
    for _ in range(4_000):
        while course.scheduler.counters.in_flight < 70:
            record = take(course.scheduler)
            assert record is not None
            if course.rank_of(record) == 2:
                quick.append(record)
        course.scheduler.succeed(quick.pop(0))
    assert len(course.assignments[0, 0].in_flight) <= 70 // 5 + 70 // 16 + 2


def test_ageing_gives_a_turn_to_who_has_waited_too_long() -> None:
    """Whatever it weighs; without it, it would wait for long."""
    for ageing, expected in ((10.0, range(9, 13)), (math.inf, range(1, 3))):
        course = Course([1.0, 100_000.0], 1, ageing)
        course.feed(0, 100)
        course.feed(1, 50_000)
        course.fill()
        for _ in range(1_000):
            course.clock.now += 0.1
            course.end_one()
        assert course.started[0] in expected


def test_long_handlers_keep_their_shares() -> None:
    """Where places become free so rarely that all wait for longer than ``ageing``, shares are by weight all the same;
    and what is urgent has one of the next two places."""
    course = Course([1.0, 2.0, 4.0], 10, ageing=10.0)
    for rank in range(3):
        course.feed(rank, 1_000)
    course.fill()
    course.started.clear()
    for _ in range(700):
        course.clock.now += 30.0
        course.end_one()
    for rank, expected in enumerate((100, 200, 400)):
        assert course.started[rank] == pytest.approx(expected, rel=0.05)
    lone = Course([1.0, 2.0, 4.0], 10, ageing=10.0)
    lone.feed(0, 1_000)
    lone.fill()
    for _ in range(50):
        lone.feed(2, 1)
        lone.started.clear()
        for _ in range(2):
            lone.clock.now += 30.0
            lone.end_one()
        assert lone.started[2] == 1


def test_a_rank_that_was_held_back_has_saved_nothing_up() -> None:
    """Its handlers hang for long, and what they hold is its part of the slots; when they go on, the others start as
    before."""
    course = Course([1.0, 2.0, 4.0], 70)
    course.feed(0, 40_000)
    course.feed(2, 40_000)
    hanging: list[Record] = []
    quick: deque[Record] = deque()
    for _ in range(20_000):
        while course.scheduler.counters.in_flight < 70:
            record = take(course.scheduler)
            assert record is not None
            (hanging if course.rank_of(record) == 2 else quick).append(record)
        course.scheduler.succeed(quick.popleft())
    for record in (*hanging, *quick):
        course.scheduler.succeed(record)
    started: Counter[int] = Counter()
    for _ in range(1_000):
        record = take(course.scheduler)
        assert record is not None
        started[course.rank_of(record)] += 1
        course.scheduler.succeed(record)
    assert started[0] == pytest.approx(1_000 / 5, abs=70 / 4 + 5)


def test_what_ranks_hold_is_counted_in_time_by_slots() -> None:
    """Not by partitions: those that hold nothing are not looked at."""
    course = Course([1.0, 2.0], 10, partitions=90)
    for rank in range(2):
        for partition in range(90):
            course.feed(rank, 4, partition)
    course.fill()
    turns = course.scheduler._turns
    assert isinstance(turns, WeightedFairQueue)
    for _ in range(300):
        course.end_one()
        assert sum(len(rank.sources) for rank in turns._ranks) <= 2 * 10 + 1


def test_a_call_of_several_partitions_takes_one_slot() -> None:
    """Though each of them, and what gathers them, holds it."""

    async def save(batch: Batch[Record]) -> None:
        pass

    async def run(call: Call) -> None:
        pass

    turns = partial(WeightedFairQueue, weights=[1.0, 2.0], ageing=math.inf, clock=Clock())
    terms = [batches(save, size=20, linger=0) for _ in range(2)]
    by_topic = {f"t{rank}": Batching(one, run) for rank, one in enumerate(terms)}
    scheduler = Scheduler(slots=30, turns=turns, batchings=Batchings(by_topic, None))
    for rank in range(2):
        for partition in range(20):
            assignment = make_assignment(100 * rank + partition)
            assignment.rank = rank
            assignment.ledger.register(range(10), 10)
            scheduler.admit(assignment, [Record(f"t{rank}", partition, n, None, b"v") for n in range(10)])
    calls: list[object] = []
    while len(calls) < 18:
        taken = scheduler.run_ready(lambda record: None, lambda record, ended: None, [None])
        if taken is not None:
            calls.append(taken[0])
    ranked = scheduler._turns
    assert isinstance(ranked, WeightedFairQueue)
    ranked._line_up([])
    for one in ranked._ranks:
        one.may_hold = 0
    ranked._count()
    assert sum(one.held for one in ranked._ranks) == 18


def test_ranks_come_and_go() -> None:
    """Sources that are dropped while others have their turn are out of the line, and leave nothing behind."""
    course = Course([1.0, 2.0, 4.0], 10, partitions=4)
    for rank in range(3):
        for partition in range(4):
            course.feed(rank, 100, partition)
    course.fill()
    for assignment in [one for (rank, _), one in course.assignments.items() if rank == 2]:
        course.scheduler.drop(assignment)
    for record in list(course.running):
        course.running.popleft()
        course.scheduler.succeed(record)
    course.started.clear()
    course.fill()
    while course.running:
        course.end_one()
    assert set(course.started) == {0, 1}
    assert not course.scheduler.has_ready
    turns = course.scheduler._turns
    assert isinstance(turns, WeightedFairQueue)
    turns._count()
    assert not any(rank.sources for rank in turns._ranks)


def test_the_order_of_a_key_holds_within_a_rank() -> None:
    """One record of each key at a time, whoever else has turns."""
    clock = Clock()
    turns = partial(WeightedFairQueue, weights=[1.0, 2.0], ageing=math.inf, clock=clock)
    scheduler = Scheduler(Ordering.KEY, slots=4, turns=turns)
    assignments = [make_assignment(0), make_assignment(1)]
    for rank, assignment in enumerate(assignments):
        assignment.rank = rank
        feed(scheduler, assignment, *[b"a", b"b"] * 20)
    assert assignments[0].name == TopicPartition("t", 0)
    last: dict[tuple[int, bytes | None], int] = {}
    count = 0
    while scheduler.has_ready:
        taken = []
        while (record := take(scheduler)) is not None:
            taken.append(record)
        assert len({(record.partition, record.key) for record in taken}) == len(taken)
        for record in taken:
            place = record.partition, record.key
            assert last.get(place, -1) < record.offset
            last[place] = record.offset
            scheduler.succeed(record)
            count += 1
    assert count == 80
