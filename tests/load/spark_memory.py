"""How much memory the Python workers of Spark take, by the shape of rows. ``python -m tests.load.spark_memory SHAPE``
prints, as JSON, the most that one worker had, and how many rows came out.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from aioparallel.spark import parallel_map
from tests.support.spark.settings import ALONE

__all__ = ["SHAPES"]

SCHEMA = "n bigint, page string"


class Shape(NamedTuple):
    """``row``: the page of row ``n`` of a partition, in SQL; ``result``: characters of what comes out."""

    rows: int
    """Of each of two partitions."""
    row: str
    result: int
    seconds: float
    slow: float
    """Seconds of the first row of each partition."""
    in_order: bool


SHAPES = {
    "results of 100 kB behind a row of 12 s": Shape(10_000, "'x'", 100_000, 0.0, 12.0, True),
    "results of 300 kB at 5 ms": Shape(5_000, "'x'", 300_000, 0.005, 0.005, False),
    "1,000 small rows, then 300 kB": Shape(5_000, "if(n < 1000, 'x', repeat('x', 300000))", 1, 0.2, 0.2, False),
    "small rows": Shape(500_000, "'x'", 1, 0.0, 0.0, False),
}
"""By their names."""


def handler_of(shape: Shape) -> Callable[[dict[str, Any]], Any]:
    """Waits, and returns a text of its own."""

    async def handle(row: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(shape.seconds if row["n"] else shape.slow)
        return {"n": row["n"], "page": f"{row['n']:<{shape.result}}"}

    return handle


def run(spark: SparkSession, shape: Shape) -> int:
    """Rows that came out."""
    rows: DataFrame = (
        spark.range(2 * shape.rows, numPartitions=2)
        .selectExpr(f"id % {shape.rows} as n")
        .selectExpr("n", f"{shape.row} as page")
    )
    made = rows.transform(parallel_map(handler_of(shape), schema=SCHEMA, in_order=shape.in_order))
    found = made.agg(F.count("*"), F.sum(F.length("page"))).collect()[0]
    return int(found[0])


class Peak(threading.Thread):
    """The most that one of the Python workers has."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes = 0
        self.over = threading.Event()

    def run(self) -> None:
        me = psutil.Process()
        while not self.over.wait(0.05):
            for child in me.children(recursive=True):
                try:
                    if child.name().startswith("python"):
                        self.bytes = max(self.bytes, child.memory_info().rss)
                except psutil.Error:
                    continue


def main(name: str) -> None:
    """In a Spark of its own."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder
    spark: SparkSession = (
        builder.master("local[2]")
        .config(map=ALONE)
        .config("spark.log.level", "ERROR")
        .config("spark.driver.memory", "2g")
        .getOrCreate()
    )
    # The first batch has the small rows alone, and so nothing in it tells how large the others are.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    peak = Peak()
    peak.start()
    rows = run(spark, SHAPES[name])
    peak.over.set()
    print(json.dumps({"rows": rows, "bytes": peak.bytes}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
