"""The operator inside Spark compared with gather() for each Arrow batch, as people write it. Checked, in turn.

``python -m benchmarks.spark [--rounds 3] [--rows 200000]``
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyspark
import uvloop
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from aioparallel.spark import async_udf, parallel_map, repartition_by_key
from benchmarks import standalone
from benchmarks.kept import Row, Tables

TASKS = 2
SPARK: str = pyspark.__version__
SCHEMA = "seq bigint, k string, began double, ended double"


class Case(NamedTuple):
    """``seconds`` for each row, ``slow`` for one in a hundred; ``jitter``: varies them from a fifth to nine fifths."""

    concurrency: int
    seconds: float
    slow: float
    contestants: tuple[str, ...]
    distinct: bool = False
    jitter: bool = False

    def bound(self) -> float:
        """The highest possible number of rows per second; 0 without a limit."""
        mean = self.seconds * 0.99 + self.slow * 0.01
        return TASKS * self.concurrency / mean if mean else 0.0


CASES = {
    "5 ms, 100 in each task": Case(100, 0.005, 0.005, ("operator", "column", "gather")),
    "5 ms, 500 in each task": Case(500, 0.005, 0.005, ("operator", "column", "gather")),
    "1 % at 500 ms, 100 in each task, distinct keys": Case(100, 0.005, 0.5, ("operator", "gather"), distinct=True),
    "no-op, 100 in each task": Case(100, 0.0, 0.0, ("operator", "column")),
    "1 to 9 ms, 100 in each task": Case(100, 0.005, 0.005, ("operator", "gather"), jitter=True),
}


def seconds_of(case: Case, seq: int) -> float:
    """The row's time, by a hash: every hundredth row would have the same keys."""
    mixed = seq * 2_654_435_761 % 2**32
    if case.jitter:
        return case.seconds * (0.2 + 1.6 * mixed / 2**32)
    return case.slow if mixed < 2**32 // 100 else case.seconds


def handler_of(case: Case) -> Callable[[dict[str, Any]], Any]:
    """The handler that all contestants use."""

    async def handle(row: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        if case.seconds:
            await asyncio.sleep(seconds_of(case, row["seq"]))
        return {"seq": row["seq"], "k": row["k"], "began": began, "ended": time.perf_counter()}

    return handle


def operator(case: Case, df: DataFrame) -> DataFrame:
    """Our operator, by key."""
    return df.transform(parallel_map(handler_of(case), schema=SCHEMA, key="k", max_concurrency=case.concurrency))


def column(case: Case, df: DataFrame) -> DataFrame:
    """Our column."""
    handle = handler_of(case)

    @async_udf(returns=SCHEMA, key="k", max_concurrency=case.concurrency)
    async def call(seq: int, k: str) -> dict[str, Any]:
        given: dict[str, Any] = await handle({"seq": seq, "k": k})
        return given

    return df.select(call("seq", "k").alias("o")).select("o.*")


def gather(case: Case, df: DataFrame) -> DataFrame:
    """As people write it: an Arrow batch at a time behind a semaphore, on uvloop as well; without order of keys."""
    handle, concurrency = handler_of(case), case.concurrency
    names = [part.split()[0] for part in SCHEMA.split(", ")]
    types = [pa.int64(), pa.string(), pa.float64(), pa.float64()]
    schema = pa.schema(list(zip(names, types, strict=True)))

    async def all_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        semaphore = asyncio.Semaphore(concurrency)

        async def bounded(row: dict[str, Any]) -> dict[str, Any]:
            async with semaphore:
                given: dict[str, Any] = await handle(row)
                return given

        return await asyncio.gather(*map(bounded, rows))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            for batch in batches:
                yield pa.RecordBatch.from_pylist(runner.run(all_of(batch.to_pylist())), schema)

    return df.mapInArrow(run, SCHEMA)


CONTESTANTS = {"operator": operator, "column": column, "gather": gather}


def session() -> SparkSession:
    """A session with two cores that does not move partitions."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{TASKS}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.adaptive.enabled", "false").config("spark.log.level", "ERROR")
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def rows_of(spark: SparkSession, case: Case, rows: int) -> DataFrame:
    """Two equal partitions in memory; by key if the order of keys is checked."""
    number = F.col("id") if case.distinct else F.col("id") % 1_000
    if case.jitter:  # else rows of a key would be far apart
        number = F.pmod(F.hash("id"), F.lit(1_000))
    df = spark.range(rows, numPartitions=TASKS).select(
        F.col("id").alias("seq"), F.concat(F.lit("k"), number.cast("string")).alias("k")
    )
    if case.jitter:
        df = df.transform(repartition_by_key("k", order_by="seq", partitions=TASKS))
    df = df.persist()
    df.count()
    return df


def run_one(case: Case, contestant: str, df: DataFrame, rows: int) -> tuple[float, int]:
    """Rows per second of the whole job, and how many began before the previous row of their key had ended."""
    made = CONTESTANTS[contestant](case, df)
    began = time.perf_counter()
    if not case.jitter:
        count, total = made.agg(F.count("*"), F.sum("seq")).collect()[0]
        seconds = time.perf_counter() - began
        assert (count, total) == (rows, rows * (rows - 1) // 2), "not each row once"
        return rows / seconds, 0
    table = made.toPandas().sort_values(["k", "seq"])
    seconds = time.perf_counter() - began
    assert table["seq"].nunique() == len(table) == rows, "not each row once"
    before = table.groupby("k")["ended"].shift()
    return rows / seconds, int((table["began"] < before).sum())


def measure_case(spark: SparkSession, name: str, case: Case, given: argparse.Namespace) -> list[Row]:
    """A row for each contestant, after a warm-up round and the others in turn."""
    rows = given.rows // 4 if case.jitter else given.rows
    df = rows_of(spark, case, rows)
    results: dict[str, list[tuple[float, int]]] = {contestant: [] for contestant in case.contestants}
    for contestant in case.contestants:
        run_one(case, contestant, df, rows)
    for number in range(given.rounds):
        for contestant in case.contestants[:: 1 if number % 2 else -1]:
            results[contestant].append(run_one(case, contestant, df, rows))
            print(f"round {number}, {name}, {contestant}: {results[contestant][-1][0]:,.0f} rows/s", flush=True)
    df.unpersist()
    found: list[Row] = []
    for contestant, runs in results.items():
        rates, bound = standalone.median("rows/s", [rate for rate, _ in runs]), case.bound()
        part = statistics.median(rate for rate, _ in runs) / bound if bound else None
        wrong = max(count for _, count in runs) if case.jitter else None
        found.append({"case": name, "way": contestant, **rates, "of the bound": part, "out of order": wrong})
    return found


def measure(given: argparse.Namespace) -> Tables:
    """Measure all cases."""
    spark = session()
    rows = [row for name, case in CASES.items() for row in measure_case(spark, name, case, given)]
    spark.stop()
    return {f"{given.rows:,} rows in memory, local[{TASKS}], medians of {given.rounds} rounds": rows}


def main() -> int:
    """Returns the exit code."""
    parser = standalone.parser_of("spark", __doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of each contestant, in turns (default 3)")
    parser.add_argument("--rows", type=int, default=200_000)
    return standalone.run("spark", parser, parser.parse_args(), measure, beside=f"none; Apache Spark {SPARK}")


if __name__ == "__main__":
    sys.exit(main())
