"""SIGKILL at random moments, on Apache Kafka: nothing lost, nothing out of order, little repeated."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.offsets import decode_offset_map
from aioparallel.testing import DeliveryChecker, LocalKafka, OrderChecker
from aioparallel.testing.pytest_plugin import TopicMaker

RECORDS, PARTITIONS, KEYS, KILLS, CONCURRENCY = 50_000, 8, 1_000, 5, 400
Place = tuple[int, int]


async def produce(servers: str, topic: str) -> list[Place]:
    rng = random.Random(5)
    async with AIOKafkaProducer(bootstrap_servers=servers, linger_ms=10, max_batch_size=1 << 18) as producer:
        sends = [await producer.send(topic, b"x" * 100, key=b"%d" % rng.randrange(KEYS)) for _ in range(RECORDS)]
        done = [await send for send in sends]
    return [(metadata.partition, metadata.offset) for metadata in done]


async def complete_by_commit(servers: str, group: str) -> Callable[[Place], bool]:
    """What the group's commit says is complete, as a question to ask of each place."""
    async with Admin(servers) as admin:
        committed = await admin.committed(group)
    maps = {tp.partition: decode_offset_map(found.offset, found.metadata) for tp, found in committed.items()}
    incompletes = {(p, offset) for p, one in maps.items() for offset in one.incompletes}

    def complete(place: Place) -> bool:
        one = maps.get(place[0])
        return (
            one is not None and place[1] <= max(one.base_offset - 1, one.highest_succeeded) and place not in incompletes
        )

    return complete


def nothing_complete(place: Place) -> bool:
    """Before the first child there is no commit."""
    return False


class Log:
    """Reads what the children wrote, as it grows, and checks it against what was committed when one died."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self.order = OrderChecker()
        self.ended: set[Place] = set()
        self.delivery: DeliveryChecker[Place] = DeliveryChecker()

    def read(self) -> list[Place]:
        """Feed what is new to the checkers; the places started in it."""
        with self._path.open("rb") as file:
            file.seek(self._position)
            written = file.read()
        # A read beside a write may see a part of the last line: that one is for the next time.
        whole = written[: written.rfind(b"\n") + 1]
        self._position += len(whole)
        started = []
        for line in whole.splitlines():
            event, partition, offset, key = line.split()
            place = int(partition), int(offset)
            if event == b"S":
                started.append(place)
                self.order.started(key, *place)
            elif event == b"C":
                self.order.ended(key, *place)
            elif event == b"L":
                for number in range(PARTITIONS):
                    self.order.reassigned(number)
            else:
                self.order.ended(key, *place)
                self.delivery.handled(place)
                self.ended.add(place)
        return started


@pytest.mark.real
async def test_five_kills_lose_nothing_and_repeat_little(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path
) -> None:
    """50,000 records, 8 partitions, 1,000 keys, 20-60 ms, five times SIGKILL: none lost, no key out of order.

    What runs again is exactly bounded: never a record that the last acknowledged commit says is complete. And
    that commit never says so of a record that had not ended (I2).
    """
    servers = local_kafka.bootstrap_servers
    topic = await kafka_topic(partitions=PARTITIONS)
    places = await produce(servers, topic)
    path = tmp_path / "handled.log"
    path.touch()
    log = Log(path)
    for place in places:
        log.delivery.produced(place)
    rng = random.Random(12)
    kill_at = sorted(rng.sample(range(RECORDS // 20, RECORDS * 9 // 10), KILLS))
    command = [sys.executable, "-m", "tests.support.children.killed", servers, topic, f"{topic}-group", str(path)]
    started_before: set[Place] = set()
    repeated = []
    for kill in [*kill_at, None]:
        # Asked while nobody runs: what the last acknowledged commit says.
        complete = await complete_by_commit(servers, f"{topic}-group") if log.ended else nothing_complete
        assert all(place in log.ended for place in places if complete(place)), "committed, but never ended"
        started: list[Place] = []
        child = subprocess.Popen([*command, str(CONCURRENCY)])
        try:
            async with asyncio.timeout(120):
                while child.poll() is None and (kill is None or len(log.ended) < kill):
                    await asyncio.sleep(0.01)
                    started += log.read()
        finally:
            child.kill()
            code = child.wait()
        started += log.read()
        if kill is None:
            assert code == 0
        again = started_before.intersection(started)
        repeated.append(len(again))
        assert not [place for place in again if complete(place)], "ran again though its commit was acknowledged"
        started_before.update(started)
        log.order.crashed()
    log.delivery.check()
    log.order.check()
    counts = log.delivery.statistics()
    print(f"\nkilled at {kill_at}: 0 lost, {log.order.statistics()}, {counts}, run again after each: {repeated}")
    # In flight when killed, and completed within one commit interval (1 s at 400 / 40 ms = 10,000/s): generous.
    assert all(count <= CONCURRENCY + 15_000 for count in repeated)
    finally_complete = await complete_by_commit(servers, f"{topic}-group")
    assert all(finally_complete(place) for place in places)


@pytest.mark.real
async def test_sigterm_drains_commits_and_ends_well(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path
) -> None:
    """SIGTERM under run_sync: what is in flight ends, all that ended is committed, exit code 0, no traceback."""
    servers = local_kafka.bootstrap_servers
    topic = await kafka_topic(partitions=PARTITIONS)
    await produce(servers, topic)
    path = tmp_path / "handled.log"
    path.touch()
    log = Log(path)
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.support.children.killed", servers, topic, f"{topic}-group", str(path), "100"],
        stderr=subprocess.PIPE,
    )
    started: list[Place] = []
    try:
        async with asyncio.timeout(120):
            while len(log.ended) < 500:
                await asyncio.sleep(0.01)
                started += log.read()
            child.terminate()
            _, errors = await asyncio.to_thread(child.communicate)
    finally:
        child.kill()
        child.wait()
    started += log.read()
    assert (child.returncode, errors) == (0, b"")
    assert set(started) == log.ended
    complete = await complete_by_commit(servers, f"{topic}-group")
    assert all(complete(place) for place in log.ended)
