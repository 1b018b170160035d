"""What users of other consumers have reported of groups whose partitions the brokers assign (KIP-848), tried on this
one. ``docs/testing.md`` names the threads."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from aioparallel import ParallelConsumer, Record
from aioparallel.config.options import OptionFields
from aioparallel.testing import LocalKafka
from aioparallel.testing.event_log import EventKind, EventTail
from aioparallel.testing.processes import Child
from tests.integration.test_field_reports import plain, unique
from tests.integration.test_new_partitions import add_partitions
from tests.support.children.job import Job
from tests.support.kafka.asking import asking
from tests.support.kafka.consuming import consuming
from tests.support.kafka.filling import fill
from tests.support.kafka.reading import committed
from tests.support.kafka.topics import make_anew
from tests.support.waiting import SLACK, until

pytestmark = pytest.mark.real

OWN_TIMES = pytest.mark.classic_protocol("its group is of the new one anyway, and has times of its own")

PARTITIONS = 4
RARE_METADATA = 300_000
"""Milliseconds between two metadata updates without a cause, as by default."""


def member(
    kafka: LocalKafka, topics: str | Sequence[str] | re.Pattern[str], group: str, **options: Unpack[OptionFields]
) -> ParallelConsumer[Any, Any]:
    """One of a group of the new protocol, unless said otherwise, that commits at once."""
    quick: OptionFields = {
        "group_protocol": "consumer",
        "commit_interval": 0.1,
        "drain_timeout": 2,
        "client_options": {"metadata_max_age_ms": RARE_METADATA},
    }
    quick.update(options)
    return ParallelConsumer(topics, bootstrap_servers=kafka.bootstrap_servers, group_id=group, **quick)


def count(consumer: ParallelConsumer[Any, Any]) -> int:
    """How many partitions it has."""
    return len(consumer.stats().partitions)


async def delete_group(kafka: LocalKafka, group: str) -> None:
    """Delete it as soon as it has no members."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})

    def delete() -> bool:
        try:
            admin.delete_consumer_groups([group])[group].result(30)
        except KafkaException:
            return False
        return True

    await until(lambda: asyncio.to_thread(delete), what=f"the end of group {group}")


class Suspended:
    """A member in a process of its own that stands still past its session."""

    def __init__(self, kafka: LocalKafka, topic: str, group: str, directory: Path) -> None:
        options = {"group_protocol": "consumer", "commit_interval": 0.1}
        self._job = Job(bootstrap_servers=kafka.bootstrap_servers, topic=topic, group_id=group, options=options)
        self._directory = directory
        self._tail = EventTail(directory / "consumer.events")
        self.ended: Counter[tuple[int, int]] = Counter()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Child]:
        """The process. Its session is two seconds."""
        times = {"consumer.session.timeout.ms": "2000", "consumer.heartbeat.interval.ms": "100"}
        async with asking(self._job.bootstrap_servers) as asked:
            await asked.configure(self._job.group_id, times)
        async with self._job.child(self._directory) as child:
            yield child
            await child.kill()

    def look(self) -> int:
        """How many records it has run."""
        self.ended.update((one.partition, one.offset) for one in self._tail.new() if one.kind is EventKind.ENDED)
        return self.ended.total()


@OWN_TIMES
async def test_a_suspended_process_comes_back_to_partitions_of_another(quick_kafka: LocalKafka, tmp_path: Path) -> None:
    """Another member has them meanwhile. Then they share, nothing that was committed runs again, and no position goes
    back. (What the brokers had sent to the suspended one runs there as well: it has not heard yet.)"""
    servers, topic, group = quick_kafka.bootstrap_servers, unique(), unique()
    await quick_kafka.create_topic(topic, PARTITIONS)
    fill(servers, topic, plain(40, PARTITIONS))
    suspended = Suspended(quick_kafka, topic, group, tmp_path)
    ran: Counter[tuple[int, int]] = Counter()

    async def handle(record: Record) -> None:
        ran[record.partition, record.offset] += 1

    async def is_committed(records: int) -> bool:
        return sum(one.offset for one in (await committed(servers, group)).values()) == records

    async with suspended.running() as child:
        await until(lambda: suspended.look() == 40)
        await until(partial(is_committed, 40))
        child.pause()
        fill(servers, topic, plain(40, PARTITIONS))
        second = member(quick_kafka, topic, group)
        async with consuming(second, handle):
            await until(lambda: len(ran) == 40, what=lambda: str(second.stats()))
            await second.commit_now()
            child.resume()
            await until(lambda: count(second) == PARTITIONS // 2, what=lambda: str(second.stats()))
            fill(servers, topic, plain(40, PARTITIONS))
            await until(lambda: suspended.look() and len({*ran, *suspended.ended}) == 120)
            await until(partial(is_committed, 120))
    both = ran + suspended.ended
    assert {both[number, offset] for number in range(PARTITIONS) for offset in range(10)} == {1}


@OWN_TIMES
async def test_the_group_of_a_suspended_process_is_deleted(quick_kafka: LocalKafka, tmp_path: Path) -> None:
    """It joins again, and begins as one that has never committed."""
    servers, topic, group = quick_kafka.bootstrap_servers, unique(), unique()
    await quick_kafka.create_topic(topic, 2)
    fill(servers, topic, plain(10, 2))
    suspended = Suspended(quick_kafka, topic, group, tmp_path)
    async with suspended.running() as child:
        await until(lambda: suspended.look() == 10)
        child.pause()
        await delete_group(quick_kafka, group)
        child.resume()
        fill(servers, topic, plain(10, 2))
        await until(lambda: suspended.look() and len(suspended.ended) == 20, what=lambda: str(suspended.ended))


async def test_new_partitions_are_read_although_metadata_is_old(quick_kafka: LocalKafka) -> None:
    """The coordinator assigns them before this client hears of them from a metadata update, which is minutes away; and
    to those members only that read their topic."""
    servers, topics, group = quick_kafka.bootstrap_servers, [unique() for _ in range(3)], unique()
    ran: Counter[tuple[str, int]] = Counter()

    async def handle(record: Record) -> None:
        ran[record.topic, record.partition] += 1

    for topic in topics:
        await quick_kafka.create_topic(topic)
    members = [member(quick_kafka, topic, group) for topic in topics]
    async with AsyncExitStack() as stack:
        for one in members:
            await stack.enter_async_context(consuming(one, handle))
        await until(lambda: [count(one) for one in members] == [1, 1, 1])
        await add_partitions(quick_kafka, topics[2], 3)
        fill(servers, topics[2], plain(30, 3))
        took = await until(lambda: ran.total() == 30, what=lambda: str([one.stats() for one in members]))
        assert took < SLACK
        assert [count(one) for one in members] == [1, 1, 3]
    assert ran == {(topics[2], number): 10 for number in range(3)}


async def test_a_topic_is_recreated_at_once(quick_kafka: LocalKafka) -> None:
    """Its member is told of the new one, takes it although it has the old one's name, and reads it from its start."""
    servers, topic, group = quick_kafka.bootstrap_servers, unique(), unique()
    await quick_kafka.create_topic(topic)
    fill(servers, topic, plain(10))
    ran: Counter[tuple[int, int]] = Counter()

    async def handle(record: Record) -> None:
        ran[record.partition, record.offset] += 1

    consumer = member(quick_kafka, topic, group)
    async with consuming(consumer, handle):
        await until(lambda: len(ran) == 10)
        await make_anew(servers, topic, 3)
        ran.clear()
        fill(servers, topic, plain(15, 3))
        took = await until(lambda: len(ran) == 15, what=lambda: str(consumer.stats()))
        assert took < SLACK
    assert set(ran.values()) == {1}


async def test_one_without_partitions_waits_and_takes_over(quick_kafka: LocalKafka) -> None:
    """It is a member, is well, and has what the other one leaves at once."""
    servers, topic, group = quick_kafka.bootstrap_servers, unique(), unique()
    await quick_kafka.create_topic(topic)
    ran: list[int] = []

    async def handle(record: Record) -> None:
        ran.append(record.offset)

    first, second = (member(quick_kafka, topic, group) for _ in range(2))
    async with consuming(second, handle):
        async with consuming(first, handle):
            await until(lambda: first.health().joined and second.health().joined)
            idle = second if first.stats().partitions else first
            assert count(idle) == 0
            assert idle.health().ready
        await until(lambda: count(second) == 1, SLACK)
        fill(servers, topic, plain(10))
        await until(lambda: len(ran) == 10)


@pytest.mark.classic_protocol("it has members of both")
async def test_a_static_member_goes_back_with_another_subscription(quick_kafka: LocalKafka) -> None:
    """It is the last one of the new protocol, and returns under its id as a classic member that reads one more
    topic."""
    servers, topics, group = quick_kafka.bootstrap_servers, [unique(), unique()], unique()
    ran: Counter[str] = Counter()

    async def handle(record: Record) -> None:
        ran[record.topic] += 1

    def static(instance: str, read: Sequence[str], classic: bool) -> ParallelConsumer[Any, Any]:
        return member(
            quick_kafka,
            read,
            group,
            group_protocol="classic" if classic else "consumer",
            client_options={"group_instance_id": instance, "metadata_max_age_ms": RARE_METADATA},
        )

    for topic in topics:
        await quick_kafka.create_topic(topic, 2)
        fill(servers, topic, plain(10, 2))
    async with consuming(static("a", topics[:1], classic=True), handle):
        newer = static("b", topics[:1], classic=False)
        async with consuming(newer, handle):
            await until(lambda: count(newer) == 1 and ran[topics[0]] == 10)
        async with consuming(static("b", topics, classic=True), handle):
            await until(lambda: ran[topics[1]] == 10)
    assert ran == dict.fromkeys(topics, 10)
