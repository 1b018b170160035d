"""What users of stream processors have reported of states and transactions, tried on this library.
``docs/testing.md`` names the threads."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place

from aioparallel import Deduplicate, FailurePolicy, Outgoing, Record, RetryPolicy, TopicPartition, Transactions
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.records.errors import StateLogTruncated
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.integration.test_field_reports import plain, unique
from tests.support.children.keeping_state import sums
from tests.support.kafka.consuming import consume, consumer_of, consuming
from tests.support.kafka.filling import Message, fill, fill_numbered
from tests.support.kafka.reading import committed, read_all
from tests.support.waiting import SLACK, until

pytestmark = pytest.mark.real

COMPACT = {"cleanup.policy": "compact"}


async def with_state(kafka: LocalKafka, make: TopicMaker) -> str:
    """A topic, and those of its state."""
    topic = await make()
    for name in (f"{topic}-state", f"{topic}-snapshots"):
        await kafka.create_topic(name, 1, COMPACT)
    return topic


async def nothing(_: Record) -> None:
    """The state alone counts."""


@pytest.mark.parametrize("together", [False, True], ids=["alone", "in transactions"])
async def test_a_state_whose_log_ends_with_aborted_transactions(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, together: bool
) -> None:
    """No record stands at the end of its topics, only what was aborted, and markers: a restart has its state at
    once."""
    servers, topic = local_kafka.bootstrap_servers, await with_state(local_kafka, kafka_topic)
    fill_numbered(servers, topic, 100, keys=4)
    given: dict[str, Any] = {"group_id": unique(), "state": sums(topic)}
    if together:
        given["commits"] = Transactions()
    await consume(consumer_of(servers, topic, until="end", **given), nothing)
    for name in (f"{topic}-state", f"{topic}-snapshots"):
        fill(servers, name, [Message(b"strange", b"%d" % n) for n in range(20)], aborted=True)
    consumer = consumer_of(servers, topic, **given)
    expected = {b"k%d" % key: sum(range(key, 100, 4)) for key in range(4)}
    async with consuming(consumer, nothing):
        took = await until(lambda: consumer.health().joined, what=lambda: str(consumer.health()))
        assert took < SLACK
        assert consumer.states(TopicPartition(topic, 0)) == expected


async def test_retention_takes_records_that_a_state_is_made_of(
    local_kafka: LocalKafka, kafka_topic: TopicMaker
) -> None:
    """The next start ends with an error that says so, at once: it neither waits for what is gone nor goes on with less
    than the state."""
    servers, topic = local_kafka.bootstrap_servers, await with_state(local_kafka, kafka_topic)
    fill_numbered(servers, topic, 100, keys=4)
    given: dict[str, Any] = {"group_id": unique(), "state": sums(topic, snapshot_after=10**9)}
    await consume(consumer_of(servers, topic, until="end", **given), nothing)
    async with Admin(servers) as admin:
        await admin.delete_records({TopicPartition(topic, 0): 50})
    began = asyncio.get_running_loop().time()
    with pytest.raises(StateLogTruncated):
        await consume(consumer_of(servers, topic, **given), nothing)
    assert asyncio.get_running_loop().time() - began < SLACK


async def test_a_copy_of_what_has_failed_is_not_left_out(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Each record is there twice and each fails once in its handler, the process ends in between: each is done once."""
    servers, topic, group = local_kafka.bootstrap_servers, await kafka_topic(), unique()
    seen = f"{topic}-seen"
    await local_kafka.create_topic(seen, 1, COMPACT)
    source = [("src-topic", b"raw"), ("src-partition", b"0")]
    both = [Message(b"%d" % n, b"%d" % n, [*source, ("src-offset", b"%d" % n)]) for n in range(40)] * 2
    fill(servers, topic, both)
    done: Counter[bytes] = Counter()

    async def fails(_: Record) -> None:
        raise ValueError("the first time")

    async def handle(record: Record) -> None:
        done[record.value or b""] += 1

    def one(**options: Any) -> Any:
        return consumer_of(servers, topic, group_id=group, deduplicate=Deduplicate(seen), **options)

    hour = FailurePolicy(retry=RetryPolicy(first_delay=3600))
    first = one(failures=hour)
    async with consuming(first, fails, drain=False):
        await until(lambda: first.stats().parked == 40, what=lambda: str(first.stats()))
    await consume(one(until="end"), handle)
    assert done == Counter({b"%d" % n: 1 for n in range(40)})


async def test_offsets_in_an_open_transaction_are_waited_for(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Somebody who has died has committed offsets of the group in a transaction that is open: who comes next starts at
    none of the two positions before it is known which one holds, and then at that one."""
    servers, topic, target, group = local_kafka.bootstrap_servers, await kafka_topic(), await kafka_topic(), unique()
    fill(servers, topic, plain(20))
    async with consuming(consumer_of(servers, topic, group_id=group), nothing):

        async def taken() -> bool:
            found = (await committed(servers, group)).get(0)
            return found is not None and found.offset == 20

        await until(taken)
    fill(servers, topic, plain(20))
    producer = Producer({"bootstrap.servers": servers, "transactional.id": unique(), "log_level": 0})
    reader = Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0})
    await asyncio.to_thread(producer.init_transactions, 30)
    producer.begin_transaction()
    # A group of its own kind commits without a member: its metadata names none.
    await asyncio.to_thread(
        producer.send_offsets_to_transaction, [Place(topic, 0, 40)], reader.consumer_group_metadata(), 30
    )
    copied: list[int] = []

    async def copy(record: Record) -> Outgoing:
        copied.append(record.offset)
        return Outgoing(target, record.value, record.key)

    consumer = consumer_of(servers, topic, group_id=group, commits=Transactions())
    async with consuming(consumer, copy):
        await until(lambda: consumer.stats().intake == "opening", what=lambda: str(consumer.stats()))
        await asyncio.to_thread(producer.commit_transaction, 30)
        fill(servers, topic, plain(5))
        await until(lambda: len(copied) >= 5, what=lambda: str(consumer.health()))
    assert sorted(copied) == list(range(40, 45))
    assert len(await read_all(servers, target, is_committed=True)) == 5
    await asyncio.to_thread(reader.close)
