"""The effect of each setting of the operator in Spark: one changes at a time.

``python -m benchmarks.spark_tuning [--rounds 3] [--rows 60000]``
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from aioparallel.spark import parallel_map
from benchmarks import standalone
from benchmarks.kept import Row, Tables

from .spark import SCHEMA, SPARK, TASKS, session


class Setting(NamedTuple):
    """One setting. ``seconds`` for a call, ``slow`` for one in a hundred."""

    group: str
    shown: str
    concurrency: int = 100
    seconds: float = 0.005
    slow: float | None = None
    partitions: int = TASKS
    keys: int = 1_000
    arrow: int = 10_000
    in_order: bool = False
    buffered: int = 10_000
    width: int = 0

    def bound(self) -> float:
        """The highest possible number of rows per second: one task for each core, and one lane for each key."""
        mean = self.seconds * 0.99 + (self.seconds if self.slow is None else self.slow) * 0.01
        lanes = min(self.concurrency * TASKS, self.keys) if self.keys else self.concurrency * TASKS
        return lanes / mean


def settings() -> Iterator[Setting]:
    """All settings, group by group."""
    for concurrency in (10, 50, 100, 200, 500, 1_000):
        yield Setting("max_concurrency, calls of 5 ms, distinct keys", f"{concurrency:,}", concurrency, keys=0)
    for concurrency in (100, 500, 2_000):
        yield Setting(
            "max_concurrency, calls of 50 ms, distinct keys", f"{concurrency:,}", concurrency, seconds=0.05, keys=0
        )
    for partitions in (2, 4, 8, 32):
        yield Setting("partitions on two cores", f"{partitions}", partitions=partitions)
    for arrow in (100, 1_000, 10_000, 60_000):
        yield Setting("spark.sql.execution.arrow.maxRecordsPerBatch", f"{arrow:,}", arrow=arrow)
    for keys in (20, 100, 200, 1_000, 0):
        yield Setting("keys", f"{keys:,}" if keys else "each its own", keys=keys)
    for buffered in (100, 1_000, 10_000):
        yield Setting("max_buffered, 1 % of calls 500 ms, 1,000 keys", f"{buffered:,}", slow=0.5, buffered=buffered)
    for in_order in (False, True):
        yield Setting(
            "in_order, 1 % of calls 500 ms, distinct keys", str(in_order), slow=0.5, keys=0, in_order=in_order
        )
    for width in (0, 1_000, 10_000):
        yield Setting("bytes beside in each row", f"{width:,}", width=width)


def rows_of(spark: SparkSession, setting: Setting, rows: int) -> DataFrame:
    """Rows in memory; those of a key in one partition."""
    key = F.col("id") if not setting.keys else F.col("id") % (setting.keys // 2) * 2 + F.spark_partition_id() % 2
    df = spark.range(rows, numPartitions=setting.partitions).select(
        F.col("id").alias("seq"), F.concat(F.lit("k"), key.cast("string")).alias("k")
    )
    if setting.width:
        df = df.withColumn("beside", F.rpad(F.col("k"), setting.width, "x"))
    df = df.persist()
    df.count()
    return df


def run_one(setting: Setting, df: DataFrame, rows: int) -> float:
    """Rows per second of the whole job."""

    async def handle(row: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        is_slow = setting.slow is not None and row["seq"] * 2_654_435_761 % 2**32 < 2**32 // 100
        await asyncio.sleep(setting.slow if is_slow and setting.slow is not None else setting.seconds)
        return {"seq": row["seq"], "k": row["k"], "began": began, "ended": time.perf_counter()}

    operator = parallel_map(
        handle,
        schema=SCHEMA,
        key="k",
        max_concurrency=setting.concurrency,
        max_buffered=max(setting.buffered, setting.concurrency),
        in_order=setting.in_order,
    )
    began = time.perf_counter()
    count, total = df.transform(operator).agg(F.count("*"), F.sum("seq")).collect()[0]
    seconds = time.perf_counter() - began
    assert (count, total) == (rows, rows * (rows - 1) // 2), "not each row once"
    return rows / seconds


def measure(given: argparse.Namespace) -> Tables:
    """Measure each setting after a warm-up run."""
    spark = session()
    rows: list[Row] = []
    for setting in settings():
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(setting.arrow))
        df = rows_of(spark, setting, given.rows)
        run_one(setting, df, given.rows)
        rate = statistics.median(run_one(setting, df, given.rows) for _ in range(given.rounds))
        df.unpersist()
        part = rate / setting.bound()
        rows.append({"setting": setting.group, "value": setting.shown, "rows/s": rate, "of the bound": part})
        print(f"{setting.group}, {setting.shown}: {rate:,.0f} rows/s", flush=True)
    spark.stop()
    title = f"{given.rows:,} rows, calls of 5 ms, 100 in each of {TASKS} tasks, 1,000 keys, but for what is changed"
    return {f"{title}; medians of {given.rounds}": rows}


def main() -> int:
    """Returns the exit code."""
    parser = standalone.parser_of("spark_tuning", __doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of each setting, medians are told (default 3)")
    parser.add_argument("--rows", type=int, default=60_000)
    return standalone.run("spark_tuning", parser, parser.parse_args(), measure, beside=f"none; Apache Spark {SPARK}")


if __name__ == "__main__":
    sys.exit(main())
