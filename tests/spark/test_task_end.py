"""Spark ends a task early: nothing begins after that, and what runs is cancelled."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody has it

from aioparallel.spark import async_udf, parallel_map
from tests.support.spark.calls import Calls, noting

pytestmark = pytest.mark.spark
SOON = 1.5
"""Seconds in which Spark ends its tasks, on a machine with other load. Workers that do not look go on for 2 to 4 more.
"""
AT_ONCE = 20


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    """Noted by the handlers."""
    return Calls(tmp_path / "calls")


def mapped(calls: Calls) -> Callable[[DataFrame], DataFrame]:
    """By the operator."""
    directory = calls.directory

    async def call(row: dict[str, Any]) -> dict[str, Any]:
        await noting(directory, 0.01)
        return row

    return parallel_map(call, schema="id bigint", max_concurrency=AT_ONCE)


def with_column(calls: Calls) -> Callable[[DataFrame], DataFrame]:
    """By the column."""
    directory = calls.directory

    @async_udf(returns="bigint", max_concurrency=AT_ONCE)
    async def call(number: int) -> int:
        await noting(directory, 0.01)
        return number

    return lambda df: df.select(call("id").alias("id"))


def late(calls: Calls, end: float) -> list[float]:
    """Seconds after the end of those that began then."""
    calls.wait_for_the_last()
    print(f"the last call began {max(calls.times()) - end:.2f} s after the end, {len(calls.times())} in all")
    return [begun - end for begun in calls.times() if begun > end + SOON]


@pytest.mark.parametrize("made", [mapped, with_column])
def test_a_cancelled_job(spark: SparkSession, calls: Calls, made: Any) -> None:
    """The handlers in flight are cancelled in peace: those of an executor too."""
    df = spark.range(100_000, numPartitions=2).transform(made(calls))
    job = threading.Thread(target=lambda: _quietly(df))
    job.start()
    calls.wait_for(200)
    spark.sparkContext.cancelAllJobs()
    end = time.time()
    job.join()
    assert late(calls, end) == []
    assert 1 <= len(calls.times("cancelled")) <= 2 * AT_ONCE


def _quietly(df: DataFrame) -> None:
    try:
        df.write.format("noop").mode("append").save()
    except Exception:  # it was cancelled
        return


def test_a_stopped_query(spark: SparkSession, calls: Calls) -> None:
    """A query that is started again may begin at once."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50_000).option("numPartitions", 2)
    df = source.load().select(F.col("value").alias("id")).transform(mapped(calls))
    query = df.writeStream.format("noop").start()
    calls.wait_for(200)
    query.stop()
    assert late(calls, time.time()) == []


def test_a_limit(spark: SparkSession, calls: Calls) -> None:
    """It is told of the first rows soon, and calls for few more than it wants."""
    df = spark.range(100_000, numPartitions=1).transform(mapped(calls)).limit(5)
    assert df.count() == 5
    assert late(calls, time.time()) == []
    assert len(calls.times()) < 10_000


def test_a_limit_before_large_rows(spark: SparkSession) -> None:
    """Megabytes wait on both ways of the connection when the task ends."""

    async def twice(row: dict[str, Any]) -> dict[str, Any]:
        return {"text": 2 * row["text"]}

    rows = spark.range(60, numPartitions=1).selectExpr("cast(repeat('x', 1000000) as binary) as text")
    assert rows.transform(parallel_map(twice, schema="text binary")).limit(1).selectExpr("length(text)").first() == (
        2_000_000,
    )


def test_a_worker_with_slow_calls_is_not_idle(spark: SparkSession) -> None:
    """To a Spark that kills workers of which it hears nothing."""
    names = [f"spark.sql.execution.pyspark.udf.{name}" for name in ("idleTimeoutSeconds", "killOnIdleTimeout")]

    async def slow(row: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(row["id"])
        return row

    operator = parallel_map(slow, schema="id bigint")
    spark.range(1, numPartitions=1).transform(operator).count()  # it may take long to start one
    for name, value in zip(names, ("2s", "true"), strict=True):
        spark.conf.set(name, value)
    try:
        assert spark.range(4, numPartitions=1).transform(operator).count() == 4
    finally:
        for name in names:
            spark.conf.unset(name)
