"""Partitions that come and go while what was seen of them is looked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

import pytest

from aioparallel.clients.aiokafka.settings import ConsumerSettings
from aioparallel.deduplication.chunks import ChunkKey, encode_chunk, encode_key
from aioparallel.deduplication.companion import Deduplication
from aioparallel.deduplication.identities import ONCE, RecordIdentity
from aioparallel.deduplication.seen_topic import Restore, SeenTopic
from aioparallel.group.client import Fetched, Span
from aioparallel.records import TopicPartition
from aioparallel.testing.memory import Fault, InMemoryClient, InMemoryProducer, Request
from tests.unit.engine.memory import GROUP, committed, until

from .test_deduplicate import Handled
from .world import SEEN, broker_of, deduplicating, remembered, write


async def test_an_answer_for_a_session_that_went_replaces_nothing() -> None:
    """The committed offset is told late, to an owner that has lost the partition since and has it again: what that has
    seen meanwhile stays known, and is saved before it is committed."""
    broker, handled = broker_of(), Handled()
    write(broker, *range(50))
    broker.faults.script(Request.OFFSET_FETCH, Fault(response_delay=5.0))
    async with asyncio.timeout(600), deduplicating(broker, commit_interval=20) as consumer:
        running = asyncio.create_task(consumer.run(handled))
        await until(lambda: bool(consumer.stats().partitions) if consumer._engine else False)
        member = next(iter(broker.group(GROUP).members))
        broker.expire_session(GROUP, member, asyncio.get_running_loop().time())
        await until(lambda: len(handled.sources) == 50)
        assert consumer._engine is not None
        companion = consumer._engine._companion
        assert isinstance(companion, Deduplication)
        (memory,) = companion._memories.values()
        await asyncio.sleep(10)
        assert list(companion._memories.values()) == [memory]
        await until(lambda: committed(broker) == 50)
        assert remembered(broker) == set(range(50))
        consumer.stop()
        await running


async def test_a_read_that_was_cut_short_goes_on_where_it_was() -> None:
    """Each partition misses nothing, though another of its number, of another topic, was read less far."""
    broker = broker_of()
    client, producer = InMemoryClient(broker, GROUP), InMemoryProducer(broker)
    await client.start(5)
    topic = SeenTopic(SEEN, GROUP, client, producer)
    first, second = TopicPartition("t", 0), TopicPartition("u", 0)

    def chunk(partition: TopicPartition, number: int) -> None:
        value = encode_chunk({RecordIdentity("raw", 0, number, 0, ""): ONCE})
        broker.append(SEEN, value, key=encode_key(ChunkKey(GROUP, partition, f"a-{number}", number)), partition=0)

    for number in range(1_200):
        chunk(second if number % 2 else first, number)
    one, other = Restore(), Restore()
    broker.faults.script(Request.FETCH, Fault(), Fault(is_response_lost=True))
    with pytest.raises(TimeoutError):
        await topic.read({first: one}, 5)
    assert one.position == 500
    assert len(one.chunks) == 250
    asked: list[int] = []
    read = client.read

    def reading(spans: Mapping[TopicPartition, Span]) -> AsyncGenerator[Fetched, None]:
        asked.extend(span.start for span in spans.values())
        return read(spans)

    client.read = reading  # type: ignore[method-assign]
    await topic.read({first: one}, 5)
    assert asked == [500]
    chunk(first, 1_200)
    await topic.read({first: one, second: other}, 5)
    assert asked == [500, 0]
    assert (len(one.chunks), len(other.chunks)) == (601, 600)
    await client.stop(1)


def test_what_is_of_a_group_is_not_given_to_a_reader() -> None:
    """It would be a second member of that name."""
    given = {"group_instance_id": "one", "client_id": "mine", "security_protocol": "PLAINTEXT"}
    settings = ConsumerSettings(
        "localhost:9092", "g", session_timeout=30, heartbeat_interval=3, rebalance_timeout=60, client_options=given
    )
    options = settings.reading_options()
    assert "group_instance_id" not in options
    assert (options["client_id"], options["security_protocol"]) == ("mine", "PLAINTEXT")
