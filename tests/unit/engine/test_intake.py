"""Intake: how the buffer is shared out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioparallel.engine.scheduler import Scheduler
from aioparallel.group.intake import Intake
from aioparallel.group.sessions import Session
from aioparallel.options import Options, Ordering
from aioparallel.records import Record, TopicPartition


def sessions_of(count: int) -> list[Session]:
    made = [Session(TopicPartition("t", i)) for i in range(count)]
    for session in made:
        session.opened = True
    return made


def feed(scheduler: Scheduler, session: Session, count: int, *, keys: int, size: int = 10) -> None:
    first = session.ledger.position
    records = [
        Record("t", session.partition.partition, first + i, b"%d" % (i % keys), bytes(size)) for i in range(count)
    ]
    session.ledger.register([record.offset for record in records], first + count)
    scheduler.admit(session, records)


def test_everybody_gets_the_same_share() -> None:
    """With nothing buffered each partition may bring its part of max_buffered."""
    sessions = sessions_of(8)
    plan = Intake(Options(max_buffered=8_000), Scheduler()).plan(sessions)
    assert plan.quotas == {session.partition: 1_000 for session in sessions}
    assert plan.state == "fetching"


def test_a_partition_full_of_one_key_borrows_all_but_the_reserves() -> None:
    """At its share with one lane ready: it may read on, up to what the others must keep."""
    scheduler, sessions = Scheduler(), sessions_of(8)
    feed(scheduler, sessions[0], 1_000, keys=1)
    plan = Intake(Options(max_buffered=8_000), scheduler).plan(sessions)
    lent = plan.quotas[sessions[0].partition]
    assert 6_000 < lent <= 7_000 - 7 * 62
    assert sum(plan.quotas.values()) <= 7_000


def test_under_partition_ordering_nobody_borrows() -> None:
    """There a partition has one lane whatever is read ahead."""
    options = Options(max_buffered=8_000, ordering=Ordering.PARTITION)
    scheduler, sessions = Scheduler(options.ordering), sessions_of(8)
    feed(scheduler, sessions[0], 1_000, keys=1)
    assert sessions[0].partition not in Intake(options, scheduler).plan(sessions).quotas


def test_a_trickle_may_fetch_while_a_hot_partition_has_enough() -> None:
    """Much ready elsewhere does not keep a partition with nothing from fetching; the hot one waits."""
    scheduler, sessions = Scheduler(), sessions_of(2)
    feed(scheduler, sessions[0], 4_000, keys=4_000)
    plan = Intake(Options(max_buffered=10_000), scheduler).plan(sessions)
    assert list(plan.quotas) == [sessions[1].partition]


def test_a_hot_partition_that_may_not_read_on_is_full() -> None:
    """The others still have their reserve to fetch into, but the state says what holds the hot partition back."""
    scheduler, sessions = Scheduler(), sessions_of(8)
    feed(scheduler, sessions[0], 9_500, keys=1)
    plan = Intake(Options(max_buffered=10_000), scheduler).plan(sessions)
    assert sessions[0].partition not in plan.quotas
    assert set(plan.quotas.values()) == {500 // 7}
    assert plan.state == "full: max_buffered reached"


def test_full_says_so() -> None:
    """At max_buffered, or max_buffered_bytes, nothing is fetched and the state names the bound."""
    scheduler, sessions = Scheduler(), sessions_of(1)
    feed(scheduler, sessions[0], 100, keys=1, size=1_000)
    assert Intake(Options(max_buffered=100), scheduler).plan(sessions).state == "full: max_buffered reached"
    plan = Intake(Options(max_buffered_bytes=100_000), scheduler).plan(sessions)
    assert (plan.quotas, plan.state) == ({}, "full: max_buffered_bytes reached")


def test_the_next_plan_never_waits_for_more_starts_than_records_wait() -> None:
    """Full by bytes with a few large records: their starts are enough to plan anew."""
    scheduler, sessions = Scheduler(), sessions_of(1)
    feed(scheduler, sessions[0], 6, keys=6, size=1_000)
    plan = Intake(Options(max_buffered_bytes=6_000), scheduler).plan(sessions)
    assert (plan.state, plan.starts_until_next) == ("full: max_buffered_bytes reached", 3)


def test_bytes_limit_the_records() -> None:
    """Once the mean size is known, no more records are asked for than bytes are free."""
    scheduler, sessions = Scheduler(), sessions_of(4)
    intake = Intake(Options(max_buffered_bytes=1_000_000), scheduler)
    intake.saw(100, 100 * 10_000)
    plan = intake.plan(sessions)
    assert sum(plan.quotas.values()) <= 100


def test_finished_partitions_still_count_against_the_bound() -> None:
    """What a partition at its target still holds is part of what is buffered (I4)."""
    scheduler, sessions = Scheduler(), sessions_of(2)
    feed(scheduler, sessions[0], 90, keys=1)
    sessions[0].target = 90
    plan = Intake(Options(max_buffered=100), scheduler).plan(sessions)
    assert plan.quotas == {sessions[1].partition: 10}


@given(
    max_buffered=st.integers(1, 500),
    concurrency=st.integers(1, 2_000),
    held=st.lists(st.tuples(st.integers(0, 120), st.integers(1, 40)), min_size=1, max_size=12),
)
def test_quotas_never_pass_what_is_free(max_buffered: int, concurrency: int, held: list[tuple[int, int]]) -> None:
    """Whatever is buffered where: quotas are positive and together fit (I4); someone may fetch if nothing is ready."""
    scheduler, sessions = Scheduler(), sessions_of(len(held))
    for session, (count, keys) in zip(sessions, held, strict=True):
        if count:
            feed(scheduler, session, count, keys=keys)
    free = max_buffered - scheduler.buffered
    plan = Intake(Options(max_buffered=max_buffered, max_concurrency=concurrency), scheduler).plan(sessions)
    assert all(quota > 0 for quota in plan.quotas.values())
    assert sum(plan.quotas.values()) <= max(0, free)
    assert bool(plan.quotas) or free <= 0 or scheduler.ready
