"""A driver that ends its tasks early: ``python -m tests.load.spark_ends HOW RUNS DIRECTORY``.

HOW: ``stop``, ``limit``, ``cancel``, ``retry`` or ``speculation``. For each run it writes a line of JSON to the
file ``runs`` there: the calls, and the seconds after the end of those that began then.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody has it

from aioparallel.spark import parallel_map
from aioparallel.testing.processes.guarded import GuardedProcess
from tests.support.spark.calls import Calls, noting
from tests.support.spark.settings import ALONE

ROWS = 200_000
AT_ONCE = 20
SECONDS = 0.01
BEFORE = (100, 500, 1_000, 3_000)
"""Calls before the end, by turns."""


def calling(calls: Calls) -> Callable[[DataFrame], DataFrame]:
    """The operator."""
    directory = calls.directory

    async def call(row: dict[str, Any]) -> dict[str, Any]:
        await noting(directory, SECONDS)
        return row

    return parallel_map(call, schema="id bigint", max_concurrency=AT_ONCE)


def quietly(df: DataFrame) -> None:
    """To its end, whatever that is."""
    try:
        df.write.format("noop").mode("append").save()
    except Exception:  # it was cancelled
        return


def stop(spark: SparkSession, calls: Calls, before: int) -> float:
    """``query.stop()``."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50_000).option("numPartitions", 2)
    df = source.load().select(F.col("value").alias("id")).transform(calling(calls))
    query = df.writeStream.format("noop").start()
    calls.wait_for(before)
    query.stop()
    return time.time()


def limit(spark: SparkSession, calls: Calls, before: int) -> float:
    """``limit(...)`` has its rows."""
    spark.range(ROWS, numPartitions=2).transform(calling(calls)).limit(before // 100).collect()
    return time.time()


def cancel(spark: SparkSession, calls: Calls, before: int) -> float:
    """``cancelAllJobs()``."""
    job = threading.Thread(target=quietly, args=(spark.range(ROWS, numPartitions=2).transform(calling(calls)),))
    job.start()
    calls.wait_for(before)
    spark.sparkContext.cancelAllJobs()
    end = time.time()
    job.join()
    return end


def retry(spark: SparkSession, calls: Calls, before: int) -> float:
    """A row fails the first attempt of its task: calls of that attempt, after the second one has begun."""
    directory = calls.directory

    async def call(row: dict[str, Any]) -> dict[str, Any]:
        context = TaskContext.get()
        attempt = 0 if context is None else context.attemptNumber()
        if attempt == 0 and row["id"] == before:
            raise ValueError("the first attempt fails")
        await noting(directory, SECONDS, "begun" if attempt == 0 else "again")
        return row

    operator = parallel_map(call, schema="id bigint", max_concurrency=AT_ONCE, retry=None)
    spark.range(before + 1_000, numPartitions=1).transform(operator).write.format("noop").mode("append").save()
    return calls.times("again")[0]


def speculation(spark: SparkSession, calls: Calls, before: int) -> float:
    """A task is slow in its first attempt, and another attempt of it is quicker: calls of the slow one after that."""
    directory = calls.directory

    async def call(row: dict[str, Any]) -> dict[str, Any]:
        context = TaskContext.get()
        slow = context is not None and context.partitionId() == 3 and context.attemptNumber() == 0
        await noting(directory, 0.2 if slow else SECONDS, "begun" if slow else "quick")
        return row

    operator = parallel_map(call, schema="id bigint", max_concurrency=AT_ONCE)
    spark.range(16_000, numPartitions=4).transform(operator).write.format("noop").mode("append").save()
    return time.time()


HOW = {"stop": stop, "limit": limit, "cancel": cancel, "retry": retry, "speculation": speculation}


@contextlib.contextmanager
def cluster() -> Iterator[str]:
    """A master and a worker at each of two addresses, since Spark starts a second attempt on another host only."""
    program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    with contextlib.ExitStack() as stack:

        def start(kind: str, host: str, *arguments: str) -> None:
            process = stack.enter_context(contextlib.closing(GuardedProcess("spark")))
            command = [program, f"org.apache.spark.deploy.{kind.lower()}.{kind}", "--host", host, "--webui-port", "0"]
            process.run([*command, *arguments], process.directory / "log")

        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        start("Master", "127.0.0.1", "--port", str(port))
        for host in ("127.0.0.1", "127.0.0.2"):
            start("Worker", host, "--cores", "2", "--memory", "1g", "--work-dir", "work", f"spark://127.0.0.1:{port}")
        yield f"spark://127.0.0.1:{port}"


def main(how: str, runs: str, directory: str) -> None:
    """All runs in one session."""
    with contextlib.ExitStack() as stack:
        master = "local[2, 2]" if how == "retry" else "local[2]"
        if how == "speculation":
            master = stack.enter_context(cluster())
        _run(how, int(runs), Path(directory), master)


def _run(how: str, runs: int, directory: Path, master: str) -> None:
    builder: Any = SparkSession.builder
    spark = (
        builder.master(master)
        .config(map=ALONE)
        .config("spark.log.level", "OFF")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.extraJavaOptions", "-XX:+UseSerialGC")
        .config("spark.executorEnv.PYTHONPATH", os.environ.get("PYTHONPATH", os.getcwd()))
        .config("spark.speculation", str(how == "speculation").lower())
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.speculation.multiplier", "1.2")
        .getOrCreate()
    )
    try:
        for run in range(runs):
            calls = Calls(directory / str(run))
            end = HOW[how](spark, calls, BEFORE[run % len(BEFORE)])
            calls.wait_for_the_last()
            begun = calls.times()
            late = [round(moment - end, 3) for moment in begun if moment > end]
            with (directory / "runs").open("a") as file:
                print(json.dumps({"run": run, "calls": len(begun), "late": late}), file=file)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
