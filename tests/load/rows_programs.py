"""Streams of Spark from topics of one to six partitions to a sink and to topics, exploded and not, in one driver.

``python -m tests.load.rows_programs SERVERS DIRECTORY UNTIL``: ``DIRECTORY`` holds checkpoints, and the files to which
handlers append each call. ``UNTIL``: ``killed``, or ``end``, when all is done that is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

from aioparallel.spark import SinkRow, kafka_jars, read_topic, register_sink, write_topic
from aioparallel.testing.processes.child import Child
from tests.support.spark.settings import ALONE

__all__ = ["PARTITIONS", "PARTS", "Driver", "Stream", "calls_in"]

PARTITIONS: Final = range(1, 7)
PARTS: Final = (0, 1, 1)
"""What a record becomes where it is exploded: two of the rows are equal."""
PER_TRIGGER: Final = 24
"""Offsets of a micro-batch while the driver is killed: many micro-batches, each of a second or so."""
DEATH: Final = 30.0
"""Seconds in which killed processes are gone."""


class Stream(NamedTuple):
    """One query of the driver."""

    partitions: int
    is_exploded: bool

    @property
    def raw(self) -> str:
        """The topic it reads."""
        return f"raw-{self.partitions}"

    @property
    def name(self) -> str:
        """Of its checkpoints and its file; and of the topic it writes."""
        return f"{self.partitions}-{'exploded' if self.is_exploded else 'plain'}"

    @classmethod
    def every(cls) -> list[Stream]:
        """Each number of partitions, with and without explode."""
        return [cls(partitions, is_exploded) for partitions in PARTITIONS for is_exploded in (False, True)]


def calls_in(file: Path) -> list[tuple[str, str]]:
    """Keys and rows of the calls that a handler has noted; a line that is not whole is no call."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [(key, row) for key, _, row in (line.partition("\t") for line in lines)]


async def call(row: SinkRow) -> None:
    """A call to a service: some milliseconds, then it is done, which one write says."""
    await asyncio.sleep(random.uniform(0.001, 0.02))
    line = f"{row.idempotency_key}\t{row['value']} {row['part']}\n".encode()
    file = os.open(row["file"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line)
    finally:
        os.close(file)


class Driver(Child):
    """The driver with its JVM and Python workers."""

    def __init__(self, servers: str, directory: Path, until: str) -> None:
        command = [sys.executable, "-m", "tests.load.rows_programs", servers, str(directory), until]
        super().__init__("driver", command, log=directory / "driver.log")

    def check(self) -> None:
        """Raises when it has ended."""
        assert self.running, f"the driver ended with code {self.exit_code}{self.last_words()}"

    async def kill_all(self) -> int:
        """SIGKILL to the driver, its JVM and its workers; how many they were. Returns when none is left."""
        every = psutil.Process(self.pid).children(recursive=True)
        for one in every:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        await self.kill()
        _, left = psutil.wait_procs(every, DEATH)
        assert not left, f"still there {DEATH:g} s after SIGKILL: {left}"
        return len(every) + 1


def start(spark: SparkSession, servers: str, directory: Path, per_trigger: int) -> Iterator[StreamingQuery]:
    """All queries; they go on where their checkpoints say."""
    for stream in Stream.every():
        records = read_topic(spark, stream.raw, bootstrap_servers=servers, per_trigger=per_trigger)
        rows = records.withColumn("value", F.col("value").cast("string"))
        yield to_sink(rows, stream, directory)
        yield write_topic(
            parts_of(rows, stream).withColumn("value", F.concat_ws(" ", "value", "part")),
            f"work-{stream.name}",
            bootstrap_servers=servers,
            checkpoint=directory / f"topic-{stream.name}",
        )


def parts_of(rows: DataFrame, stream: Stream) -> DataFrame:
    """One row of each, or several."""
    if not stream.is_exploded:
        return rows.withColumn("part", F.lit(0))
    return rows.select("*", F.explode(F.array([F.lit(n) for n in PARTS])).alias("part"))


def to_sink(rows: DataFrame, stream: Stream, directory: Path) -> StreamingQuery:
    """Through the handler."""
    return (
        parts_of(rows, stream)
        .select("topic", "partition", "offset", "value", "part")
        .withColumn("file", F.lit(str(directory / f"{stream.name}.calls")))
        .writeStream.format("aioparallel")
        .options(handler="tests.load.rows_programs:call", max_concurrency="10")
        .option("checkpointLocation", str(directory / f"sink-{stream.name}"))
        .start()
    )


def main(servers: str, directory: Path, until: str) -> None:
    """Run the driver."""
    builder: Any = SparkSession.builder
    spark: SparkSession = (
        builder.master("local[4]")
        .config("spark.jars", ",".join(kafka_jars()))
        .config(map=ALONE)
        .config("spark.log.level", "ERROR")
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.scheduler.mode", "FAIR")
        .getOrCreate()
    )
    register_sink(spark)
    queries = list(start(spark, servers, directory, PER_TRIGGER if until == "killed" else 100 * PER_TRIGGER))
    if until == "killed":
        spark.streams.awaitAnyTermination()
        raise SystemExit("a query has ended")
    for query in queries:
        query.processAllAvailable()
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
