"""Intake: how the buffer is shared out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioparallel.config.handling import Ordering
from aioparallel.config.options import Options
from aioparallel.engine.schedule.scheduler import Scheduler
from aioparallel.group.intake import Intake
from aioparallel.group.sessions import Session
from aioparallel.records.record import Record, TopicPartition


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
    """With nothing buffered each partition may bring its part of max_buffered, all but the last of the room."""
    sessions = sessions_of(8)
    plan = Intake(Options(max_buffered=8_000), Scheduler()).plan(sessions)
    assert plan.quotas == {session.partition: 7_500 // 8 for session in sessions}
    assert plan.most == 7_500
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
    feed(scheduler, sessions[0], 9_000, keys=1)
    plan = Intake(Options(max_buffered=10_000), scheduler).plan(sessions)
    assert sessions[0].partition not in plan.quotas
    assert set(plan.quotas.values()) == {(1_000 - 625) // 7}
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
    assert plan.quotas == {sessions[1].partition: 4}


def test_the_last_of_the_room_is_for_those_with_nothing() -> None:
    """One partition has read on as far as it may: those that come later bring a record each, it brings none."""
    scheduler, sessions = Scheduler(), sessions_of(4)
    intake = Intake(Options(max_buffered=100), scheduler)
    feed(scheduler, sessions[0], intake.plan(sessions[:1]).most, keys=1)
    feed(scheduler, sessions[1], 1, keys=1)
    plan = intake.plan(sessions)
    assert plan.quotas == {sessions[2].partition: 1, sessions[3].partition: 1}
    assert (plan.most, plan.starts_until_next, plan.state) == (5, 1, "full: max_buffered reached")


def test_intake_says_why_nobody_reads() -> None:
    """Nothing assigned, or still opening, or everything read that was to be read."""
    intake, sessions = Intake(Options(), Scheduler()), sessions_of(2)
    assert intake.plan([]).state == "nothing assigned"
    for session in sessions:
        session.target = 0
    assert intake.plan(sessions).state == "at the end"
    sessions[0].opened = False
    assert intake.plan(sessions).state == "opening"


@given(
    max_buffered=st.integers(1, 500),
    concurrency=st.integers(1, 2_000),
    held=st.lists(st.tuples(st.integers(0, 120), st.integers(1, 40)), min_size=1, max_size=12),
)
def test_quotas_never_pass_what_is_free(max_buffered: int, concurrency: int, held: list[tuple[int, int]]) -> None:
    """Whatever is buffered where: quotas are positive, the fetch as a whole fits (I4), and nobody runs dry unseen: who
    may bring nothing is looked at again before it has started all it has, or after starts that are sure to come."""
    scheduler, sessions = Scheduler(), sessions_of(len(held))
    for session, (count, keys) in zip(sessions, held, strict=True):
        if count:
            feed(scheduler, session, count, keys=keys)
    free = max_buffered - scheduler.buffered
    plan = Intake(Options(max_buffered=max_buffered, max_concurrency=concurrency), scheduler).plan(sessions)
    assert all(quota > 0 for quota in plan.quotas.values())
    assert 0 <= plan.most <= max(0, free)
    without = [session for session in sessions if session.partition not in plan.quotas]
    if free > 0:
        assert all(session.buffered for session in without)
    if without:
        dry = min(session.buffered for session in without)
        assert plan.starts_until_next <= max(1, dry, sum(1 for session in without if session.ready))
