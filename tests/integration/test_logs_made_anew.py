"""Offsets that are used again, on Apache Kafka: topics that were deleted and made anew, commits that name more than a
log holds. Unclean elections: ``tests/load/test_unclean_election.py``."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as Place
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from aioparallel import PositionOutsideLog, Record, Transactions
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Committed, Fetched
from aioparallel.group.resets import Resets
from aioparallel.offsets import encode_offset_map
from aioparallel.persistence.sql import SqlStore
from aioparallel.records.record import TopicPartition
from aioparallel.testing import LocalKafka
from aioparallel.testing.event_log import EventKind, EventTail
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.children.job import Job
from tests.support.inside import client_of
from tests.support.kafka.consuming import consume, consumer_of, consuming
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.reading import committed
from tests.support.kafka.topics import make_anew
from tests.support.waiting import until

pytestmark = pytest.mark.real


def write(servers: str, topic: str, what: str, count: int) -> None:
    """``what-0``, ``what-1``, ..."""
    fill(servers, topic, [Message(b"%d" % n, f"{what}-{n}".encode(), partition=0) for n in range(count)])


async def commit(servers: str, group: str, place: TopicPartition, offset: int, text: str) -> None:
    """As a tool does it, in the name of a group without members, without a leader epoch."""
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign([Place(*place)])
        await consumer.commit({Place(*place): (offset, text)})
    finally:
        await consumer.stop()


class Values:
    """What a handler was given."""

    def __init__(self) -> None:
        self.all: list[str] = []

    async def __call__(self, record: Record) -> None:
        """Note it."""
        self.all.append((record.value or b"").decode())

    def of(self, what: str) -> set[int]:
        """The numbers of these."""
        return {int(value.partition("-")[2]) for value in self.all if value.startswith(what)}


@pytest.mark.parametrize(
    ("written", "commits"),
    [(30, None), (150, None), (30, Transactions(interval=0.2)), (150, Transactions(interval=0.2))],
    ids=["shorter", "longer", "shorter, in transactions", "longer, in transactions"],
)
async def test_a_topic_that_is_made_anew_while_it_is_read(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, written: int, commits: Transactions | None
) -> None:
    """All of the new one is handled and committed, whatever the position in the old one was."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    write(servers, topic, "old", 50)
    values, group = Values(), f"{topic}-group"
    options = {"commit_interval": 0.2} if commits is None else {"commits": commits}
    consumer = consumer_of(servers, topic, group_id=group, auto_offset_reset="latest", **options)
    first = consumer_of(servers, topic, group_id=group, until="end")
    await consume(first, values)
    async with consuming(consumer, values):
        await until(lambda: consumer.health().joined)
        write(servers, topic, "more", 10)
        await until(lambda: values.of("more") == set(range(10)))
        await make_anew(servers, topic)
        write(servers, topic, "new", written)
        await until(lambda: values.of("new") == set(range(written)))

        async def is_committed() -> bool:
            found = await committed(servers, group)
            return 0 in found and found[0].offset == written

        await until(is_committed)
        assert consumer.stats().log_truncations == 1


@pytest.mark.slow
async def test_a_topic_that_is_made_anew_while_the_process_stands_still(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path
) -> None:
    """SIGSTOP; 50 records were handled, the new topic has 150: each of them is."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    write(servers, topic, "old", 50)
    job = Job(bootstrap_servers=servers, topic=topic, group_id=f"{topic}-group")
    tail, ended = EventTail(tmp_path / "consumer.events"), Counter[int]()

    def read() -> Counter[int]:
        ended.update(event.offset for event in tail.new() if event.kind is EventKind.ENDED)
        return ended

    async def is_committed() -> bool:
        found = await committed(servers, f"{topic}-group")
        return 0 in found and found[0].offset == 50

    async with job.child(tmp_path) as child:
        await until(is_committed)
        # Its ids are known by then.
        await until(lambda: len(read()) == 50)
        child.pause()
        await make_anew(servers, topic)
        write(servers, topic, "new", 150)
        child.resume()
        await until(lambda: len(read()) == 150 and min(ended[offset] for offset in range(50)) > 1)
        child.terminate()
        await child.ended(30)


async def test_a_topic_that_was_made_anew_below_a_store(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path
) -> None:
    """Its positions are in a database, which nobody tells of the deletion: the run ends, and stores nothing more."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'results.db'}")
    handled: list[str] = []

    async def handle(record: Record, _: AsyncConnection) -> None:
        handled.append((record.value or b"").decode())

    async def run() -> None:
        store = SqlStore(engine)
        await store.create_tables()
        consumer = consumer_of(servers, topic, group_id=f"{topic}-group", until="end", commits=store)
        await consume(consumer, store.handler(handle))

    try:
        write(servers, topic, "old", 50)
        await run()
        write(servers, topic, "more", 10)
        await run()
        assert len(handled) == 60
        await make_anew(servers, topic)
        write(servers, topic, "new", 150)
        with pytest.raises(PositionOutsideLog):
            await run()
        assert len(handled) == 60
    finally:
        await engine.dispose()


async def test_nothing_is_committed_for_the_topic_that_was_made_anew_before_it_is_read(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leader does not tell for long what is left of the log; a record of the topic before ends meanwhile, and the
    run. The next one handles all of the new topic."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    group, values = f"{topic}-group", Values()
    write(servers, topic, "old", 50)
    goes_on, is_looked_at = asyncio.Event(), asyncio.Event()

    async def handle(record: Record) -> None:
        await values(record)
        if record.value == b"old-49":
            await goes_on.wait()

    async def check(resets: Resets, assignment: Assignment, news: Fetched) -> None:
        is_looked_at.set()
        await asyncio.get_running_loop().create_future()

    def make() -> None:
        asyncio.run(make_anew(servers, topic))
        write(servers, topic, "new", 150)

    monkeypatch.setattr(Resets, "check", check)
    consumer = consumer_of(servers, topic, group_id=group, commit_interval=0.1)
    async with consuming(consumer, handle):
        await until(lambda: len(values.of("old")) == 50)
        making = threading.Thread(target=make)
        making.start()
        making.join()  # the process stands still meanwhile
        await is_looked_at.wait()
        goes_on.set()
        await until(lambda: consumer.stats().failed_commits > 0)
    assert await committed(servers, group) == {}
    monkeypatch.undo()
    values = Values()
    await consume(consumer_of(servers, topic, group_id=group, until="end"), values)
    assert values.of("new") == set(range(150))


async def test_a_topic_that_is_made_anew_with_more_partitions(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Under ``"latest"``: the group's offsets are gone with the topic, and the added partitions are read from their
    beginnings all the same."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(2)
    values = Values()
    consumer = consumer_of(servers, topic, group_id=f"{topic}-group", auto_offset_reset="latest", commit_interval=0.2)

    def fill_all(what: str, count: int, partitions: int) -> None:
        messages = [Message(b"%d" % n, f"{what}-{n}".encode(), partition=n % partitions) for n in range(count)]
        fill(servers, topic, messages)

    async with consuming(consumer, values):
        await until(lambda: consumer.health().joined)
        fill_all("old", 20, 2)
        await until(lambda: values.of("old") == set(range(20)))
        await make_anew(servers, topic, 4)
        fill_all("new", 60, 4)
        await until(lambda: values.of("new") == set(range(60)))


async def test_a_map_that_speaks_of_more_than_there_is(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Committed without a leader epoch, by an older version or another tool: the map is dropped."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    group = f"{topic}-group"
    write(servers, topic, "new", 70)
    await commit(servers, group, TopicPartition(topic, 0), 45, encode_offset_map(45, 99, [45]))
    values = Values()
    stats = await consume(consumer_of(servers, topic, group_id=group, until="end"), values)
    assert values.of("new") == set(range(45, 70))
    assert stats.log_truncations == 1


async def test_the_leader_epoch_is_committed_and_asked_about(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """As KIP-320 has it; a leader that never was is of another log, which counts from its beginning."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    group, place = f"{topic}-group", TopicPartition(topic, 0)
    write(servers, topic, "new", 70)
    await consume(consumer_of(servers, topic, group_id=group, until="end"), Values())
    consumer = consumer_of(servers, topic, group_id=group)
    async with consuming(consumer, Values()):
        await until(lambda: consumer.health().joined)
        client = client_of(consumer)
        assert await client.committed([place], 10) == {place: Committed(70, "", 0)}
        assert await client.valid_ends({place: 0}, 10) == {place: 70}
        assert await client.valid_ends({place: -1}, 10) == {place: 70}
        assert await client.valid_ends({place: 7}, 10) == {place: 0}
        ids = await client.topic_ids([topic, f"{topic}-not-there"], 10)
        assert [len(ids[topic]), len(ids)] == [16, 1]
