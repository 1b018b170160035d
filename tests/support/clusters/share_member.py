"""A member of a share group as the contract tests drive it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from aioparallel.group.share_client import Acknowledged, AcknowledgeType, Acquired, ShareClient, Unreadable
from aioparallel.records.record import Record, TopicPartition
from tests.support.waiting import until

__all__ = ["Answer", "Delivery", "ShareMember"]


class Delivery(NamedTuple):
    """A record that was acquired."""

    partition: TopicPartition
    record: Record
    times: int
    """How often it was delivered, with this time."""
    locked_until: float

    @property
    def value(self) -> bytes | None:
        return self.record.value


class Answer:
    """What became of one acknowledgement."""

    def __init__(self, delivery: Delivery, kind: AcknowledgeType) -> None:
        self.delivery = delivery
        self.kind = kind
        self.outcomes: list[tuple[Acknowledged, float]] = []

    def ended(self, outcome: Acknowledged, until: float) -> None:
        self.outcomes.append((outcome, until))

    @property
    def outcome(self) -> Acknowledged | None:
        assert len(self.outcomes) <= 1, "answered twice"
        return self.outcomes[0][0] if self.outcomes else None


class ShareMember:
    """Keeps what it is assigned, and what it acquires. Everything is checked against the interface."""

    def __init__(self, client: ShareClient, deadline: float) -> None:
        self.client = client
        self.deadline = deadline
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.hears: Callable[[Collection[TopicPartition]], None] = self._assign
        self.deliveries: list[Delivery] = []
        self.unreadable: list[tuple[TopicPartition, Unreadable]] = []
        self.answers: list[Answer] = []

    async def join(self, topics: Collection[str], partitions: Collection[TopicPartition] | None = None) -> None:
        """Start, subscribe, and wait for an assignment, of exactly these partitions if they are given."""
        await self.client.start(self.deadline)
        self.client.subscribe(topics, lambda partitions: self.hears(partitions))
        if partitions is None:
            await until(lambda: self.assigned, self.deadline, "an assignment")
        else:
            await self.has(partitions)

    def _assign(self, partitions: Collection[TopicPartition]) -> None:
        assert set(partitions) != self.assigned, "called without a change"
        self.assigned = frozenset(partitions)

    async def has(self, partitions: Collection[TopicPartition]) -> None:
        """Wait until it fetches from exactly these."""
        wanted = set(partitions)
        await until(lambda: self.assigned == wanted, self.deadline, lambda: f"{wanted}; assigned: {self.assigned}")

    async def fetch(self, most: int = 100) -> list[Delivery]:
        """One fetch within the deadline."""
        async with asyncio.timeout(self.deadline):
            return self.keep(await self.client.fetch(most))

    def keep(self, acquired: Iterable[Acquired]) -> list[Delivery]:
        """Check and keep what a fetch has returned."""
        found: list[Delivery] = []
        for partition, records, counts, locked_until, unreadable in acquired:
            assert records or unreadable, "nothing of this partition"
            assert len(records) == len(counts)
            offsets = [record.offset for record in records]
            assert offsets == sorted(set(offsets)), "not ascending"
            assert all((record.topic, record.partition) == partition for record in records)
            assert all(count >= 1 for count in counts)
            self.unreadable += [(partition, one) for one in unreadable]
            found += [
                Delivery(partition, record, count, locked_until) for record, count in zip(records, counts, strict=True)
            ]
        self.deliveries += found
        return found

    async def take(self, count: int, most: int = 100) -> list[Delivery]:
        """Fetch until there are so many new records."""
        found: list[Delivery] = []
        while len(found) < count:
            found += await self.fetch(most)
        assert len(found) == count, f"{len(found)} records instead of {count}"
        return found

    def acknowledge(self, deliveries: Iterable[Delivery], kind: AcknowledgeType) -> list[Answer]:
        """Acknowledge each, without waiting."""
        answers = [Answer(delivery, kind) for delivery in deliveries]
        for answer in answers:
            delivery = answer.delivery
            self.client.acknowledge(delivery.partition, delivery.record.offset, kind, answer.ended)
            assert not answer.outcomes, "answered before acknowledge() returned"
        self.answers += answers
        return answers

    async def settle(self, deliveries: Iterable[Delivery], kind: AcknowledgeType) -> list[Acknowledged]:
        """Acknowledge each, and wait for all answers."""
        return await self.answered(self.acknowledge(deliveries, kind))

    async def answered(self, answers: Collection[Answer]) -> list[Acknowledged]:
        """Wait for the answers."""
        await until(lambda: all(answer.outcomes for answer in answers), self.deadline, "all answers")
        return [outcome for answer in answers if (outcome := answer.outcome) is not None]

    async def stop(self) -> None:
        """Stop the client. All acknowledgements are answered then."""
        await self.client.stop(self.deadline)
        assert all(answer.outcome is not None for answer in self.answers)
