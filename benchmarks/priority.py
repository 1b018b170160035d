"""Topics of several priorities: ``python -m benchmarks.priority``.

With a backlog on each priority: the part of the rate that each has while all have records, and the rate when one runs
out. Then a flood on the lowest priority, with urgent records one by one: how long they wait for their handler, compared
with a plain consumer of the same topics.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
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
from benchmarks import standalone
from benchmarks.kept import Row, Tables

__all__ = ["main"]

PRIORITIES: Final = 3
HANDLER: Final = 0.005


async def _make(kafka: LocalKafka, topic: str, counts: Sequence[int], partitions: int) -> None:
    """Create the topics with so many records of each priority."""
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


async def shares(kafka: LocalKafka, count: int, at_once: int) -> Tables:
    """Each priority has ``count`` records."""
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
    # From the first 5 % until the highest priority has 5 % left: all have records.
    among = [one for one in line if one[1].total() > 0.05 * count and one[1][2] < 0.95 * count]
    (began, before), (ended, after) = among[0], among[-1]
    after = Counter({priority: after[priority] - before[priority] for priority in range(PRIORITIES)})
    parts: list[Row] = [
        {
            "priority": str(priority),
            "part of the rate": after[priority] / after.total(),
            "wanted": 2**priority / (2**PRIORITIES - 1),
            "records/s": after[priority] / (ended - began),
        }
        for priority in reversed(range(PRIORITIES))
    ]
    ends: list[Row] = []
    for priority in reversed(range(1, PRIORITIES)):
        end = next(n for n, one in enumerate(line) if one[1][priority] == count)
        spans = [(line[max(0, end - 10)], line[end]), (line[end], line[min(len(line) - 1, end + 10)])]
        told = [(b[1].total() - a[1].total()) / (b[0] - a[0]) if b[0] > a[0] else 0.0 for a, b in spans]
        ends.append({"priority": str(priority), "records/s in the half second before": told[0], "and after": told[1]})
    what = f"{count:,} records on each priority, {at_once} handlers of {HANDLER * 1000:g} ms"
    return {f"Shares while all have a backlog: {what}": parts, "When the records of a priority run out": ends}


async def latency(
    kafka: LocalKafka, flood: int, at_once: int, urgent: int, partitions: int, plain: bool
) -> list[float]:
    """Seconds from sending each of ``urgent`` records to the start of its handler, during the flood."""
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


async def waits(kafka: LocalKafka, given: argparse.Namespace) -> list[Row]:
    """Waits of urgent records during a flood, in turn: the median of the rounds, and the longest of all."""
    rows: list[Row] = []
    for partitions in (4, 48):
        found: dict[bool, list[list[float]]] = {False: [], True: []}
        for number in range(2 * given.rounds):
            gc.collect()
            plain = number % 2 == 1
            at_once = given.concurrency // 10
            found[plain].append(await latency(kafka, given.count, at_once, given.urgent, partitions, plain))
        for plain, rounds in found.items():
            hundredths = [statistics.quantiles(one, n=100, method="inclusive") for one in rounds]
            rows.append({
                "consumer": "plain" if plain else "by priority",
                "partitions of each priority": partitions,
                "median, ms": statistics.median(one[49] for one in hundredths) * 1000,
                "p99, ms": statistics.median(one[98] for one in hundredths) * 1000,
                "longest, ms": max(map(max, rounds)) * 1000,
            })  # fmt: skip
    return rows


async def _run(given: argparse.Namespace) -> Tables:
    async with LocalKafka() as kafka:
        title = f"Wait of urgent records under a flood, {given.concurrency // 10} handlers at once"
        return {**await shares(kafka, given.count, given.concurrency), title: await waits(kafka, given)}


def main() -> int:
    """Returns the exit code."""
    parser = standalone.parser_of("priority", __doc__)
    parser.add_argument("--count", type=int, default=100_000, help="records of each priority (100,000)")
    parser.add_argument("--concurrency", type=int, default=100, help="handlers at once (100; a tenth under the flood)")
    parser.add_argument("--urgent", type=int, default=500, help="urgent records (500)")
    parser.add_argument("--rounds", type=int, default=3, help="of the flood (3)")
    asked = parser.parse_args()
    return standalone.run("priority", parser, asked, lambda given: uvloop.run(_run(given)), beside=standalone.KAFKA)


if __name__ == "__main__":
    sys.exit(main())
