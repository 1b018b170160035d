"""Intake: how the buffer is shared out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioparallel.config.handling import Ordering
from aioparallel.config.options import Options
from aioparallel.engine.schedule.scheduler import Scheduler
from aioparallel.group.assignment import Assignment
from aioparallel.group.intake import Intake
from aioparallel.records.record import Record, TopicPartition


def assignments_of(count: int) -> list[Assignment]:
    made = [Assignment(TopicPartition("t", i)) for i in range(count)]
    for assignment in made:
        assignment.opened = True
    return made


def feed(scheduler: Scheduler, assignment: Assignment, count: int, *, keys: int, size: int = 10) -> None:
    first = assignment.ledger.position
    records = [
        Record("t", assignment.partition.partition, first + i, b"%d" % (i % keys), bytes(size)) for i in range(count)
    ]
    assignment.ledger.register([record.offset for record in records], first + count)
    scheduler.admit(assignment, records)


def test_everybody_gets_the_same_share() -> None:
    """With nothing buffered each partition may bring its part of max_buffered, all but the last of the room."""
    assignments = assignments_of(8)
    plan = Intake(Options(max_buffered=8_000), Scheduler()).plan(assignments)
    assert plan.quotas == {assignment.partition: 7_500 // 8 for assignment in assignments}
    assert plan.most == 7_500
    assert plan.state == "fetching"


def test_a_partition_full_of_one_key_borrows_all_but_the_reserves() -> None:
    """At its share with one lane ready: it may read on, up to what the others must keep."""
    scheduler, assignments = Scheduler(), assignments_of(8)
    feed(scheduler, assignments[0], 1_000, keys=1)
    plan = Intake(Options(max_buffered=8_000), scheduler).plan(assignments)
    lent = plan.quotas[assignments[0].partition]
    assert 6_000 < lent <= 7_000 - 7 * 62
    assert sum(plan.quotas.values()) <= 7_000


def test_under_partition_ordering_nobody_borrows() -> None:
    """There a partition has one lane whatever is read ahead."""
    options = Options(max_buffered=8_000, ordering=Ordering.PARTITION)
    scheduler, assignments = Scheduler(options.ordering), assignments_of(8)
    feed(scheduler, assignments[0], 1_000, keys=1)
    assert assignments[0].partition not in Intake(options, scheduler).plan(assignments).quotas


def test_a_trickle_may_fetch_while_a_hot_partition_has_enough() -> None:
    """Much ready elsewhere does not keep a partition with nothing from fetching; the hot one waits."""
    scheduler, assignments = Scheduler(), assignments_of(2)
    feed(scheduler, assignments[0], 4_000, keys=4_000)
    plan = Intake(Options(max_buffered=10_000), scheduler).plan(assignments)
    assert list(plan.quotas) == [assignments[1].partition]


def test_a_hot_partition_that_may_not_read_on_is_full() -> None:
    """The others still have their reserve to fetch into, but the state says what holds the hot partition back."""
    scheduler, assignments = Scheduler(), assignments_of(8)
    feed(scheduler, assignments[0], 9_000, keys=1)
    plan = Intake(Options(max_buffered=10_000), scheduler).plan(assignments)
    assert assignments[0].partition not in plan.quotas
    assert set(plan.quotas.values()) == {(1_000 - 625) // 7}
    assert plan.state == "full: max_buffered reached"


def test_full_says_so() -> None:
    """At max_buffered, or max_buffered_bytes, nothing is fetched and the state names the bound."""
    scheduler, assignments = Scheduler(), assignments_of(1)
    feed(scheduler, assignments[0], 100, keys=1, size=1_000)
    assert Intake(Options(max_buffered=100), scheduler).plan(assignments).state == "full: max_buffered reached"
    plan = Intake(Options(max_buffered_bytes=100_000), scheduler).plan(assignments)
    assert (plan.quotas, plan.state) == ({}, "full: max_buffered_bytes reached")


def test_the_next_plan_never_waits_for_more_starts_than_records_wait() -> None:
    """Full by bytes with a few large records: their starts are enough to plan anew."""
    scheduler, assignments = Scheduler(), assignments_of(1)
    feed(scheduler, assignments[0], 6, keys=6, size=1_000)
    plan = Intake(Options(max_buffered_bytes=6_000), scheduler).plan(assignments)
    assert (plan.state, plan.starts_until_next) == ("full: max_buffered_bytes reached", 3)


def test_bytes_limit_the_records() -> None:
    """Once the mean size is known, no more records are asked for than bytes are free."""
    scheduler, assignments = Scheduler(), assignments_of(4)
    intake = Intake(Options(max_buffered_bytes=1_000_000), scheduler)
    intake.saw(100, 100 * 10_000)
    plan = intake.plan(assignments)
    assert sum(plan.quotas.values()) <= 100


def test_finished_partitions_still_count_against_the_bound() -> None:
    """What a partition at its target still holds is part of what is buffered (I4)."""
    scheduler, assignments = Scheduler(), assignments_of(2)
    feed(scheduler, assignments[0], 90, keys=1)
    assignments[0].target = 90
    plan = Intake(Options(max_buffered=100), scheduler).plan(assignments)
    assert plan.quotas == {assignments[1].partition: 4}


def test_the_last_of_the_room_is_for_those_with_nothing() -> None:
    """One partition has read on as far as it may: those that come later bring a record each, it brings none."""
    scheduler, assignments = Scheduler(), assignments_of(4)
    intake = Intake(Options(max_buffered=100), scheduler)
    feed(scheduler, assignments[0], intake.plan(assignments[:1]).most, keys=1)
    feed(scheduler, assignments[1], 1, keys=1)
    plan = intake.plan(assignments)
    assert plan.quotas == {assignments[2].partition: 1, assignments[3].partition: 1}
    assert (plan.most, plan.starts_until_next, plan.state) == (5, 1, "full: max_buffered reached")


def test_intake_says_why_nobody_reads() -> None:
    """Nothing assigned, or still opening, or everything read that was to be read."""
    intake, assignments = Intake(Options(), Scheduler()), assignments_of(2)
    assert intake.plan([]).state == "nothing assigned"
    for assignment in assignments:
        assignment.target = 0
    assert intake.plan(assignments).state == "at the end"
    assignments[0].opened = False
    assert intake.plan(assignments).state == "opening"


@given(
    max_buffered=st.integers(1, 500),
    concurrency=st.integers(1, 2_000),
    held=st.lists(st.tuples(st.integers(0, 120), st.integers(1, 40)), min_size=1, max_size=12),
)
def test_quotas_never_pass_what_is_free(max_buffered: int, concurrency: int, held: list[tuple[int, int]]) -> None:
    """Whatever is buffered where: quotas are positive, the fetch as a whole fits (I4), and nobody runs dry unseen: who
    may bring nothing is looked at again before it has started all it has, or after starts that are sure to come."""
    scheduler, assignments = Scheduler(), assignments_of(len(held))
    for assignment, (count, keys) in zip(assignments, held, strict=True):
        if count:
            feed(scheduler, assignment, count, keys=keys)
    free = max_buffered - scheduler.buffered
    plan = Intake(Options(max_buffered=max_buffered, max_concurrency=concurrency), scheduler).plan(assignments)
    assert all(quota > 0 for quota in plan.quotas.values())
    assert 0 <= plan.most <= max(0, free)
    without = [assignment for assignment in assignments if assignment.partition not in plan.quotas]
    if free > 0:
        assert all(assignment.buffered for assignment in without)
    if without:
        dry = min(assignment.buffered for assignment in without)
        assert plan.starts_until_next <= max(1, dry, sum(1 for assignment in without if assignment.ready))
