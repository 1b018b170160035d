"""From producing a record to the start of its handler, with Spark in between: micro-batches and real-time mode.

raw topic -> Spark (parse, filter, write) -> work topic -> ParallelConsumer. ``python -m benchmarks.spark_latency``
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from typing import Any

from aiokafka import AIOKafkaProducer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from aioparallel import ParallelConsumer, Record
from aioparallel.spark import kafka_jars, outgoing, read_topic, write_topic
from aioparallel.testing import LocalKafka
from benchmarks import standalone
from benchmarks.kept import Row, Tables

from .spark import SPARK

PARTITIONS = 2
STOPPED_AFTER = 10.0
"""Seconds of load after which the query is stopped and restarted."""
TRIGGERS: dict[str, dict[str, object]] = {
    "micro-batches, one after the other": {"processingTime": "0 seconds"},
    "real time, batches of 10 s": {"realTime": "10 seconds"},
    "real time, batches of 30 s": {"realTime": "30 seconds"},
    "real time, batches of 5 min": {"realTime": "5 minutes"},
}


def session() -> SparkSession:
    """A session with a slot for each partition, which real-time mode needs."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder.master(f"local[{PARTITIONS}]").config("spark.jars", ",".join(kafka_jars()))
    builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    builder = builder.config("spark.sql.streaming.realTimeMode.minBatchDuration", "5000")
    made: SparkSession = builder.config("spark.sql.shuffle.partitions", str(PARTITIONS)).getOrCreate()
    return made


def transformed(raw: DataFrame) -> DataFrame:
    """A typical stage: parse, filter, write; built-in functions, which real-time mode supports."""
    parsed = raw.withColumn("parsed", F.from_json(F.col("value").cast("string"), "number bigint, at double"))
    kept = parsed.where("parsed.number >= 0").withColumn("out", F.to_json("parsed"))
    return kept.transform(outgoing(value="out", real_time=True))


async def produce(servers: str, topic: str, seconds: float, rate: int) -> int:
    """Send so many records a second with their times of sending. Returns their number."""
    producer = AIOKafkaProducer(bootstrap_servers=servers, linger_ms=0)
    await producer.start()
    number, began = 0, time.monotonic()
    try:
        while (elapsed := time.monotonic() - began) < seconds:
            while number < elapsed * rate:
                value = json.dumps({"number": number, "at": time.time()}).encode()
                await producer.send(topic, value, key=b"key-%d" % (number % 1_000))
                number += 1
            await asyncio.sleep(0.001)
    finally:
        await producer.stop()
    return number


class Reading:
    """The consumer of the last topic."""

    def __init__(self, servers: str, topic: str) -> None:
        self.seen: list[tuple[int, float]] = []
        self._consumer = ParallelConsumer(
            topic, bootstrap_servers=servers, group_id=f"latency-{topic}", auto_offset_reset="earliest"
        )

    async def handle(self, record: Record[Any, Any]) -> None:
        now = time.time()
        value = json.loads(record.value)
        self.seen.append((value["number"], now - value["at"]))

    async def run(self) -> None:
        async with self._consumer:
            await self._consumer.run(self.handle)

    def stop(self) -> None:
        self._consumer.stop()


async def settled(reading: Reading, quiet: float) -> None:
    """Wait until nothing new has arrived for so many seconds."""
    count, since = -1, time.monotonic()
    while time.monotonic() - since < quiet:
        if len(reading.seen) != count:
            count, since = len(reading.seen), time.monotonic()
        await asyncio.sleep(0.1)


async def measure(spark: SparkSession, broker: LocalKafka, name: str, seconds: float, rate: int) -> Row:
    """Measure one row of the table."""
    trigger, stem = TRIGGERS[name], "".join(part for part in name if part.isalnum())
    servers, raw, work = broker.bootstrap_servers, f"raw-{stem}", f"work-{stem}"
    for topic in (raw, work):
        await broker.create_topic(topic, PARTITIONS)
    reading = Reading(servers, work)
    consuming = asyncio.create_task(reading.run())
    with tempfile.TemporaryDirectory() as checkpoint:

        def start() -> Any:
            frame = transformed(read_topic(spark, raw, bootstrap_servers=servers))
            options: dict[str, Any] = {"bootstrap_servers": servers, "source": False, "trigger": trigger}
            return write_topic(frame, work, checkpoint=checkpoint, **options)

        query = await asyncio.to_thread(start)
        warm = await produce(servers, raw, 15.0, rate)  # both JVMs compile
        await settled(reading, 3.0)
        reading.seen.clear()
        sent = await produce(servers, raw, seconds, rate)
        await settled(reading, 3.0)
        latencies = sorted(1_000 * latency for _, latency in reading.seen)
        numbers = {number for number, _ in reading.seen}
        assert numbers == set(range(sent)), f"{sent - len(numbers)} of {sent} are missing"
        twice = len(reading.seen) - sent
        reading.seen.clear()
        producing = asyncio.create_task(produce(servers, raw, 2 * STOPPED_AFTER, rate))
        while len(reading.seen) < STOPPED_AFTER * rate:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(query.stop)  # in the middle of the load
        query = await asyncio.to_thread(start)
        later = await producing
        await settled(reading, 8.0)
        again = len(reading.seen) - later
        await asyncio.to_thread(query.stop)
    reading.stop()
    with contextlib.suppress(asyncio.CancelledError):
        await consuming
    p50, p99 = latencies[len(latencies) // 2], latencies[int(0.99 * len(latencies))]
    print(f"{name}: p50 {p50:.1f} ms", flush=True)
    return {
        "": name,
        "p50, ms": p50,
        "p99, ms": p99,
        "longest, ms": latencies[-1],
        "twice": twice,
        "again after a stop under load": again,
        "of": warm + sent + later,
    }


async def all_of(given: argparse.Namespace) -> Tables:
    """Measure all triggers."""
    title = f"{given.rate:,} records/s for {given.seconds:g} s, {PARTITIONS} partitions"
    async with LocalKafka() as broker:
        spark = await asyncio.to_thread(session)
        try:
            names = TRIGGERS if given.only is None else (given.only,)
            return {title: [await measure(spark, broker, name, given.seconds, given.rate) for name in names]}
        finally:
            await asyncio.to_thread(spark.stop)


def main() -> int:
    """Returns the exit code."""
    parser = standalone.parser_of("spark_latency", __doc__)
    parser.add_argument("--seconds", type=float, default=40.0, help="of each trigger, after 15 to warm up (default 40)")
    parser.add_argument("--rate", type=int, default=1_000, help="records a second (default 1,000)")
    parser.add_argument("--only", choices=TRIGGERS)
    given = parser.parse_args()
    beside = f"{standalone.KAFKA}; Apache Spark {SPARK}"
    return standalone.run("spark_latency", parser, given, lambda given: asyncio.run(all_of(given)), beside=beside)


if __name__ == "__main__":
    sys.exit(main())
