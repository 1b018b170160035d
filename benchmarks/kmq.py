"""A queue with redelivery markers compared with process-and-produce: ``python -m benchmarks.kmq``.

In turn, each in a new process, on the same topic: a consumer whose handler returns an output, and a queue's consumer,
which writes a start and an end marker for each record, with its tracker in another process. Then the delay of a
redelivery.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from typing import Any, Final

import uvloop

from aioparallel import Outgoing, ParallelConsumer, Record
from aioparallel.event_loop.loop import quick_collections
from aioparallel.queues.kmq import KmqConsumer, RedeliveryTracker, redeliveries
from aioparallel.testing import LocalKafka
from aioparallel.testing.filling import Message, fill
from benchmarks import standalone
from benchmarks.cpu import cpu_seconds
from benchmarks.kept import Row, Tables

__all__ = ["main"]

PARTITIONS: Final = 8
LEASE: Final = 2.0


async def _consume(servers: str, queue: str, group: str, count: int, at_once: int, *, marks: bool) -> dict[str, float]:
    options: dict[str, Any] = {"bootstrap_servers": servers, "group_id": group, "max_concurrency": at_once}
    consumer: ParallelConsumer[Any, Any]
    if marks:
        consumer = KmqConsumer(queue, lease=60, tracker=False, max_buffered=20 * at_once, **options)
    else:
        consumer = ParallelConsumer(queue, **options)

    async def nothing(record: Record) -> None:
        pass

    async def produce(record: Record) -> Outgoing:
        return Outgoing(f"{queue}-out", record.value, record.key)

    began, used = 0.0, 0.0
    async with consumer:
        run = asyncio.create_task(consumer.run(nothing if marks else produce))
        while not consumer.health().ready:
            await asyncio.sleep(0.01)
        began, used = time.perf_counter(), cpu_seconds()
        while consumer.stats().succeeded < count:
            await asyncio.sleep(0.02)
        took, used = time.perf_counter() - began, cpu_seconds() - used
        consumer.stop()
        await run
    assert consumer.stats().succeeded == count, consumer.stats()
    return {"rate": count / took, "cpu": used / count * 1e6}


async def _track(servers: str, queue: str, group: str) -> dict[str, float]:
    """Run a tracker until the end of standard input."""
    async with RedeliveryTracker(queue, group_id=group, bootstrap_servers=servers) as tracker:
        run = asyncio.create_task(tracker.run())
        while not tracker.health().ready:
            await asyncio.sleep(0.01)
        used = cpu_seconds()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        while tracker.stats().open:
            await asyncio.sleep(0.02)
        used = cpu_seconds() - used
        tracker.stop()
        await run
    assert tracker.stats().redelivered == 0
    return {"cpu": used}


def _child(*given: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.kmq", "--child", *map(str, given)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _told(child: subprocess.Popen[str]) -> dict[str, float]:
    said, _ = child.communicate()
    assert child.returncode == 0, said
    found: dict[str, float] = json.loads(said.splitlines()[-1])
    return found


async def throughput(kafka: LocalKafka, count: int, at_once: int, rounds: int) -> list[Row]:
    """Rates and CPU, in turn."""
    servers = kafka.bootstrap_servers
    for topic, partitions in (("q", PARTITIONS), ("q-markers", PARTITIONS), ("q__undelivered", 1), ("q-out", 8)):
        await kafka.create_topic(topic, partitions)
    messages = ((n % PARTITIONS, Message(key=b"k%d" % (n % 10_000), value=b"x" * 100)) for n in range(count))
    await asyncio.to_thread(fill, servers, "q", messages)
    told: dict[str, list[dict[str, float]]] = {"process and produce": [], "queue": [], "tracker of the queue": []}
    for number in range(rounds):
        producing = await asyncio.to_thread(_told, _child("consume", servers, "q", f"p{number}", count, at_once, 0))
        tracker = _child("track", servers, "q", "t")
        assert tracker.stdout is not None
        await asyncio.to_thread(tracker.stdout.readline)
        marking = await asyncio.to_thread(_told, _child("consume", servers, "q", f"m{number}", count, at_once, 1))
        tracking = await asyncio.to_thread(_told, tracker)
        tracking = {"cpu": tracking["cpu"] / count * 1e6}
        for name, one in zip(told, (producing, marking, tracking), strict=True):
            told[name].append(one)
            print(
                f"round {number}, {name}: {one.get('rate', 0):,.0f}/s, {one['cpu']:.1f} µs of CPU a record", flush=True
            )
    pairs = zip(told["queue"], told["process and produce"], strict=True)
    ratios = {"queue": statistics.median(one["rate"] / other["rate"] for one, other in pairs)}
    rows: list[Row] = []
    for name, them in told.items():
        rates: Row = standalone.median("records/s", [one["rate"] for one in them]) if "rate" in them[0] else {}
        cpu = statistics.median(one["cpu"] for one in them)
        rows.append({"": name, **rates, "CPU µs a record": cpu, "of process and produce": ratios.get(name)})
    return rows


async def redelivery(kafka: LocalKafka, times: int) -> list[Row]:
    """Seconds from the end of the lease of a hanging record to its redelivery."""
    servers = kafka.bootstrap_servers
    for topic, partitions in (("r", 1), ("r-markers", 1), ("r__undelivered", 1)):
        await kafka.create_topic(topic, partitions)
    began: dict[tuple[bytes, int], float] = {}

    async def hang(record: Record[bytes | None, bytes]) -> None:
        began[record.value, redeliveries(record)] = time.perf_counter()
        if not redeliveries(record):
            await asyncio.sleep(2 * LEASE)

    async with KmqConsumer[bytes, bytes]("r", bootstrap_servers=servers, group_id="r", lease=LEASE) as consumer:
        run = asyncio.create_task(consumer.run(hang))
        for number in range(times):
            await asyncio.to_thread(fill, servers, "r", [(0, Message(key=None, value=b"%d" % number))])
            await asyncio.sleep(0.3)
        while len(began) < 2 * times:
            await asyncio.sleep(0.01)
        consumer.stop(drain=False)
        await run
    late = [began[b"%d" % n, 1] - began[b"%d" % n, 0] - LEASE for n in range(times)]
    return [{"lease, s": LEASE, "times": times, "delivered again after its end, s": statistics.median(late),
             "at most, s": max(late)}]  # fmt: skip


async def _run(given: argparse.Namespace) -> Tables:
    async with LocalKafka() as kafka:
        title = (
            f"{given.count:,} records, no-op handlers, {given.concurrency:,} at once, medians of {given.rounds} rounds"
        )
        return {
            title: await throughput(kafka, given.count, given.concurrency, given.rounds),
            "A record that hangs": await redelivery(kafka, 10),
        }


def _as_child(what: str, servers: str, queue: str, group: str, *rest: str) -> None:
    if what == "track":
        print(json.dumps(uvloop.run(_track(servers, queue, group))))
        return
    count, at_once, marks = map(int, rest)
    quick_collections(at_once)
    print(json.dumps(uvloop.run(_consume(servers, queue, group, count, at_once, marks=bool(marks)))))


def main() -> int:
    """Returns the exit code."""
    parser = standalone.parser_of("kmq", __doc__)
    parser.add_argument("--count", type=int, default=300_000, help="records (300,000)")
    parser.add_argument("--concurrency", type=int, default=1_000, help="handlers at once (1,000)")
    parser.add_argument("--rounds", type=int, default=5, help="of both, in turn (5)")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        _as_child(*given.child)
        return 0
    return standalone.run("kmq", parser, given, lambda given: uvloop.run(_run(given)), beside=standalone.KAFKA)


if __name__ == "__main__":
    sys.exit(main())
