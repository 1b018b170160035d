"""Processes of a share group that are killed or stand still, on Apache Kafka."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from aioparallel import Record
from aioparallel.queues.share import ShareConsumer
from aioparallel.testing import LocalKafka
from aioparallel.testing.processes.child import Child
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.share_members import configured, new_group, produce
from tests.support.waiting import until

pytestmark = pytest.mark.real

SHORT_LOCK = {"share.record.lock.duration.ms": "15000"}


def child_of(kafka: LocalKafka, topic: str, group: str, seconds: float, log: Path) -> Child:
    """A member whose handlers take so long."""
    arguments = kafka.bootstrap_servers, topic, group, f"{seconds}"
    return Child.of_module("member", "tests.support.children.sharing", *arguments, log=log)


async def begun(child: Child, count: int) -> set[int]:
    """The offsets of the first handlers that begin."""
    found: set[int] = set()
    while len(found) < count:
        what, offset, *_ = (await child.line()).split()
        if what == "began":
            found.add(int(offset))
    return found


class Other:
    """A member in this process, which notes how often each offset came before it was handled."""

    def __init__(self, kafka: LocalKafka, topic: str, group: str) -> None:
        self.counts: dict[int, int] = {}
        self.seen: Counter[int] = Counter()
        self.consumer: ShareConsumer[bytes, bytes] = ShareConsumer(
            topic, bootstrap_servers=kafka.bootstrap_servers, group_id=group
        )

    async def handle(self, record: Record[bytes | None, bytes]) -> None:
        self.counts[record.offset] = record.delivery_count
        self.seen[record.offset] += 1


async def test_a_member_that_is_killed(local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path) -> None:
    """Others get its records at once, as its connections close: long before its locks end. What it had accepted does
    not come again."""
    topic, group = await kafka_topic(1), await configured(local_kafka.bootstrap_servers, new_group(), {})
    await produce(local_kafka, topic, 5)
    async with child_of(local_kafka, topic, group, 0.0, tmp_path / "first") as first:
        ended = 0
        while ended < 5:
            ended += (await first.line()).startswith("ended")
        await asyncio.sleep(1)
    await produce(local_kafka, topic, 20, first=5)
    async with child_of(local_kafka, topic, group, 600.0, tmp_path / "second") as child:
        held = await begun(child, 10)
        assert held <= set(range(5, 25))
        other = Other(local_kafka, topic, group)
        async with other.consumer:
            running = asyncio.create_task(other.consumer.run(other.handle))
            await until(lambda: other.consumer.health().joined)
            os.kill(child.pid, signal.SIGKILL)
            began = time.monotonic()
            await until(lambda: len(other.counts) == 20, 20)
            took = time.monotonic() - began
            await other.consumer.commit_now()
            other.consumer.stop()
            await running
    assert took < 15, "the locks last for 30 s"
    assert other.counts.keys() == set(range(5, 25))
    assert {other.counts[offset] for offset in held} == {2}
    assert set(other.seen.values()) == {1}
    print(f"\n20 records again {took:.1f} s after SIGKILL")


@pytest.mark.slow
async def test_a_member_that_stands_still(local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path) -> None:
    """Its locks end, and others get its records. When it goes on, it accepts nothing of them: each is reported as late,
    or its handler is cancelled."""
    topic, group = await kafka_topic(1), await configured(local_kafka.bootstrap_servers, new_group(), SHORT_LOCK)
    await produce(local_kafka, topic, 10)
    async with child_of(local_kafka, topic, group, 3.0, tmp_path / "log") as child:
        held = await begun(child, 10)
        os.kill(child.pid, signal.SIGSTOP)
        other = Other(local_kafka, topic, group)
        async with other.consumer:
            running = asyncio.create_task(other.consumer.run(other.handle))
            began = time.monotonic()
            await until(lambda: len(other.counts) == 10, 40)
            took = time.monotonic() - began
            await other.consumer.commit_now()
            os.kill(child.pid, signal.SIGCONT)
            await asyncio.sleep(5)
            other.consumer.stop()
            await running
        await child.stop()
        said = [line.split() for line in (await rest_of(child))]
    assert held == other.counts.keys()
    assert set(other.seen.values()) == {1}
    ended = {int(offset) for what, offset, *_ in said if what == "ended"}
    late = {int(offset) for what, offset, *_ in said if what == "late"}
    assert ended == late
    print(f"\n10 records again {took:.1f} s after SIGSTOP; {len(late)} late")


async def rest_of(child: Child) -> list[str]:
    """What it has written and nobody has read."""
    found: list[str] = []
    while (line := await child._read_line()) is not None:
        found.append(line)
    return found
