"""``aioparallel groups`` on Apache Kafka: what it says is left is what then runs."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import pytest
from confluent_kafka import Producer
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from aioparallel import FailurePolicy, Ordering, ParallelConsumer, Record, RetryPolicy
from aioparallel.cli.groups.commands import GroupAccess
from aioparallel.cli.groups.reading import connected, read_groups
from aioparallel.queues.kmq import KmqConsumer
from aioparallel.stores.sql import SqlStore
from aioparallel.testing import EmbeddedBroker, LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.children.account import Account, Place
from tests.support.children.job import Job
from tests.support.command_line import Ran, invoke
from tests.support.kafka.filling import Message, fill, fill_numbered
from tests.support.kafka.reading import read_all
from tests.support.waiting import until

pytestmark = pytest.mark.real

LATER = FailurePolicy(retry=RetryPolicy(first_delay=3600, max_delay=3600))


async def command(servers: str, *arguments: str) -> Ran:
    """Run ``aioparallel groups`` in a thread, as it has an event loop of its own."""
    environment = {"AIOPARALLEL_BOOTSTRAP_SERVERS": servers}
    return await asyncio.to_thread(invoke, "groups", *arguments, environment=environment)


async def objects(servers: str, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    """The lines of ``--json``."""
    ran = await command(servers, *arguments, "--json")
    assert ran.exit_code == code, ran.output
    return [json.loads(line) for line in ran.stdout.splitlines()]


async def stop_with_stuck(servers: str, topic: str, group: str, stuck: set[int], count: int, **options: Any) -> None:
    """Run a consumer that completes all records but those with these values, and stop it."""

    async def handle(record: Record) -> None:
        if int(record.value or b"0") in stuck:
            raise ValueError

    consumer = ParallelConsumer(topic, bootstrap_servers=servers, group_id=group, failures=LATER, **options)
    async with consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: consumer.health().ready and consumer.stats().succeeded == count - len(stuck))
        consumer.stop()
        await running


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
async def test_what_is_left_is_what_then_runs(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path, seed: int
) -> None:
    """6,000 records on 4 partitions; consumers are killed at random moments. After each kill, remaining is the number
    of records that the next consumers begin, in each partition: exactly, as nothing was committed in between."""
    servers, topic, rng = local_kafka.bootstrap_servers, await kafka_topic(partitions=4), random.Random(seed)
    count = 6_000
    fill_numbered(servers, topic, count, keys=300)
    account = Account(await read_all(servers, topic))
    group = f"{topic}-group"
    options = {"max_concurrency": rng.choice([50, 400]), "session_timeout": 1.5, "heartbeat_interval": 0.4}
    job = Job(
        bootstrap_servers=servers,
        topic=topic,
        group_id=group,
        seconds=(0.001, rng.choice([0.02, 0.2])),
        options=options | {"until": "end", "commit_interval": 0.05},
    )
    kill_at = sorted(rng.sample(range(count // 20, count * 9 // 10), 3))
    for number, kill in enumerate(kill_at):
        account.follow(tmp_path / f"{number}.events")

        def enough(kill: int = kill) -> bool:
            account.read()
            return len(account.ended) >= kill

        await job.run(tmp_path, f"{number}", enough)
        account.read()
        whole, *partitions = await objects(servers, "show", group)
        counted = await objects(servers, "show", group, "--count")
        assert [one["remaining"] for one in counted] == [one["remaining"] for one in (whole, *partitions)]
        print(f"killed at {kill}: lag {whole['lag']:,}, remaining {whole['remaining']:,}")
    account.follow(tmp_path / "last.events")
    began: list[Place] = []
    await job.run(tmp_path, "last")
    began += account.read()
    ran = Counter(partition for partition, _ in set(began))
    assert whole["remaining_is"] == "exact"
    assert whole["remaining"] == len(set(began)) == sum(ran.values())
    assert {one["partition"]: one["remaining"] for one in partitions} == {n: ran[n] for n in range(4)}
    assert whole["remaining"] <= whole["lag"]  # the same if nothing above the committed offsets had ended
    whole, *_ = await objects(servers, "show", group, "--max-remaining", "0")
    assert (whole["remaining"], whole["lag"]) == (0, 0)


@pytest.mark.parametrize(
    "protocol", [pytest.param("classic", marks=pytest.mark.classic_protocol("it shows the type")), "consumer"]
)
async def test_members_stuck_records_and_the_list(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, protocol: Literal["classic", "consumer"]
) -> None:
    """A live group has its members with their partitions; a stuck record is found by its age; limits give code 4."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(2, {"retention.ms": "-1"})
    group, old = f"{topic}-group", 1_700_000_000_000
    fill(servers, topic, [Message(b"k", b"%d" % n, timestamp=old, partition=n % 2) for n in range(2_000)])

    async def handle(record: Record) -> None:
        if record.value == b"74":
            raise ValueError

    consumer = ParallelConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=group,
        group_protocol=protocol,
        ordering=Ordering.UNORDERED,
        failures=LATER,
    )
    async with consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: consumer.health().ready and consumer.stats().succeeded == 1_999)
        await consumer.commit_now()
        whole, first, second = await objects(servers, "show", group)
        assert (whole["state"], whole["type"], whole["remaining"], whole["lag"]) == ("Stable", protocol, 1, 963)
        (member,) = whole["members"]
        assert member["partitions"] == [f"{topic}:0", f"{topic}:1"]
        assert (member["client_id"], member["host"]) == ("aioparallel", "127.0.0.1")
        assert (first["member"], second["member"]) == (member["member_id"],) * 2
        assert (first["committed"], first["oldest_offset"], first["highest_completed"]) == (37, 37, 999)
        assert first["oldest_age"] > 9e7
        assert (first["map_format"], first["map_limit"], first["strip"].count("+")) == ("RunLength", 4_096, 1)
        ran = await command(servers, "show", group, "--stuck", "1h")
        assert ran.exit_code == 4
        assert f"Stuck: {topic}-0." in ran.stderr
        assert f"{topic}:1 " not in ran.stdout.partition("partition")[2]
        assert len(await objects(servers, "show", group, "--stuck", "10000w")) == 1
        (listed,) = [one for one in await objects(servers, "list") if one["group"] == group]
        assert listed == {key: value for key, value in whole.items() if key != "remaining_is"}
        await objects(servers, "show", group, "--max-remaining", "0", code=4)
        consumer.stop()
        await running
    ran = await command(servers, "show", group, "--topic", "other")
    assert (ran.exit_code, f"it reads {topic}" in ran.stderr) == (1, True)
    ran = await command(servers, "show", f"{group}-missing")
    assert (ran.exit_code, "there is no consumer group" in ran.stderr) == (1, True)


async def test_a_group_that_never_ran_has_all_records_left(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """If its topics are named, so that an autoscaler can start the first pod."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(partitions=2)
    fill(servers, topic, [Message(b"%d" % n, b"%d" % n) for n in range(30)])
    where = GroupAccess(bootstrap_servers=servers)
    async with connected(where) as to:
        (view,) = await read_groups(to, [f"{topic}-group"], None, [topic])
        assert (view.remaining, view.lag, len(view.partitions)) == (30, 30, 2)
        await stop_with_stuck(servers, topic, f"{topic}-group", {7}, 30)
        (view,) = await read_groups(to, [f"{topic}-group"], None, [topic])
        assert view.remaining == 1
    ran = await command(servers, "serve", f"{topic}-group", "--topic", f"{topic}-missing", "--port", "0")
    assert (ran.exit_code, "topic not found" in ran.stderr) == (1, True)


async def test_markers_of_transactions_make_it_an_upper_bound(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Each transaction ends with a marker, which has an offset and is no record. Counting is exact. An open transaction
    leaves a doubt, and holds nothing up."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    group = f"{topic}-group"
    fill(servers, topic, [Message(None, b"%d" % n) for n in range(10)])
    await stop_with_stuck(servers, topic, group, set(), 10)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(30)
    for number in range(5):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number)
        producer.commit_transaction(30)
    (whole, one) = await objects(servers, "show", group)
    assert (whole["remaining"], whole["remaining_is"], one["remaining_is"]) == (10, "upper bound", "upper bound")
    (whole, one) = await objects(servers, "show", group, "--count")
    assert (whole["remaining"], whole["remaining_is"], one["lag"]) == (5, "exact", 10)
    assert "<= 10" in (await command(servers, "show", group)).stdout
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(30)
    (whole, one) = await objects(servers, "show", group, "--count")
    assert (whole["remaining"], whole["remaining_is"], one["end"]) == (11, "upper bound", 21)
    producer.abort_transaction(30)


async def test_compacted_topics_make_it_an_upper_bound(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Whatever its newest records are. Partitions without a commit count from the beginning."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(2, {"cleanup.policy": "compact"})
    group = f"{topic}-group"
    fill(servers, topic, [Message(b"k", b"0", partition=0)])
    await stop_with_stuck(servers, topic, group, set(), 1)
    fill(servers, topic, [Message(b"%d" % n, b"x", partition=n % 2) for n in range(6)])
    whole, *partitions = await objects(servers, "show", group)
    assert (whole["remaining"], whole["remaining_is"]) == (6, "upper bound")
    assert [one["remaining"] for one in partitions] == [3, 3]


async def test_open_records_of_a_queue_count(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """They are below the committed offset, and known to the markers only."""
    servers, queue = local_kafka.bootstrap_servers, await kafka_topic()
    await local_kafka.create_topic(f"{queue}-markers")
    await local_kafka.create_topic(f"{queue}__undelivered")
    over, begun = asyncio.Event(), 0

    async def work(record: Record[bytes | None, bytes]) -> None:
        nonlocal begun
        if record.value == b"slow":
            begun += 1
            await over.wait()

    consumer = KmqConsumer[bytes, bytes](queue, bootstrap_servers=servers, group_id=queue, lease=600)
    async with consumer:
        running = asyncio.create_task(consumer.run(work))
        values = [b"slow"] * 3 + [b"%d" % n for n in range(100)]
        fill(servers, queue, [Message(None, value) for value in values])
        await until(lambda: begun == 3 and consumer.stats().succeeded == 100)
        await consumer.commit_now()
        whole, one = await objects(servers, "show", queue, "--kmq", queue)
        assert (whole["remaining"], one["lag"], one["open"]) == (3, 0, 3)
        assert one["oldest_age"] >= 0
        whole, one = await objects(servers, "show", queue)
        assert (whole["remaining"], one["open"]) == (0, None)
        over.set()
        consumer.stop()
        await running
    whole, one = await objects(servers, "show", queue, "--kmq", f"{queue}={queue}-markers")
    assert (whole["remaining"], one["open"]) == (0, 0)


async def test_positions_in_a_database(local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path) -> None:
    """The option names the database; in Kafka is the plain offset only."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    group, url = f"{topic}-group", f"sqlite+aiosqlite:///{tmp_path}/results.db"
    assert (await asyncio.to_thread(invoke, "store", "init", url)).exit_code == 0
    fill(servers, topic, [Message(b"%d" % n, b"%d" % n) for n in range(200)])
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE seen (number INTEGER)"))
    store = SqlStore(engine)

    async def handle(record: Record, connection: AsyncConnection) -> None:
        if record.value in (b"7", b"50"):
            raise ValueError
        await connection.execute(text("INSERT INTO seen VALUES (:number)"), {"number": record.offset})

    consumer = ParallelConsumer(
        topic, bootstrap_servers=servers, group_id=group, failures=LATER, commits=store, max_concurrency=10
    )
    async with consumer:
        running = asyncio.create_task(consumer.run(store.handler(handle)))
        await until(lambda: consumer.health().ready and consumer.stats().succeeded == 198)
        consumer.stop()
        await running
    await engine.dispose()
    whole, one = await objects(servers, "show", group, "--database", url)
    assert (whole["remaining"], one["positions_in"], one["committed"], one["map_share"]) == (2, "database", 7, None)
    whole, one = await objects(servers, "show", group)
    assert (whole["remaining"], one["positions_in"], one["map_format"]) == (193, "kafka", None)
    ran = await command(servers, "show", "nobody", "--database", url)
    assert (ran.exit_code, "has no positions in the tables aioparallel_" in ran.stderr) == (1, True)


async def test_serve_until_it_is_stopped(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """As a process: figures follow the group, and SIGTERM ends it."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic()
    group = f"{topic}-group"
    fill(servers, topic, [Message(b"%d" % n, b"%d" % n) for n in range(100)])
    await stop_with_stuck(servers, topic, group, {3, 90}, 100)
    arguments = ["groups", "serve", group, "--port", "0", "--keep", "0", "--bootstrap-servers", servers]
    with subprocess.Popen(
        [sys.executable, "-m", "aioparallel", *arguments], stderr=subprocess.PIPE, text=True
    ) as serving:
        assert serving.stderr is not None
        said = await asyncio.to_thread(serving.stderr.readline)
        address = said.split()[1].removesuffix("/metrics")

        def get(path: str) -> str:
            with urllib.request.urlopen(address + path, timeout=30) as response:
                return str(response.read().decode())

        one = json.loads(await asyncio.to_thread(get, f"/groups/{group}"))
        assert (one["remaining"], one["lag"]) == (2, 97)
        fill(servers, topic, [Message(b"x", b"x")])
        metrics = await asyncio.to_thread(get, "/metrics")
        assert f'aioparallel_group_remaining{{group="{group}",topic="{topic}",partition="0"}} 3\n' in metrics
        serving.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(serving.wait, 30) == 0
        assert serving.stderr.read() == "Stopped.\n"


def test_the_embedded_broker_does_not_describe_groups() -> None:
    """It says what does."""
    with EmbeddedBroker() as broker:
        ran = invoke("groups", "list", environment={"AIOPARALLEL_BOOTSTRAP_SERVERS": broker.bootstrap_servers})
    assert (ran.exit_code, "`aioparallel broker --kafka` starts Apache Kafka" in ran.stderr) == (1, True)
