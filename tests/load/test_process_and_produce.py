"""Process and produce on Apache Kafka, against a bare aiokafka producer. ``make load-failures``."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaProducer

from aioparallel import Outgoing, ParallelConsumer, Producing, Record
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.topics import fill_numbered, number_of, on_uvloop, read_all

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(300)]

RECORDS, KEYS, PARTITIONS, ROUNDS = 200_000, 1_000, 8, 6


async def transform(servers: str, source: str, target: str, producing: Producing) -> float:
    """Copy all of ``source`` to ``target``; seconds from the first handler to the last acknowledgement."""
    begun = ended = 0.0

    async def handle(record: Record) -> Outgoing:
        nonlocal begun
        begun = begun or time.perf_counter()
        return Outgoing(target, record.value, record.key)

    consumer = ParallelConsumer(
        source, bootstrap_servers=servers, group_id=f"g-{uuid.uuid4().hex}", producing=producing
    )
    async with consumer:
        running = asyncio.ensure_future(consumer.run(handle))
        while consumer._engine is None or consumer._engine._processor.scheduler.tally.succeeded < RECORDS:
            await asyncio.sleep(0.005)
        ended = time.perf_counter()
        consumer.stop()
        await running
        stats = consumer.stats()
    assert (stats.succeeded, stats.failed_attempts) == (RECORDS, 0)
    return ended - begun


async def bare(servers: str, target: str, records: list[tuple[bytes, bytes]]) -> float:
    """The same records through AIOKafkaProducer.send, waiting for all at the end."""
    async with AIOKafkaProducer(bootstrap_servers=servers, acks="all", enable_idempotence=True) as producer:
        begun = time.perf_counter()
        sends = [await producer.send(target, value, key) for key, value in records]
        await asyncio.gather(*sends)
        return time.perf_counter() - begun


def check_outputs(outputs: list[Record]) -> int:
    """Each number at least once, those of a key in order by first occurrence; how many are there twice."""
    seen: set[int] = set()
    last: dict[bytes | None, int] = defaultdict(lambda: -1)
    for output in outputs:
        number = number_of(output)
        if number in seen:
            continue
        assert number > last[output.key], f"{output}: {number} of key {output.key!r} after {last[output.key]}"
        seen.add(number)
        last[output.key] = number
    assert seen == set(range(RECORDS))
    return len(outputs) - RECORDS


async def test_the_rate_of_a_bare_producer(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tell: Callable[[str], None]
) -> None:
    """200,000 records read, run and produced at 80 % or more of the rate at which a bare producer sends them, medians
    of five interleaved rounds after one that warms the fresh broker up; all there once, in key order."""
    servers = local_kafka.bootstrap_servers
    source = await kafka_topic(PARTITIONS)
    targets = [await kafka_topic(PARTITIONS) for _ in range(ROUNDS)]
    bare_target = await kafka_topic(PARTITIONS)
    fill_numbered(servers, source, RECORDS, KEYS, PARTITIONS)
    records = [(b"k%d" % (n % KEYS), (b"%d " % n).ljust(100, b"x")) for n in range(RECORDS)]

    def rounds() -> list[tuple[float, float]]:
        taken = []
        for target in targets:
            sent = on_uvloop(bare(servers, bare_target, records))
            taken.append((sent, on_uvloop(transform(servers, source, target, Producing()))))
            tell(f"bare {RECORDS / sent:,.0f}/s, process and produce {RECORDS / taken[-1][1]:,.0f}/s")
        return taken

    taken = await asyncio.to_thread(rounds)
    counted = taken[1:]
    ratio = statistics.median(sent for sent, _ in counted) / statistics.median(ours for _, ours in counted)
    tell(f"ratio of medians {ratio:.2f}")
    for target in targets:
        assert check_outputs(await read_all(servers, target)) == 0
    assert ratio >= 0.8


async def test_a_broker_that_dies_in_the_middle_loses_and_reorders_nothing(
    tell: Callable[[str], None],
) -> None:
    """Killed at a quarter and brought back: every output is there, each key's in order."""
    with LocalKafka() as kafka:
        servers = kafka.bootstrap_servers
        await kafka.create_topic("source", PARTITIONS)
        await kafka.create_topic("target", PARTITIONS)
        fill_numbered(servers, "source", RECORDS, KEYS, PARTITIONS)
        acknowledged = 0
        restarting = threading.Thread(target=kafka.restart)

        def at_a_quarter(*_: object) -> None:
            nonlocal acknowledged
            acknowledged += 1
            if acknowledged == RECORDS // 4:
                kafka.kill()
                restarting.start()

        work = transform(servers, "source", "target", Producing(on_produced=at_a_quarter))
        seconds = await asyncio.to_thread(on_uvloop, work)
        restarting.join()
        twice = check_outputs(await read_all(servers, "target"))
        tell(f"{seconds:.1f} s with the broker killed and restarted; {twice} outputs twice, none missing")
