"""Topics of several priorities: ``python -m benchmarks.priority``.

A backlog on each priority: what parts of the rate each has while all have something left, and what becomes of the rate
when one runs out. Then a flood of the lowest, and urgent records that come one by one: how long they wait for their
handler, beside a plain consumer of the same topics.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import uvloop

from aioparallel import ParallelConsumer, Record
from aioparallel.queues.priority import PriorityConsumer, PriorityProducer, priority_of, priority_topic
from aioparallel.testing import LocalKafka
from aioparallel.testing.filling import Message, fill

__all__ = ["main"]

PRIORITIES: Final = 3
HANDLER: Final = 0.005


async def _make(kafka: LocalKafka, topic: str, counts: Sequence[int], partitions: int) -> None:
    """Its topics, with so many records of each priority."""
    for priority, count in enumerate(counts):
        name = priority_topic(topic, priority)
        await kafka.create_topic(name, partitions)
        if count:
            messages = ((n % partitions, Message(key=b"%d" % n, value=b"x" * 100)) for n in range(count))
            await asyncio.to_thread(fill, kafka.bootstrap_servers, name, messages)


@asynccontextmanager
async def _running(consumer: ParallelConsumer[Any, Any], handler: Any) -> AsyncIterator[None]:
    async with consumer:
        run = asyncio.create_task(consumer.run(handler))
        try:
            yield
        finally:
            consumer.stop()
            await run


# -- shares -------------------------------------------------------------------------------------------


async def shares(kafka: LocalKafka, count: int, at_once: int) -> None:
    """Each priority has a backlog of ``count`` records."""
    await _make(kafka, "backlog", [count] * PRIORITIES, 4)
    handled: Counter[int] = Counter()

    async def work(record: Record) -> None:
        await asyncio.sleep(HANDLER)
        handled[priority_of(record)] += 1

    consumer = PriorityConsumer[bytes, bytes](
        "backlog",
        priorities=PRIORITIES,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id="shares",
        max_concurrency=at_once,
    )
    line: list[tuple[float, Counter[int]]] = []
    async with _running(consumer, work):
        while handled.total() < PRIORITIES * count:
            await asyncio.sleep(0.05)
            line.append((time.perf_counter(), Counter(handled)))
    # From the first 5 % on until the highest has 5 % left: all have a backlog.
    among = [one for one in line if one[1].total() > 0.05 * count and one[1][2] < 0.95 * count]
    (began, before), (ended, after) = among[0], among[-1]
    after = Counter({priority: after[priority] - before[priority] for priority in range(PRIORITIES)})
    print(f"shares while all have a backlog of {count:,}, {at_once} handlers of {HANDLER * 1000:g} ms:")
    for priority in reversed(range(PRIORITIES)):
        part, wanted = after[priority] / after.total(), 2**priority / (2**PRIORITIES - 1)
        print(f"  priority {priority}: {part:.4f} of the rate, {wanted:.4f} wanted, {part / wanted - 1:+.1%}")
    print(f"  together {after.total() / (ended - began):,.0f}/s")
    for priority in reversed(range(1, PRIORITIES)):
        end = next(n for n, one in enumerate(line) if one[1][priority] == count)
        spans = [(line[max(0, end - 10)], line[end]), (line[end], line[min(len(line) - 1, end + 10)])]
        told = [(b[1].total() - a[1].total()) / (b[0] - a[0]) if b[0] > a[0] else 0.0 for a, b in spans]
        print(f"  when priority {priority} ran out: {told[0]:,.0f}/s in the half second before, {told[1]:,.0f}/s after")


# -- latency ------------------------------------------------------------------------------------------


async def latency(
    kafka: LocalKafka, flood: int, at_once: int, urgent: int, partitions: int, plain: bool
) -> list[float]:
    """Seconds from the sending of each of ``urgent`` records to the first step of its handler, beside the flood."""
    topic = f"flood{'-plain' if plain else ''}-{time.time_ns()}"
    await _make(kafka, topic, [flood, 0, 0], partitions)
    waits: list[float] = []
    left = flood

    async def work(record: Record) -> None:
        nonlocal left
        if priority_of(record) == PRIORITIES - 1:
            waits.append(time.time() - record.timestamp / 1000)
        else:
            left -= 1
        await asyncio.sleep(HANDLER)

    options: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap_servers, "max_concurrency": at_once}
    if plain:
        names = [priority_topic(topic, priority) for priority in range(PRIORITIES)]
        consumer: ParallelConsumer[Any, Any] = ParallelConsumer(names, group_id=topic, **options)
    else:
        consumer = PriorityConsumer(topic, priorities=PRIORITIES, group_id=topic, **options)
    async with (
        PriorityProducer(priorities=PRIORITIES, bootstrap_servers=kafka.bootstrap_servers) as producer,
        _running(consumer, work),
    ):
        while left > 0.95 * flood:
            await asyncio.sleep(0.01)
        for number in range(urgent):
            await producer.send(topic, b"now", priority=PRIORITIES - 1, key=b"%d" % number)
            await asyncio.sleep(0.01)
        while len(waits) < urgent:
            await asyncio.sleep(0.01)
        assert left > 0, "the flood ended before: give it more records"
    return waits


def _told(waits: Sequence[float]) -> str:
    hundredths = statistics.quantiles(waits, n=100)
    return f"{hundredths[49] * 1000:6.1f} ms {hundredths[98] * 1000:6.1f} ms {max(waits) * 1000:6.1f} ms"


async def _run(given: argparse.Namespace) -> None:
    async with LocalKafka() as kafka:
        await shares(kafka, given.count, given.concurrency)
        print(f"wait of urgent records under a flood, {given.concurrency // 10} at once (median, p99, longest):")
        for partitions in (4, 48):
            print(f" {partitions} partitions of each priority:")
            for number in range(2 * given.rounds):
                gc.collect()
                plain = number % 2 == 1
                waits = await latency(kafka, given.count, given.concurrency // 10, given.urgent, partitions, plain)
                print(f"  {'plain consumer' if plain else 'by priority   '} {_told(waits)}")


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="records of each priority (100,000)")
    parser.add_argument("--concurrency", type=int, default=100, help="handlers at once (100; a tenth under the flood)")
    parser.add_argument("--urgent", type=int, default=500, help="urgent records (500)")
    parser.add_argument("--rounds", type=int, default=3, help="of the flood (3)")
    uvloop.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
