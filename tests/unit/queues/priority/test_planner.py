"""What a poll asks of each priority, and what it leaves room for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from aioparallel.config.options import Options
from aioparallel.engine.schedule.scheduler import Scheduler
from aioparallel.group.assignment import Assignment
from aioparallel.queues.priority.budget import PollBudget, exponential
from aioparallel.queues.priority.client import PriorityClient, _used
from aioparallel.queues.priority.names import PriorityTopics
from aioparallel.queues.priority.planner import PollPlanner
from aioparallel.records.record import Record, TopicPartition
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient
from tests.support.engine.taking import take


class Polls:
    """A partition of each priority that has always more, and handlers that hang."""

    def __init__(self, priorities: int, max_poll_records: int, **options: int) -> None:
        weights = exponential(priorities)
        self.options = Options(**options)  # type: ignore[arg-type]
        self.scheduler = Scheduler()
        self.budget = PollBudget(weights, max_poll_records)
        client = PriorityClient([InMemoryClient(InMemoryBroker(), "g")], PriorityTopics(["t"], priorities), self.budget)
        self.planner = PollPlanner(
            self.options, self.scheduler, lambda: (0, 0), client=client, budget=self.budget, weights=weights
        )
        self.assignments = []
        for rank in range(priorities):
            assignment = Assignment(TopicPartition(f"t-{rank}", 0))
            assignment.rank, assignment.opened = rank, True
            self.assignments.append(assignment)
        self.limits: Sequence[int | None] = ()
        client.next_poll = self._note  # type: ignore[method-assign]

    def _note(self, limits: Sequence[int | None]) -> None:
        self.limits = limits

    def handle_all(self) -> None:
        """They hang no more for a moment."""
        while (record := take(self.scheduler)) is not None:
            self.scheduler.succeed(record)

    def poll(self, most: Sequence[int], size: int = 1) -> list[int]:
        """Admit what a poll may bring, of each at most so many records."""
        plan = self.planner.plan(self.assignments)
        brought = []
        for assignment, there in zip(self.assignments, most, strict=True):
            count = min(there, plan.quotas.get(assignment.partition, 0), self.limits[assignment.rank] or 0)
            first = assignment.ledger.position
            records = [Record(assignment.partition.topic, 0, first + n, None, bytes(size)) for n in range(count)]
            if records:
                assignment.ledger.register([record.offset for record in records], first + count)
                self.scheduler.admit(assignment, records)
            self.planner.saw(count, count * size, assignment.rank)
            brought.append(count)
        if any(brought):
            parts = self.budget.parts
            self.budget.polled(
                [
                    max(count, part) if limit is None or 0 < limit <= count else count
                    for count, limit, part in zip(brought, self.limits, parts, strict=True)
                ]
            )
        return brought


@pytest.mark.parametrize("priorities", [3, 5, 10])
def test_bursts_do_not_add_up_beyond_the_buffer(priorities: int) -> None:
    """What the burst of one has brought may be there still when another bursts: that takes what is left."""
    records = 4 * 2**priorities
    polls = Polls(priorities, records, max_buffered=2 * records)
    middle = range(1, priorities - 1)
    flood = 10 * records

    def of(lowest: int, between: int, highest: int) -> list[int]:
        return [lowest, *[between] * len(middle), highest]

    for _ in range(20):
        polls.handle_all()
        polls.poll(of(flood, 0, 0))
    assert polls.assignments[0].buffered > polls.planner._shares[0]
    for _ in range(2 * records):
        polls.poll(of(0, 1, 0))
    for _ in range(50):
        polls.poll(of(flood, 1, flood))
        assert polls.scheduler.buffered <= 2 * records
    assert polls.assignments[-1].buffered >= polls.planner._shares[-1] * 0.9


def test_each_priority_has_a_mean_size_of_its_own() -> None:
    """Small ones of the flood say nothing of how large the urgent ones are."""
    polls = Polls(3, 500, max_buffered_bytes=7_000_000)
    for _ in range(10):
        polls.poll([10_000, 0, 0], size=100)
    polls.poll([0, 0, 3], size=200_000)
    for _ in range(3):
        polls.poll([0, 0, 10_000], size=200_000)
    assert polls.assignments[2].buffered_bytes <= 4_000_000


def test_one_that_is_full_waits_for_nothing() -> None:
    """Though another may bring records."""
    polls = Polls(3, 7, max_buffered=14)
    polls.poll([100, 0, 0])
    polls.poll([100, 0, 0])
    plan = polls.planner.plan(polls.assignments)
    assert plan.state == "fetching"
    assert [plan.is_full(rank) for rank in range(3)] == [True, False, False]


@pytest.mark.parametrize(
    ("brought", "asked", "limit", "used"),
    [
        ((0, False), 287, 287, 0),
        ((250, False), 287, 287, 250),
        ((250, True), 287, 287, 287),  # a client that takes 250 of a partition at once
        ((40, False), 40, 40, 287),  # no room for more
        ((716, False), 716, 716, 716),  # a burst
        ((0, False), 0, None, 287),  # it has enough
        ((0, False), 0, 0, 0),  # none of its partitions is here
    ],
)
def test_what_counts_as_used(brought: tuple[int, bool], asked: int, limit: int | None, used: int) -> None:
    """Of a part of 287 records: all of it where there is more."""
    assert _used(brought, asked, limit, 287) == used
