"""Millions of rows through the operator, and large ones: the Python worker does not grow. ``make load-spark``."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody has it

from aioparallel.spark import parallel_map
from tests.load.spark_memory import SHAPES

pytestmark = [pytest.mark.slow, pytest.mark.spark]
ROWS = 2_000_000
MEBIBYTE = 1 << 20


@pytest.mark.parametrize("on_error", ["raise", "emit"])
def test_two_million_rows(spark: SparkSession, on_error: Any) -> None:
    """After a fifth of them a worker has the memory that it has at the end."""

    async def measure(row: dict[str, Any]) -> dict[str, Any]:
        import os  # noqa: PLC0415 - in the worker
        import time  # noqa: PLC0415

        import psutil  # noqa: PLC0415

        if on_error == "emit" and row["seq"] % 100 == 1:
            raise ValueError("every hundredth")
        measured = psutil.Process().memory_info().rss if row["seq"] % 5_000 == 0 else None
        return {"seq": row["seq"], "pid": os.getpid(), "at": time.time(), "bytes": measured}

    df = spark.range(ROWS, numPartitions=2).select(
        F.col("id").alias("seq"), F.concat(F.lit("k"), (F.col("id") % 10_000).cast("string")).alias("k")
    )
    operator = parallel_map(
        measure, schema="seq bigint, pid bigint, at double, bytes bigint", key="k", on_error=on_error, retry=None
    )
    out = df.transform(operator)
    values = out.select("value.*") if on_error == "emit" else out
    looks = (
        values.where("bytes is not null or seq is null")
        .groupBy("pid")
        .agg(F.sort_array(F.collect_list(F.struct("at", "bytes"))).alias("looks"), F.count("*").alias("rows"))
    )
    found = looks.collect()
    for row in found:
        sizes = [look.bytes for look in row.looks if look.bytes is not None]
        if not sizes:
            continue
        assert len(sizes) > 100
        warm = max(sizes[: len(sizes) // 5])
        print(f"{on_error}: worker {row.pid}: {warm / MEBIBYTE:.1f} MiB, then {max(sizes) / MEBIBYTE:.1f} at most")
        assert max(sizes) - warm < 20 * MEBIBYTE


@pytest.mark.parametrize("shape", SHAPES)
def test_large_rows_and_results(shape: str) -> None:
    """Whatever is large, and whenever it comes, a worker has less than 500 MiB; with rows alone bounded it had up to
    3 GB."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.load.spark_memory", shape], check=True, capture_output=True, text=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"{shape}: {found['bytes'] / MEBIBYTE:.0f} MiB")
    assert found["rows"] == 2 * SHAPES[shape].rows
    assert found["bytes"] < 500 * MEBIBYTE
