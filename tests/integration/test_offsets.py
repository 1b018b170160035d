"""``aioparallel offsets`` on Apache Kafka: what is changed, and that nothing else is."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from aioparallel import FailurePolicy, ParallelConsumer, Record, RetryPolicy
from aioparallel.cli.cluster import Cluster
from aioparallel.cli.groups.reading import connected
from aioparallel.cli.offsets.planning import Refused
from aioparallel.cli.offsets.stored import KafkaPositions
from aioparallel.clients.aiokafka.group_admin import GroupAdmin
from aioparallel.group.client import Committed
from aioparallel.offsets import decode_offset_map, encode_offset_map
from aioparallel.offsets.encoding import format_of
from aioparallel.records.record import TopicPartition
from aioparallel.stores.sql import SqlStore
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.command_line import Ran, invoke
from tests.support.kafka.filling import Message, fill
from tests.support.waiting import until

pytestmark = pytest.mark.real

LATER = FailurePolicy(retry=RetryPolicy(first_delay=3600, max_delay=3600))
VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "unit/offsets/data/java_offset_maps.json").read_text()
)
Ends = dict[int, set[int]]
"""Offsets by partition."""


async def command(servers: str, *arguments: str) -> Ran:
    """Run ``aioparallel offsets`` in a thread, as it has an event loop of its own."""
    environment = {"AIOPARALLEL_BOOTSTRAP_SERVERS": servers}
    return await asyncio.to_thread(invoke, "offsets", *arguments, environment=environment)


async def done(servers: str, *arguments: str) -> str:
    """What it says when it succeeds."""
    ran = await command(servers, *arguments)
    assert ran.exit_code == 0, ran.output
    return ran.output


async def refused(servers: str, *arguments: str) -> str:
    """Why it is refused."""
    ran = await command(servers, *arguments)
    assert ran.exit_code == 1, ran.output
    return ran.stderr


async def commit(servers: str, group: str, positions: Mapping[TopicPartition, Committed]) -> None:
    """As if a consumer had."""
    async with GroupAdmin(servers) as admin:
        assert set((await admin.commit(group, positions)).values()) == {0}


async def stored(servers: str, group: str, topic: str) -> dict[int, Committed]:
    """The committed offsets, by partition."""
    async with GroupAdmin(servers) as admin:
        return {place.partition: one for place, one in (await admin.committed(group)).items() if place.topic == topic}


async def what_runs(servers: str, topics: Collection[str], group: str, **options: Any) -> dict[str, Ends]:
    """Run a consumer to the end of the log; what it has handled. Each record once."""
    ran: dict[str, Ends] = {topic: defaultdict(set) for topic in topics}

    async def handle(record: Record) -> None:
        assert record.offset not in ran[record.topic][record.partition]
        ran[record.topic][record.partition].add(record.offset)

    consumer = ParallelConsumer(list(topics), bootstrap_servers=servers, group_id=group, until="end", **options)
    async with consumer:
        await consumer.run(handle)
    return ran


async def leave_stuck(servers: str, topic: str, group: str, stuck: Collection[int], count: int) -> None:
    """Complete all of ``count`` records but those with these numbers as value."""

    async def handle(record: Record) -> None:
        if int(record.value or b"0") in stuck:
            raise ValueError

    consumer = ParallelConsumer(topic, bootstrap_servers=servers, group_id=group, failures=LATER)
    async with consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: consumer.health().ready and consumer.stats().succeeded == count - len(stuck))
        consumer.stop()
        await running


def numbered(count: int, partition: int = 0) -> Iterable[Message]:
    """Records whose value is their offset."""
    return (Message(b"%d" % n, b"%d" % n, partition=partition) for n in range(count))


async def test_skip_changes_one_record(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """2,000 records are done above a stuck one, and another one is stuck among them. After the skip only that other
    one runs, and not the 2,000."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    group = f"{topic}-group"
    fill(servers, topic, numbered(2_040))
    await leave_stuck(servers, topic, group, {37, 1_200}, 2_040)
    before = (await stored(servers, group, topic))[0]
    assert (before.offset, format_of(before.metadata)) == (37, "RunLength")
    said = await done(servers, "skip", group, f"{topic}:0:37")
    assert "no offset would run again" in said
    assert "1 offset would not run: 37\n" in said
    assert "dry run" in said
    assert (await stored(servers, group, topic))[0] == before
    said = await done(servers, "skip", group, f"{topic}:0:37", "--execute")
    assert f"Committed for 1 partition of group {group}, and read back." in said
    after = (await stored(servers, group, topic))[0]
    assert (after.offset, format_of(after.metadata)) == (1_200, "RunLength")
    assert (await what_runs(servers, [topic], group))[topic] == {0: {1_200}}


async def test_the_leader_epoch_of_a_skipped_record_is_committed(
    local_kafka: LocalKafka, kafka_topic: TopicMaker
) -> None:
    """If it is above all others, so that the next consumer notices if the log loses it (KIP-320)."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    group, place = f"{topic}-group", TopicPartition(topic, 0)
    fill(servers, topic, numbered(10))
    await commit(servers, group, {place: Committed(4, "")})
    async with GroupAdmin(servers) as admin:
        for skipped, position in ((4, 5), (9, 5)):
            await done(servers, "skip", group, f"{topic}:0:{skipped}", "--execute")
            one = (await admin.stable_offsets(group, [place]))[place]
            assert isinstance(one, Committed)
            assert (one.offset, one.leader_epoch) == (position, 0)


async def test_maps_stay_dense(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """The same with a dense map, a stuck record in its middle, and an offset above it."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    group = f"{topic}-group"
    fill(servers, topic, numbered(2_100))
    text_before = encode_offset_map(37, 2_040, [37, 1_200], format="Dense")
    await commit(servers, group, {TopicPartition(topic, 0): Committed(37, text_before)})
    await done(servers, "skip", group, f"{topic}:0:1200", f"{topic}:0:2050", "--execute")
    after = (await stored(servers, group, topic))[0]
    assert format_of(after.metadata) == "Dense"
    assert decode_offset_map(after.offset, after.metadata).incompletes == (37, *range(2_041, 2_050))
    ran = await what_runs(servers, [topic], group)
    assert ran[topic] == {0: {37, *range(2_041, 2_050), *range(2_051, 2_100)}}


@pytest.mark.slow
async def test_maps_of_the_java_library(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Texts that the Java library has written, one in each partition; a record in the middle of each is skipped. What
    then runs is what the Java library has left, without that one. All stay in Java's formats."""
    servers = local_kafka.bootstrap_servers
    small = [one for one in VECTORS if len(one["incompletes"]) > 0 and one["highest_succeeded"] < 1_200]
    large = [one for one in VECTORS if len(one["incompletes"]) > 0 and 1_200 < one["highest_succeeded"] <= 50_000]
    for vectors, count in ((small, 1_200), (large[:3], 50_010)):
        texts = [
            (one, encoding["metadata"])
            for one in vectors
            for encoding in one["encodings"].values()
            if len(encoding["metadata"]) <= 4_096
        ]
        topic = await kafka_topic(len(texts))
        group, expected, places = f"{topic}-group", {}, []
        for number, (one, _) in enumerate(texts):
            fill(servers, topic, numbered(count, number))
            missing = one["incompletes"]
            skipped = missing[len(missing) // 2]
            expected[number] = {*missing, *range(one["highest_succeeded"] + 1, count)} - {skipped}
            places.append(f"{topic}:{number}:{skipped}")
        positions = {
            TopicPartition(topic, number): Committed(one["base"], metadata)
            for number, (one, metadata) in enumerate(texts)
        }
        await commit(servers, group, positions)
        await done(servers, "skip", group, *places, "--execute")
        found = {format_of(one.metadata) for one in (await stored(servers, group, topic)).values()}
        assert "Dense" not in found
        print(f"{len(texts)} texts of Java, formats now {sorted(map(str, found))}")
        assert (await what_runs(servers, [topic], group))[topic] == expected


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
async def test_any_changes_in_a_row(local_kafka: LocalKafka, kafka_topic: TopicMaker, seed: int) -> None:
    """Skips, redos and rewinds at random, on two partitions. What then runs is what a set of offsets says."""
    servers, topic, rng = local_kafka.bootstrap_servers, await kafka_topic(2), random.Random(seed)
    group, count = f"{topic}-group", 300
    for partition in (0, 1):
        fill(servers, topic, numbered(count, partition))
    left: Ends = {}
    positions = {}
    for partition in (0, 1):
        base = rng.randrange(50, 150)
        highest = rng.randrange(base + 20, count - 20)
        missing = sorted({base, *rng.sample(range(base, highest), 15)})
        left[partition] = {*missing, *range(highest + 1, count)}
        name = rng.choice(["BitSet", "RunLengthV2", "BitSetV2Compressed", "Dense"])
        metadata = encode_offset_map(base, highest, missing, format=name)
        positions[TopicPartition(topic, partition)] = Committed(base, metadata)
    await commit(servers, group, positions)
    for _ in range(8):
        number = rng.randrange(2)
        match rng.choice(["skip", "redo", "rewind"]):
            case "skip" if left[number]:
                offsets = rng.sample(sorted(left[number]), min(3, len(left[number])))
                await done(servers, "skip", group, *(f"{topic}:{number}:{one}" for one in offsets), "--execute")
                left[number] -= set(offsets)
            case "redo":
                offsets = rng.sample(range(count), 3)
                await done(servers, "redo", group, *(f"{topic}:{number}:{one}" for one in offsets), "--execute")
                left[number] |= set(offsets)
            case _:
                to = rng.randrange(count // 2, count)
                where = ["--topic", topic, "--partition", str(number)]
                await done(servers, "rewind", group, "--to-offset", str(to), *where, "--execute")
                left[number] |= set(range(to, count))
    ran = await what_runs(servers, [topic], group)
    assert {number: ran[topic][number] for number in (0, 1)} == left


async def test_rewind_by_time_and_by_number(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """By time: what was written since runs again. Without a record that late nothing changes. Below the beginning of
    the log it stops there."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(2, {"retention.ms": "-1"})
    group, noon = f"{topic}-group", 1_772_366_400_000  # 2026-03-01 12:00 UTC
    fill(
        servers,
        topic,
        [Message(None, b"x", timestamp=noon + 1_000 * n, partition=0) for n in range(100)]
        + [Message(None, b"x", timestamp=noon - 60_000, partition=1)],
    )
    await what_runs(servers, [topic], group)
    said = await done(servers, "rewind", group, "--to", "2026-03-01T12:01:30+00:00", "--execute")
    assert "10 offsets would run again: 90-99" in said
    assert f"No record is that late in {topic}-1: nothing changes there." in said
    assert (await what_runs(servers, [topic], group))[topic] == {0: set(range(90, 100))}
    said = await done(servers, "rewind", group, "--by", "5", "--execute")
    assert "5 offsets would run again: 95-99" in said
    assert "1 offset would run again: 0" in said
    assert (await what_runs(servers, [topic], group))[topic] == {0: set(range(95, 100)), 1: {0}}
    said = await done(servers, "rewind", group, "--to-offset", "100", "--topic", topic, "--partition", "0")
    assert "Nothing changes." in said
    assert "is above the end of the log, 100" in await refused(
        servers, "rewind", group, "--to-offset", "101", "--topic", topic, "--partition", "0"
    )
    assert "has committed nothing in orders" in await refused(
        servers, "rewind", group, "--by", "1", "--topic", topic, "--topic", "orders"
    )
    assert "has committed nothing in partition 7" in await refused(
        servers, "rewind", group, "--by", "1", "--topic", topic, "--partition", "0", "--partition", "7"
    )
    ran = await command(servers, "rewind", group, "--to-offset", "1")
    assert (ran.exit_code, "--to-offset=1: needs one partition" in ran.stderr) == (2, True)


async def test_what_is_refused(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """With the reason, and without a change."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(2)
    group = f"{topic}-group"
    fill(servers, topic, numbered(60_000))
    chance = random.Random(1)
    first = TopicPartition(topic, 0)
    await commit(servers, group, {first: Committed(10, encode_offset_map(10, 20, [10, 15]))})
    for arguments, why in (
        (("skip", f"{topic}:0:9"), "below the committed offset 10: it is complete already"),
        (("skip", f"{topic}:0:60000"), "is not in the log yet, which ends at 60000"),
        (("redo", f"{topic}:0:60000"), "is not in the log yet, which ends at 60000"),
        (("skip", f"{topic}:1:0"), "the group has committed nothing there"),
        (("skip", f"{topic}:7:0"), f"{topic}-7 does not exist"),
        (
            ("skip", *(f"{topic}:0:{n}" for n in range(21, 40_000) if chance.random() < 0.5)),
            "does not fit into the commit",
        ),
    ):
        said = await refused(servers, arguments[0], group, *arguments[1:], "--execute")
        assert why in said
    assert "complete already: 11" in await done(servers, "skip", group, f"{topic}:0:11", "--execute")
    assert "run anyway: 15" in await done(servers, "redo", group, f"{topic}:0:15", "--execute")
    assert (await stored(servers, group, topic))[0].offset == 10
    await commit(servers, group, {first: Committed(10, "other text")})
    assert "is no offset map" in await refused(servers, "skip", group, f"{topic}:0:10")
    said = await done(servers, "rewind", group, "--by", "1")
    assert "would be lost" in said
    async with GroupAdmin(servers) as admin:
        await admin.delete_records({first: 100})
    await commit(servers, group, {first: Committed(200, "")})
    assert "not in the log any more, which begins at 100" in await refused(servers, "redo", group, f"{topic}:0:99")
    assert "the log begins at 100" in await done(servers, "rewind", group, "--by", "150")


async def test_a_group_with_members_is_refused(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """They are named; a dry run only warns. The broker refuses as well, if a member joins after the question."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    group = f"{topic}-group"
    fill(servers, topic, numbered(10))
    consumer = ParallelConsumer(topic, bootstrap_servers=servers, group_id=group)

    async def handle(_record: Record) -> None:
        pass

    async with consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: consumer.health().ready and consumer.stats().succeeded == 10)
        await consumer.commit_now()
        said = await refused(servers, "redo", group, f"{topic}:0:5", "--execute")
        assert f"group '{group}' has 1 member: aioparallel at 127.0.0.1. Stop all members first" in said
        said = await done(servers, "redo", group, f"{topic}:0:5")
        assert "WARNING --execute would be refused now" in said
        async with connected(Cluster(bootstrap_servers=servers)) as to:
            store, place = KafkaPositions(to, group, 4_096), TopicPartition(topic, 0)
            before = await store.read([place])
            with pytest.raises(Refused, match="UNKNOWN_MEMBER_ID"):
                await store.write(before, {place: Committed(3, "")})
            assert await store.read([place]) == before
        consumer.stop()
        await running
    await done(servers, "redo", group, f"{topic}:0:5", "--execute")
    assert (await what_runs(servers, [topic], group))[topic] == {0: {5}}


async def test_what_was_changed_meanwhile_is_refused(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """The commit that the plan was made from must still be there."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    group, place = f"{topic}-group", TopicPartition(topic, 0)
    fill(servers, topic, numbered(10))
    await commit(servers, group, {place: Committed(4, "")})
    async with connected(Cluster(bootstrap_servers=servers)) as to:
        store = KafkaPositions(to, group, 4_096)
        before = await store.read(None)
        await commit(servers, group, {place: Committed(6, "")})
        with pytest.raises(Refused, match=r"committed meanwhile \(offset 6\)"):
            await store.write(before, {place: Committed(5, "")})
    assert (await stored(servers, group, topic))[0].offset == 6


async def test_long_maps_of_many_partitions(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """They are more than a broker accepts in one request."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(100)
    after = {TopicPartition(topic, number): Committed(7, "\u0900" * 4_096) for number in range(100)}
    async with connected(Cluster(bootstrap_servers=servers)) as to:
        whole = await to.admin.commit(f"{topic}-group", after)
        assert set(whole.values()) != {0}
        store = KafkaPositions(to, f"{topic}-group", 4_096)
        await store.write(dict.fromkeys(after), after)
        assert {one[:2] for one in (await store.read(None)).values()} == {(7, "\u0900" * 4_096)}


async def test_an_open_transaction_is_refused(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Its offsets may still come."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    group = f"{topic}-group"
    fill(servers, topic, numbered(10))
    await commit(servers, group, {TopicPartition(topic, 0): Committed(4, "")})
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    metadata = await asyncio.to_thread(consumer.consumer_group_metadata)
    producer.send_offsets_to_transaction([Place(topic, 0, 8)], metadata, 30)
    assert "UNSTABLE_OFFSET_COMMIT" in await refused(servers, "skip", group, f"{topic}:0:4", "--execute")
    producer.abort_transaction(30)
    await asyncio.to_thread(consumer.close)
    await until_stable(servers, group, topic)
    await done(servers, "skip", group, f"{topic}:0:4", "--execute")
    assert (await stored(servers, group, topic))[0].offset == 5


async def until_stable(servers: str, group: str, topic: str) -> None:
    """The marker of an aborted transaction arrives a moment later."""
    async with asyncio.timeout(30):
        while (await command(servers, "skip", group, f"{topic}:0:4")).exit_code:
            await asyncio.sleep(0.2)


async def test_export_and_import(local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path) -> None:
    """A group's positions come back as they were, or go to another group. Those of another topic of the same name are
    refused."""
    servers, topic, file = local_kafka.bootstrap_servers, await kafka_topic(), tmp_path / "positions.json"
    group, other = f"{topic}-group", f"{topic}-copy"
    fill(servers, topic, numbered(100))
    await leave_stuck(servers, topic, group, {7, 50}, 100)
    before = (await stored(servers, group, topic))[0]
    assert "Wrote 1 position" in await done(servers, "export", group, str(file))
    document = json.loads(file.read_text())
    (entry,) = document["positions"]
    assert (document["version"], document["group"], entry["offset"], entry["map_format"]) == (1, group, 7, "RunLength")
    assert json.loads((await command(servers, "export", group)).stdout)["positions"] == document["positions"]
    await done(servers, "rewind", group, "--by", "7", "--execute")
    assert (await stored(servers, group, topic))[0].offset == 0
    said = await done(servers, "import", group, str(file))
    assert "98 offsets would not run: 0-6, 8-49, 51-99" in said
    await done(servers, "import", group, str(file), "--execute")
    assert (await stored(servers, group, topic))[0] == before
    said = await done(servers, "import", other, str(file), "--execute")
    assert "nothing was committed before; 98 offsets are complete in the file and would not run" in said
    again = await command(servers, "export", group, str(file))
    assert (again.exit_code, "exists already: give another name" in again.stderr) == (2, True)
    assert (await what_runs(servers, [topic], other))[topic] == {0: {7, 50}}
    assert (await what_runs(servers, [topic], group))[topic] == {0: {7, 50}}
    entry["topic_id"] = "0" * 32
    file.write_text(json.dumps(document))
    assert "was deleted and created again" in await refused(servers, "import", group, str(file))
    entry["topic_id"], entry["offset"] = None, 101
    file.write_text(json.dumps(document))
    assert "is outside the log, which has the offsets 0 to 100" in await refused(servers, "import", group, str(file))
    entry["offset"] = -1
    file.write_text(json.dumps(document))
    assert (await command(servers, "import", group, str(file))).exit_code == 2
    assert "has no positions" in await refused(servers, "export", f"{group}-missing")


async def test_positions_in_a_database(local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path) -> None:
    """They change where they are: with the rows of records that the position did not have yet."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    group, url = f"{topic}-group", f"sqlite+aiosqlite:///{tmp_path}/results.db"
    assert (await asyncio.to_thread(invoke, "store", "init", url)).exit_code == 0
    fill(servers, topic, numbered(100))
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE seen (number INTEGER)"))

    async def run(stuck: Collection[int]) -> list[int]:
        """What is written in one run."""
        store = SqlStore(engine)

        async def handle(record: Record, connection: AsyncConnection) -> None:
            if record.offset in stuck:
                raise ValueError
            await connection.execute(text("INSERT INTO seen VALUES (:number)"), {"number": record.offset})

        options: dict[str, Any] = {"max_concurrency": 10, "failures": LATER}
        consumer = ParallelConsumer(topic, bootstrap_servers=servers, group_id=group, commits=store, **options)
        async with consumer:
            running = asyncio.create_task(consumer.run(store.handler(handle)))
            await until(lambda: consumer.health().ready and consumer.stats().lag == len(stuck))
            consumer.stop()
            await running
        async with engine.begin() as connection:
            rows = [number for (number,) in await connection.execute(text("SELECT number FROM seen ORDER BY number"))]
            await connection.execute(text("DELETE FROM seen"))
        return rows

    assert await run({7, 50}) == [number for number in range(100) if number not in {7, 50}]
    # A row as it is there after a crash: of a record that is complete, and not folded yet.
    async with engine.begin() as connection:
        await connection.execute(text("INSERT INTO aioparallel_done SELECT partition_id, 50 FROM aioparallel_position"))
    await done(servers, "skip", group, f"{topic}:0:7", "--database", url, "--execute")
    await done(servers, "redo", group, f"{topic}:0:3", f"{topic}:0:50", f"{topic}:0:60", "--database", url, "--execute")
    assert await run(()) == [3, 50, 60]
    await done(servers, "rewind", group, "--by", "10", "--database", url, "--execute")
    assert await run(()) == list(range(90, 100))
    assert "has no position" in await refused(servers, "export", "nobody", "--database", url)
    await engine.dispose()
