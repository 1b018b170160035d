"""Kafka transactions: ``python -m benchmarks.transactions``.

The rate of a consumer with ``commits=Transactions()`` beside process-and-produce, by turns, each in a process of its
own; the client's CPU a record; how long one transaction takes by partitions; and a bare transactional producer: our
own, without a consumer, as fast as it goes. What was written is counted under ``read_committed``.

Processes are set up as ``run_sync`` does it (``quick_collections``); ``--collector default`` leaves Python's garbage
collector as it is, which costs both ways a fifth. A producer alone runs twice as long as is measured: before that the
brokers' own code is still being compiled.
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
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as KafkaPartition

from aioparallel import Outgoing, ParallelConsumer, Record, Transactions
from aioparallel.clients import AiokafkaTransactionalProducer
from aioparallel.event_loop.loop import quick_collections
from aioparallel.group.client import Committed, Generation
from aioparallel.persistence.transactions.pending_outputs import Entry
from aioparallel.persistence.transactions.sending_outputs import Sending
from aioparallel.records.record import TopicPartition
from aioparallel.testing import LocalKafka
from aioparallel.testing.filling import Message, fill
from benchmarks import standalone
from benchmarks.cpu import cpu_seconds
from benchmarks.kept import Row, Tables

__all__ = ["main"]

PARTITIONS: Final = 8
SIZE: Final = 100
CONCURRENCY: Final = 1_000


async def _written(servers: str, topic: str, partitions: int) -> int:
    """Number of records that a reader gets under ``read_committed``."""
    places = [KafkaPartition(topic, number) for number in range(partitions)]
    async with AIOKafkaConsumer(
        bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as reader:
        reader.assign(places)
        ends = await reader.end_offsets(places)
        await reader.seek_to_beginning()
        found = 0
        while any([await reader.position(place) < ends[place] for place in places]):
            batches = await reader.getmany(timeout_ms=200, max_records=50_000)
            found += sum(len(batch) for batch in batches.values())
        return found


async def _copy(
    servers: str, source: str, target: str, count: int, millis: float, *, exactly: bool
) -> dict[str, float]:
    first = last = 0.0

    async def handle(record: Record) -> Outgoing:
        nonlocal first, last
        if not first:
            first = time.perf_counter()
        if millis:
            await asyncio.sleep(millis / 1000)
        return Outgoing(target, record.value, record.key)

    consumer: ParallelConsumer[Any, Any] = ParallelConsumer(
        source,
        bootstrap_servers=servers,
        group_id=target,
        commits=Transactions() if exactly else None,
        max_concurrency=CONCURRENCY,
        until="end",
    )
    async with consumer:
        began_cpu = cpu_seconds()
        await consumer.run(handle)
        last = time.perf_counter()
        found = consumer.stats()
        told = {"rate": count / (last - first), "cpu": (cpu_seconds() - began_cpu) / count * 1e6}
        if found.transactions is not None:
            told |= {"transactions": found.transactions.committed, "longest": found.transactions.longest or 0.0}
    written = await _written(servers, target, PARTITIONS)
    if written != count:
        raise SystemExit(f"{written:,} of {count:,} were written")
    return told


def _child(collector: str, *given: object) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.transactions", "--collector", collector, "--child", json.dumps(given)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(ended.stderr)
    return dict(json.loads(ended.stdout.splitlines()[-1]))


async def throughput(kafka: LocalKafka, count: int, rounds: int, millis: float, keys: int, collector: str) -> list[Row]:
    """Both ways, in turn."""
    source = f"source-{keys}-{time.time_ns()}"
    await kafka.create_topic(source, PARTITIONS)
    messages = ((n % keys % PARTITIONS, Message(key=b"%d" % (n % keys), value=b"x" * SIZE)) for n in range(count))
    await asyncio.to_thread(fill, kafka.bootstrap_servers, source, messages)
    told: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for number in range(rounds):
        for exactly in (False, True) if number % 2 else (True, False):
            target = f"target-{time.time_ns()}"
            await kafka.create_topic(target, PARTITIONS)
            given = (kafka.bootstrap_servers, source, target, count, millis, exactly)
            told[exactly].append(await asyncio.to_thread(_child, collector, *given))
    rates = {exactly: [one["rate"] for one in of] for exactly, of in told.items()}
    ratios = [one / other for one, other in zip(rates[True], rates[False], strict=True)]
    rows: list[Row] = []
    for exactly, name in ((False, "process and produce"), (True, "transactions")):
        cpu = statistics.median(one["cpu"] for one in told[exactly])
        row = {"handlers, ms": millis, "keys": keys, **standalone.median("records/s", rates[exactly])}
        rows.append({"": name, **row, "CPU µs a record": cpu})
    spread = standalone.median("ratio", ratios).values()
    rows[1] = {**rows[1], **dict(zip(("ratio", "lowest ratio", "highest ratio"), spread, strict=True))}
    print(
        f"{count:,} records, {keys:,} keys, handlers of {millis:g} ms: ratio {statistics.median(ratios):.2f}",
        flush=True,
    )
    return rows


async def bare(kafka: LocalKafka, seconds: float, partitions: int, outputs: int, *, pause: float) -> Row:
    """Transactions with so many outputs to each partition and offsets of as many partitions, without a consumer."""
    source, target = f"bare-source-{partitions}-{outputs}", f"bare-{partitions}-{outputs}"
    await kafka.create_topic(source, partitions)
    await kafka.create_topic(target, partitions)
    producer = AiokafkaTransactionalProducer(
        kafka.bootstrap_servers, target, delivery_timeout=60.0, consumer_options={}, producer_options={}
    )
    producer.identify_as(f"bare-{partitions}-{outputs}")
    await producer.start(30.0)
    while (epoch := (await producer.initialize(None, 10.0, 5.0)).epoch) is None:
        await asyncio.sleep(0.1)
    record = Record(source, 0, 0, None, None)
    entries = [
        Entry(record, Outgoing(target, b"x" * SIZE, b"k", partition=number))
        for number in range(partitions)
        for _ in range(outputs)
    ]
    times: list[float] = []
    warm, begins = 0, time.perf_counter() + seconds
    began_cpu = cpu_seconds()
    while (at := time.perf_counter()) < begins + seconds:
        if at < begins:
            warm, began_cpu = len(times) + 1, cpu_seconds()
        assert epoch is not None
        producer.begin(epoch)
        sending = Sending(producer, keeps_places=False)
        await sending.send(entries)
        await sending.wait()
        positions = {TopicPartition(source, number): Committed(len(times), "") for number in range(partitions)}
        while any((await producer.commit_offsets(epoch, positions, Generation(-1, ""), 5.0)).values()):
            await asyncio.sleep(0.1)  # the first time: the group has no coordinator yet
        epoch = (await producer.end(epoch, 5.0, commit=True)).epoch
        times.append(time.perf_counter() - at)
        await asyncio.sleep(max(0.002, pause - times[-1]))
    took, cpu = time.perf_counter() - begins, cpu_seconds() - began_cpu
    await producer.stop(1.0)
    found = await _written(kafka.bootstrap_servers, target, partitions)
    if found != len(times) * len(entries):
        raise SystemExit(f"{found:,} of {len(times) * len(entries):,} were written")
    times = sorted(times[warm:])
    p50, p95 = times[len(times) // 2], times[int(len(times) * 0.95)]
    print(f"{partitions} partitions, {len(entries):,} outputs: p50 {p50 * 1e3:.1f} ms", flush=True)
    return {
        "": "one every 100 ms" if pause else "one after the other", "partitions": partitions, "outputs": len(entries),
        "p50, ms": p50 * 1e3, "p95, ms": p95 * 1e3, "longest, ms": times[-1] * 1e3,
        "outputs/s": len(entries) * len(times) / took, "CPU ms a transaction": cpu / len(times) * 1e3,
    }  # fmt: skip


async def _run(given: argparse.Namespace) -> Tables:
    tables: dict[str, list[Row]] = {}
    with LocalKafka() as kafka:
        if given.only != "throughput":
            paced = [await bare(kafka, given.seconds, partitions, 10, pause=0.1) for partitions in (1, 8, 100)]
            at_once = [await bare(kafka, given.seconds, PARTITIONS, outputs, pause=0.0) for outputs in (125, 1_250)]
            tables["Transactions of the producer alone"] = [*paced, *at_once]
        if given.only != "bare":
            cases = ((0.0, 2_000), (1.0, 2_000), (10.0, 2_000), (2.0, 200))
            tables[f"{given.records:,} records of {SIZE} bytes, {CONCURRENCY:,} handlers at once"] = [
                row
                for millis, keys in cases
                for row in await throughput(kafka, given.records, given.rounds, millis, keys, given.collector)
            ]
    return tables


def main() -> int:
    """The exit code."""
    parser = standalone.parser_of("transactions", __doc__)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run of the producer alone")
    parser.add_argument("--collector", choices=("quick", "default"), default="quick", help="see above")
    parser.add_argument("--only", choices=("throughput", "bare"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is None:
        return standalone.run(
            "transactions", parser, given, lambda given: uvloop.run(_run(given)), beside=standalone.KAFKA
        )
    if given.collector == "quick":
        quick_collections(CONCURRENCY)
    servers, source, target, count, millis, exactly = json.loads(given.child)
    print(json.dumps(uvloop.run(_copy(servers, source, target, count, millis, exactly=exactly))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
