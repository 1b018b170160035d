"""Topics of several priorities on Apache Kafka: shares, an urgent record, a rebalance, the names of groups."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from aioparallel import Record
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.queues.priority import PriorityConsumer, PriorityProducer, priority_group, priority_of, priority_topic
from aioparallel.records.record import TopicPartition
from aioparallel.testing import LocalKafka
from tests.support.kafka.filling import Message, fill
from tests.support.waiting import until

pytestmark = pytest.mark.real

PRIORITIES = 3


async def make(kafka: LocalKafka, topic: str, count: int) -> None:
    """Its topics, with so many records each."""
    for priority in range(PRIORITIES):
        name = priority_topic(topic, priority)
        await kafka.create_topic(name, 4)
        if count:
            fill(kafka.bootstrap_servers, name, [Message(b"%d" % n, b"%d" % n) for n in range(count)])


def consumer(kafka: LocalKafka, topic: str, max_concurrency: int) -> PriorityConsumer[bytes, bytes]:
    """Of all priorities, in groups of the topic's name."""
    return PriorityConsumer(
        topic,
        priorities=PRIORITIES,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=topic,
        max_concurrency=max_concurrency,
    )


class Backlogs:
    """Handlers hold until records of every priority wait in the buffer. So whatever starts was chosen among all of
    them, however late a fetch is: of what a priority has not read yet the others rightly take the part."""

    def __init__(self, one: PriorityConsumer[bytes, bytes], low: int, high: int) -> None:
        self._consumer = one
        self._low = low  # more than start while handlers hold
        self._high = high
        self._waiting: Counter[int] = Counter()  # at least so many: by the last look, less what has started since
        self._looking = asyncio.Lock()

    async def started(self, priority: int) -> None:
        """One of its records has. Returns while there is enough of all of them."""
        self._waiting[priority] -= 1
        if not self._all_have(self._low):
            async with self._looking:
                if not self._all_have(self._low):
                    await until(self._refilled, what=lambda: f"a backlog of each: {self._waiting}")

    def _refilled(self) -> bool:
        self._waiting = Counter()
        for partition in self._consumer.stats().partitions:
            self._waiting[priority_of(partition.topic)] += partition.buffered
        return self._all_have(self._high)

    def _all_have(self, records: int) -> bool:
        return all(self._waiting[priority] >= records for priority in range(PRIORITIES))


async def test_shares_and_commits(local_kafka: LocalKafka) -> None:
    """While all have a backlog their shares are exponential within 5 %; each group commits its own topics."""
    topic, count, places = "shares", 15_000, 70
    await make(local_kafka, topic, count)
    handled: Counter[int] = Counter()
    shares: list[Counter[int]] = []

    async with consumer(local_kafka, topic, max_concurrency=places) as one:
        backlogs = Backlogs(one, low=2 * places, high=500)

        async def work(record: Record) -> None:
            if len(shares) < 2:
                await backlogs.started(priority_of(record))
            await asyncio.sleep(0.002)
            handled[priority_of(record)] += 1
            if handled.total() in (1_000, 22_000):
                shares.append(Counter(handled))

        running = asyncio.create_task(one.run(work))
        await until(lambda: handled.total() == PRIORITIES * count)
        one.stop()
        await running
    before, after = shares
    among = after - before
    for priority in range(PRIORITIES):
        assert among[priority] == pytest.approx(among.total() * 2**priority / 7, rel=0.05)
    async with Admin(local_kafka.bootstrap_servers) as admin:
        for priority in range(PRIORITIES):
            found = await admin.committed(priority_group(topic, priority))
            assert {place.topic for place in found} == {priority_topic(topic, priority)}
            assert sum(one.offset for one in found.values()) == count


async def test_an_urgent_record_under_a_flood(local_kafka: LocalKafka) -> None:
    """It starts while thousands wait that were read before it, though all places are taken."""
    topic = "flood"
    await make(local_kafka, topic, 0)
    fill(local_kafka.bootstrap_servers, "flood-0", [Message(None, b"x") for _ in range(20_000)])
    seen: list[int] = []

    async def work(record: Record) -> None:
        seen.append(priority_of(record))
        await asyncio.sleep(0.01)

    async with (
        PriorityProducer(priorities=PRIORITIES, bootstrap_servers=local_kafka.bootstrap_servers) as producer,
        consumer(local_kafka, topic, max_concurrency=10) as one,
    ):
        running = asyncio.create_task(one.run(work))
        await until(lambda: one.health().ready and one.stats().buffered > 300)
        place = await producer.send(topic, b"now", priority=2, key=b"k", partition=3)
        assert (place.topic, place.partition) == ("flood-2", 3)
        await until(lambda: 2 in seen)
        assert one.stats().buffered > 300
        one.stop(drain=False)
        await running


async def test_a_second_member_takes_its_part_of_each_group(local_kafka: LocalKafka) -> None:
    """While both work, and none of the records is lost or handled twice."""
    topic, count = "members", 6_000
    await make(local_kafka, topic, count)
    handled: Counter[tuple[str, int, int]] = Counter()
    both: list[set[TopicPartition]] = [set(), set()]

    async def run(number: int) -> None:
        async def work(record: Record) -> None:
            await asyncio.sleep(0.005)
            handled[record.topic, record.partition, record.offset] += 1
            both[number].add(record.topic_partition)
            if len(handled) == PRIORITIES * count:
                for each in members:
                    each.stop()

        await members[number].run(work)

    async with consumer(local_kafka, topic, max_concurrency=20) as first:
        members = [first]
        running = [asyncio.create_task(run(0))]
        await until(lambda: len(handled) > 500)
        async with consumer(local_kafka, topic, max_concurrency=20) as second:
            members.append(second)
            running.append(asyncio.create_task(run(1)))
            await asyncio.gather(*running)
    assert set(handled.values()) == {1}
    assert len(handled) == PRIORITIES * count
    assert len({place.topic for place in both[1]}) == PRIORITIES
