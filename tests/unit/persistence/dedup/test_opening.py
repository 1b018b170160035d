"""Partitions that come and go while what was seen of them is looked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

import pytest

from aioparallel.clients.aiokafka import AiokafkaClient, log_reading
from aioparallel.config.policies import Deduplicate
from aioparallel.group.client import Fetched, Span
from aioparallel.persistence.dedup.chunks import ChunkKey, encode_chunk, encode_key
from aioparallel.persistence.dedup.deduplication import Deduplication
from aioparallel.persistence.dedup.identities import ONCE, RecordIdentity
from aioparallel.persistence.dedup.seen_topic import Restore, SeenTopic
from aioparallel.records.errors import UnreadableBatch
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import Fault, InMemoryClient, InMemoryProducer, Request
from tests.support.memory.consuming import GROUP, T0, committed
from tests.support.memory.deduplicating import SEEN, Handled, broker_of, consuming, deduplicating, remembered, write
from tests.support.waiting import until


async def test_an_answer_for_a_session_that_went_replaces_nothing() -> None:
    """The committed offset is told late, to an owner that has lost the partition since and has it again: what that has
    seen meanwhile stays known, and is saved before it is committed."""
    broker, handled = broker_of(), Handled()
    write(broker, *range(50))
    broker.faults.script(Request.OFFSET_FETCH, Fault(response_delay=5.0))
    async with consuming(deduplicating(broker, commit_interval=20), handled) as consumer:
        await until(lambda: bool(consumer.stats().partitions) if consumer._engine else False)
        member = next(iter(broker.group(GROUP).members))
        broker.expire_session(GROUP, member, asyncio.get_running_loop().time())
        await until(lambda: len(handled.sources) == 50)
        deduplication = next(one for one in consumer._extensions.all if isinstance(one, Deduplication))
        (memory,) = [one.memory for one in deduplication._partitions.values()]
        await asyncio.sleep(10)
        assert [one.memory for one in deduplication._partitions.values()] == [memory]
        await until(lambda: committed(broker) == 50)
        assert remembered(broker) == set(range(50))


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

    client.read = reading  # type: ignore[method-assign, assignment]
    await topic.read({first: one}, 5)
    assert asked == [500]
    chunk(first, 1_200)
    await topic.read({first: one, second: other}, 5)
    assert asked == [500, 0]
    assert (len(one.chunks), len(other.chunks)) == (601, 600)
    await client.stop(1)


async def test_a_batch_that_is_named_is_passed_over() -> None:
    """What was seen there is forgotten, and all else is known; where it is not named nothing is taken for all."""
    broker = broker_of()
    client, producer = InMemoryClient(broker, GROUP), InMemoryProducer(broker)
    await client.start(5)
    place = TopicPartition("t", 0)
    for number in range(5):
        value = encode_chunk({RecordIdentity("raw", 0, number, 0, ""): ONCE})
        broker.append(SEEN, value, key=encode_key(ChunkKey(GROUP, place, f"a-{number}", number)), partition=0)
    broker.corrupt(TopicPartition(SEEN, 0), 1, 3)
    with pytest.raises(UnreadableBatch):
        await SeenTopic(SEEN, GROUP, client, producer).read({place: Restore()}, 5)
    restore = Restore()
    await SeenTopic(SEEN, GROUP, client, producer, [(SEEN, 0, 1)]).read({place: restore}, 5)
    assert sorted(key.number for key in restore.chunks) == [0, 3, 4]


async def test_a_reader_is_in_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be a second member of that name."""
    made: list[dict[str, object]] = []

    def consumer(**options: object) -> None:
        made.append(options)
        raise LookupError

    monkeypatch.setattr(log_reading, "AIOKafkaConsumer", consumer)
    given = {"group_instance_id": "one", "client_id": "mine", "security_protocol": "PLAINTEXT"}
    reads = AiokafkaClient("localhost:9092", "g", client_options=given).read({TopicPartition("t", 0): Span(0, 1)})
    with pytest.raises(LookupError):
        await anext(reads)
    assert made[0]["group_id"] is None
    assert (made[0]["client_id"], made[0]["security_protocol"]) == ("mine", "PLAINTEXT")


async def test_a_session_opens_when_it_has_found_what_was_seen() -> None:
    """While the compacted topic cannot be read nothing runs; then it does, from where it was."""
    broker, handled = broker_of(), Handled()
    write(broker, *range(50))
    async with deduplicating(broker, until="end") as consumer:
        await consumer.run(handled)
    write(broker, *range(60))
    broker.faults.always(Request.FETCH, Fault(is_response_lost=True))
    async with consuming(deduplicating(broker), handled) as consumer:
        await until(lambda: bool(consumer.stats().partitions) if consumer._engine else False)
        await asyncio.sleep(25)  # in virtual time: two tries
        assert consumer.stats().partitions[0].state == "opening"
        assert len(handled.sources) == 50
        broker.faults.heal()
        await until(lambda: committed(broker) == 110)
    assert sorted(handled.sources) == list(range(60))


async def test_a_partition_that_goes_while_it_is_restored_is_nobodys() -> None:
    """And comes back as new."""
    broker, handled = broker_of(), Handled()
    write(broker, *range(50))
    async with deduplicating(broker, until="end") as consumer:
        await consumer.run(handled)
    write(broker, *range(60))
    broker.faults.always(Request.FETCH, Fault(request_delay=1.0))
    async with asyncio.timeout(600), deduplicating(broker) as consumer:
        running = asyncio.create_task(consumer.run(handled))
        await until(lambda: bool(consumer.stats().partitions) if consumer._engine else False)
        member = next(iter(broker.group(GROUP).members))
        broker.expire_session(GROUP, member, asyncio.get_running_loop().time())
        await until(lambda: consumer.stats().partitions and consumer.stats().partitions[0].epoch == 2)
        broker.faults.heal()
        await until(lambda: committed(broker) == 110)
        consumer.stop()
        await running
        assert consumer.stats().copies == 50
    assert sorted(handled.sources) == list(range(60))


async def test_a_damaged_part_is_passed(caplog: pytest.LogCaptureFixture) -> None:
    """And said: copies of what it held are handled again. Records of others in the topic are theirs."""
    broker, handled = broker_of(), Handled()
    mine = encode_chunk({RecordIdentity("raw", 0, 1, 0, ""): ONCE})
    broker.append(SEEN, mine, key=encode_key(ChunkKey(GROUP, T0, "a-0", 0)), partition=0)
    broker.append(SEEN, b"not a chunk", key=encode_key(ChunkKey(GROUP, T0, "a-1", 1)), partition=0)
    others = encode_chunk({RecordIdentity("raw", 0, 2, 0, ""): ONCE})
    broker.append(SEEN, others, key=encode_key(ChunkKey("another group", T0, "a-0", 0)), partition=0)
    broker.append(SEEN, b"anything", key=b"strange", partition=0)
    write(broker, 1, 2, 3)
    async with deduplicating(broker, until="end") as consumer:
        await consumer.run(handled)
    assert sorted(handled.sources) == [2, 3]
    assert "cannot be read" in caplog.text


async def test_chunks_count_by_their_numbers_and_those_that_went_do_not() -> None:
    """However they stand in the log; the newest are remembered, and a chunk without a value is none."""
    broker, handled = broker_of(), Handled()

    def chunk(number: int, *sources: int) -> None:
        value = encode_chunk({RecordIdentity("raw", 0, source, 0, ""): ONCE for source in sources}) if sources else None
        broker.append(SEEN, value, key=encode_key(ChunkKey(GROUP, T0, f"a-{number}", number)), partition=0)

    chunk(2, 1, 2)
    chunk(1, 3, 4)
    chunk(3, 5, 6)
    chunk(3)
    write(broker, 1, 2, 3, 4, 5, 6)
    policy = Deduplicate(SEEN, remember=2)
    async with deduplicating(broker, deduplicate=policy, until="end") as consumer:
        await consumer.run(handled)
        assert consumer.stats().copies == 2
    assert sorted(handled.sources) == [3, 4, 5, 6]


async def test_what_goes_takes_its_memory_with_it() -> None:
    """Nothing is kept of a partition that is not held."""
    broker, handled = broker_of(3), Handled()
    for partition in range(3):
        write(broker, *range(100 * partition, 100 * partition + 10), partition=partition)
    async with asyncio.timeout(600), deduplicating(broker) as consumer:
        running = asyncio.create_task(consumer.run(handled))
        await until(lambda: all(committed(broker, TopicPartition("t", number)) == 10 for number in range(3)))
        deduplication = next(one for one in consumer._extensions.all if isinstance(one, Deduplication))
        assert len(deduplication._partitions) == 3
        consumer.stop()
        await running
        assert (deduplication._partitions, deduplication._restores) == ({}, {})


async def test_a_new_partition_is_known_by_the_positions_beside() -> None:
    """With "latest" the records are handled that precede its assignment."""
    broker, handled = broker_of(), Handled()
    write(broker, *range(10))
    async with consuming(deduplicating(broker, auto_offset_reset="latest"), handled):
        await until(lambda: committed(broker) == 10)
        broker.add_partitions(SEEN, 2)
        broker.add_partitions("t", 2)
        write(broker, *range(10, 20), partition=1)
        await until(lambda: sorted(handled.sources) == list(range(10, 20)))
