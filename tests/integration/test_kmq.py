"""A queue with redelivery markers on Apache Kafka: how soon a record comes again, what status tells."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE

import pytest

from aioparallel import Record
from aioparallel.queues.kmq import KmqConsumer, redeliveries
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.filling import Message, fill
from tests.support.waiting import until

pytestmark = pytest.mark.real

LEASE = 2.0


async def status(servers: str, queue: str, group: str | None = None, *, is_read: bool) -> list[dict[str, object]]:
    """What the command tells. ``group``: None lets it find the group. ``is_read``: whether the group has committed
    anything; otherwise the command says that it has not."""
    command = [sys.executable, "-c", "from aioparallel.cli import main; main()", "kmq", "status", queue, "--json"]
    child = await asyncio.create_subprocess_exec(
        *command, *(["--group", group] if group else []), "--bootstrap-servers", servers, stdout=PIPE, stderr=PIPE
    )
    said, errors = await child.communicate()
    assert child.returncode == 0, errors.decode()
    assert (f"Group {group or f'{queue}-trackers'} has committed nothing" in errors.decode()) is not is_read
    return [json.loads(line) for line in said.splitlines()]


async def new_queue(kafka: LocalKafka, make: TopicMaker) -> str:
    """Its topics."""
    queue = await make(partitions=2)
    await kafka.create_topic(f"{queue}-markers", 2)
    await kafka.create_topic(f"{queue}__undelivered")
    return queue


async def test_what_hangs_comes_again(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Within two seconds of the end of its lease, its tracker being there."""
    servers, queue = local_kafka.bootstrap_servers, await new_queue(local_kafka, kafka_topic)
    began: dict[int, float] = {}
    over = asyncio.Event()

    async def work(record: Record[bytes | None, bytes]) -> None:
        if record.value == b"hangs":
            began[redeliveries(record)] = time.monotonic()
            if not redeliveries(record):
                await over.wait()

    consumer = KmqConsumer[bytes, bytes](queue, bootstrap_servers=servers, group_id=queue, lease=LEASE)
    async with consumer:
        running = asyncio.create_task(consumer.run(work))
        await until(lambda: consumer.health().ready)
        fill(servers, queue, [Message(b"k", b"%d" % n) for n in range(1_000)] + [Message(b"k", b"hangs")])
        await until(lambda: 1 in began)
        took = began[1] - began[0]
        print(f"delivered again {took:.1f} s after its begin, a lease of {LEASE:g} s")
        assert LEASE - 0.2 <= took < LEASE + 2  # it was read a moment before it began
        tracker = consumer.tracker
        assert tracker is not None
        assert tracker.stats().redelivered == 1
        over.set()
        consumer.stop()
        await running
    await status(servers, queue, f"{queue}-redelivery", is_read=True)
    await status(servers, queue, is_read=True)


async def test_status_tells_what_is_open(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """As long as it is, and not afterwards."""
    servers, queue = local_kafka.bootstrap_servers, await new_queue(local_kafka, kafka_topic)
    begun, over = asyncio.Event(), asyncio.Event()

    async def work(record: Record[bytes | None, bytes]) -> None:
        if record.value == b"slow":
            begun.set()
            await over.wait()

    consumer = KmqConsumer[bytes, bytes](queue, bootstrap_servers=servers, group_id=queue, lease=600, tracker=False)
    async with consumer:
        running = asyncio.create_task(consumer.run(work))
        fill(servers, queue, [Message(b"k", b"%d" % n) for n in range(1_000)] + [Message(b"k", b"slow")])
        await until(lambda: begun.is_set() and consumer.stats().succeeded == 1_000)
        found = await status(servers, queue, "nobody", is_read=False)
        assert sorted(str(one["open"]) for one in found) == ["0", "1"]
        over.set()
        consumer.stop()
        await running
    found = await status(servers, queue, "nobody", is_read=False)
    assert [one["open"] for one in found] == [0, 0]
    await status(servers, queue, is_read=False)
