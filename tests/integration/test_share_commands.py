"""``aioparallel share`` on Apache Kafka and on the embedded broker."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aioparallel import ParallelConsumer, Record
from aioparallel.queues.share import ShareConsumer
from aioparallel.testing import EmbeddedBroker, LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.command_line import Ran, invoke
from tests.support.kafka.share_members import configured, new_group, produce
from tests.support.waiting import until

pytestmark = pytest.mark.real


async def command(servers: str, *arguments: str) -> Ran:
    """Run ``aioparallel share`` in a thread, as it has an event loop of its own."""
    environment = {"AIOPARALLEL_BOOTSTRAP_SERVERS": servers}
    return await asyncio.to_thread(invoke, "share", *arguments, environment=environment)


async def done(servers: str, *arguments: str) -> str:
    """What it says when it succeeds."""
    ran = await command(servers, *arguments)
    assert ran.exit_code == 0, ran.output
    return ran.output


async def objects(servers: str, *arguments: str) -> list[dict[str, Any]]:
    """The lines of ``--json``."""
    return [json.loads(line) for line in (await done(servers, *arguments, "--json")).splitlines()]


async def refused(servers: str, *arguments: str, code: int = 1) -> str:
    """The error of a command that fails."""
    ran = await command(servers, *arguments)
    assert ran.exit_code == code, ran.output
    return ran.stderr


@asynccontextmanager
async def member(kafka: LocalKafka, topic: str, group: str) -> AsyncIterator[list[int]]:
    """A member that accepts everything. The offsets that it has handled."""
    handled: list[int] = []

    async def handle(record: Record) -> None:
        handled.append(record.offset)

    async with ShareConsumer(topic, bootstrap_servers=kafka.bootstrap_servers, group_id=group) as consumer:
        task = asyncio.create_task(consumer.run(handle))
        await until(lambda: bool(consumer.stats().partitions) or task.done())
        yield handled
        consumer.stop()
        await task


async def ignore(record: Record) -> None:
    """A handler that returns at once."""


async def has_left(servers: str, group: str) -> None:
    """Wait until the group has no members."""
    while (await objects(servers, "describe", group))[0]["members"]:
        await asyncio.sleep(0.1)


async def test_a_group_is_shown_and_set_back(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Members and configs while it runs; then its offsets move, only with --execute."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(2)
    group = await configured(servers, new_group(), {"share.delivery.count.limit": "3"})
    await produce(local_kafka, topic, 10)
    async with member(local_kafka, topic, group) as handled:
        await until(lambda: len(handled) == 10)
        shown = await done(servers, "describe", group)
        assert f"{group}: Stable, share group, 1 member; lag " in shown
        assert "deliveries of a record at most: 3" in shown
        assert "lock of a record: 30 s" in shown
        assert "dead letters" not in shown
        assert f"{topic}:0, {topic}:1" in shown
        view = await objects(servers, "describe", group)
        assert [(one["kind"], one.get("partition")) for one in view] == [
            ("group", None),
            ("partition", 0),
            ("partition", 1),
        ]
        (one,) = view[0]["members"]
        assert one["topics"] == [topic]
        assert view[1]["members"] == [one["member_id"]]
        (listed,) = (one for one in await objects(servers, "list") if one["group"] == group)
        assert (listed["state"], len(listed["members"]), listed["topics"]) == ("Stable", 1, [topic])
        why = await refused(servers, "reset", group, "--to", "earliest", "--execute")
        assert f"share group '{group}' has 1 member: aioparallel at 127.0.0.1. Stop all members first." in why
        assert "WARNING --execute would be refused now" in await done(servers, "reset", group, "--to", "earliest")
    await has_left(servers, group)
    assert (await objects(servers, "describe", group))[0]["lag"] == 0
    planned = await done(servers, "reset", group, "--to", "earliest")
    assert "-> offset 0: " in planned
    assert "this was a dry run" in planned
    assert (await objects(servers, "describe", group))[0]["lag"] == 0
    assert "Set the start offset of 2 partitions" in await done(
        servers, "reset", group, "--to", "earliest", "--execute"
    )
    assert (await objects(servers, "describe", group))[0]["lag"] == 10
    async with member(local_kafka, topic, group) as handled:
        await until(lambda: len(handled) == 10)


async def test_the_lag_is_served_and_limited(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """`groups serve` as a process has the lag of a share group, and `describe --max-lag` an exit code."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(1)
    group = await configured(servers, new_group(), {})
    await produce(local_kafka, topic, 10)
    async with member(local_kafka, topic, group) as handled:
        await until(lambda: len(handled) == 10)
    await has_left(servers, group)
    await produce(local_kafka, topic, 7)
    arguments = ["groups", "serve", group, "--port", "0", "--keep", "0", "--bootstrap-servers", servers]
    with subprocess.Popen(
        [sys.executable, "-m", "aioparallel", *arguments], stderr=subprocess.PIPE, text=True
    ) as serving:
        assert serving.stderr is not None
        try:
            address = (await asyncio.to_thread(serving.stderr.readline)).split()[1].removesuffix("/metrics")

            def get(path: str) -> str:
                with urllib.request.urlopen(address + path, timeout=30) as response:
                    return str(response.read().decode())

            one = json.loads(await asyncio.to_thread(get, f"/groups/{group}"))
            assert (one["lag"], one["member_count"], one["state"]) == (7, 0, "Empty")
            metrics = await asyncio.to_thread(get, "/metrics")
            assert f'aioparallel_share_group_lag{{group="{group}",topic="{topic}",partition="0"}} 7\n' in metrics
        finally:
            serving.terminate()
    assert "lag 7" in await done(servers, "describe", group, "--max-lag", "7")
    ran = await asyncio.to_thread(
        invoke, "offsets", "skip", group, f"{topic}:0:1", environment={"AIOPARALLEL_BOOTSTRAP_SERVERS": servers}
    )
    assert (ran.exit_code, "is a share group, which commits no offsets" in ran.stderr) == (1, True)
    why = await refused(servers, "configure", group, "share.session.timeout.ms=10000")
    assert "; the brokers have group.share.min.session.timeout.ms=" in why
    assert "did you mean 'share.delivery.count.limit'?" in await refused(
        servers, "configure", group, "share.delivery.limit=3"
    )
    assert "from Kafka 4.4 on" in await refused(servers, "configure", group, "errors.deadletterqueue.topic.name=dlq.t")
    ran = await asyncio.to_thread(
        invoke,
        "topics",
        "create",
        "dlq.t:1",
        "--config",
        "errors.deadletterqueue.group.enable=true",
        environment={"AIOPARALLEL_BOOTSTRAP_SERVERS": servers},
    )
    assert (ran.exit_code, "from Kafka 4.4 on" in ran.stderr) == (1, True)
    assert "The lag is 7, more than --max-lag=6." in await refused(servers, "describe", group, "--max-lag", "6", code=4)


async def test_times_topics_and_partitions(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """A topic that the group has not read, one partition, a time, the end; what is passed over is counted."""
    servers, topic, other = local_kafka.bootstrap_servers, await kafka_topic(2), await kafka_topic(1)
    group = await configured(servers, new_group(), {})
    await produce(local_kafka, topic, 6)
    async with member(local_kafka, topic, group) as handled:
        await until(lambda: len(handled) == 6)
    await has_left(servers, group)
    between = time.time()
    await produce(local_kafka, other, 4)

    async def starts(topic: str) -> list[int | None]:
        found = await objects(servers, "describe", group)
        return [one["start_offset"] for one in found if one["kind"] == "partition" and one["topic"] == topic]

    before = await starts(topic)
    await done(servers, "reset", group, "--to", "earliest", "--topic", topic, "--partition", "1", "--execute")
    assert await starts(topic) == [before[0], 0]
    await done(servers, "reset", group, "--to", "latest", "--topic", other, "--execute")
    assert await starts(other) == [4]
    await done(servers, "reset", group, "--to", f"{time.time() - between + 60:.0f}s", "--topic", other, "--execute")
    assert await starts(other) == [0]
    assert ": 0 offsets to read, at most 4 offsets skipped" in await done(
        servers, "reset", group, "--to", "latest", "--topic", other
    )
    assert f"{other}:0: start offset 0 is deleted" in await done(servers, "forget", group, other)
    await done(servers, "forget", group, other, "--execute")
    assert await starts(other) == []
    assert f"knows nothing of {other}" in await refused(servers, "forget", group, other, "--execute")


async def test_wrong_use(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Each message says what to do."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(1)
    missing = new_group()
    assert "`aioparallel share list` names those that exist" in await refused(servers, "describe", missing)
    assert "there is no share group" in await refused(servers, "reset", missing, "--to", "latest")
    assert "--to=None: must be given" in await refused(servers, "reset", missing, code=2)
    assert "--to='soon': must be earliest, latest" in await refused(servers, "reset", missing, "--to", "soon", code=2)
    assert "--partition=1: needs exactly one --topic" in await refused(
        servers, "reset", missing, "--to", "latest", "--partition", "1", code=2
    )
    group = await configured(servers, new_group(), {})
    async with member(local_kafka, topic, group):
        pass
    await has_left(servers, group)
    assert "topic not found" in await refused(servers, "reset", group, "--to", "latest", "--topic", "nowhere")
    assert "has the partitions 0 to 0" in await refused(
        servers, "reset", group, "--to", "latest", "--topic", topic, "--partition", "7", code=2
    )


async def test_configs_of_a_group(local_kafka: LocalKafka) -> None:
    """Set, and back to the default, also of a group without members; a wrong one is refused by the broker."""
    servers, group = local_kafka.bootstrap_servers, new_group()
    name = "share.auto.offset.reset"
    assert (await done(servers, "configure", group, f"{name}=earliest")).startswith(f"{name}=earliest\n")
    assert await done(servers, "configure", group, f"{name}=") == f"{name}=latest\n"
    assert "Kafka error 40" in await refused(servers, "configure", group, f"{name}=sometime")
    assert "must be NAME=VALUE" in await refused(servers, "configure", group, name, code=2)
    assert "CONFIGS=None: must be given" in await refused(servers, "configure", group, code=2)


async def test_the_embedded_broker_has_no_share_groups() -> None:
    """The message says which broker does."""
    async with EmbeddedBroker() as broker:
        for arguments in (("list",), ("describe", "workers")):
            assert "`aioparallel broker --kafka` starts Apache Kafka" in await refused(
                broker.bootstrap_servers, *arguments
            )


async def test_configuring_a_group_that_does_not_exist(local_kafka: LocalKafka) -> None:
    """It says so, and its configuration is shown. A group of another type is refused."""
    servers, group = local_kafka.bootstrap_servers, new_group()
    assert "there is no share group" in await refused(servers, "describe", group)
    ran = await command(servers, "configure", group, "share.delivery.count.limit=7")
    assert ran.exit_code == 0
    assert f"There is no share group {group} yet" in ran.output
    assert "deliveries of a record at most: 7" in await done(servers, "describe", group)
    await done(servers, "configure", group, "share.delivery.count.limit=")
    assert "there is no share group" in await refused(servers, "describe", group)


async def test_configuring_a_consumer_group(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """It is refused, also without members: nothing of it would follow the configuration."""
    servers, topic, group = local_kafka.bootstrap_servers, await kafka_topic(1), new_group()
    await produce(local_kafka, topic, 1)
    async with ParallelConsumer(
        topic, bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest", until="end"
    ) as consumer:
        await consumer.run(ignore)
    assert "is not a share group" in await refused(servers, "configure", group, "share.delivery.count.limit=7")
