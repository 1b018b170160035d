"""Topics over Spark Connect, and in a declared pipeline: a program of its own, since a process has one kind of session.

``python -m tests.support.spark.connect_program REMOTE SERVERS RAW WORK PIPED DIRECTORY`` prints what it found, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from aioparallel.records.errors import ConfigurationError
from aioparallel.spark.backfill import FromParquet, Step, ToParquet, backfill
from aioparallel.spark.checkpoints import checkpoint_status
from aioparallel.spark.checks import check
from aioparallel.spark.connector_jars import kafka_jars
from aioparallel.spark.headers import outgoing
from aioparallel.spark.topics import read_topic, write_topic
from tests.support.spark.settings import ALONE, STREAM_TIMEOUT

SPEC = """\
name: flights
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""

TRANSFORMATION = """\
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from aioparallel.spark.headers import outgoing
from aioparallel.spark.topics import read_topic, sink_options

spark = SparkSession.active()


@dp.temporary_view
def raw() -> DataFrame:
    return read_topic(spark, {raw!r}, bootstrap_servers={servers!r}, per_trigger=1_000)


dp.create_sink("work", "kafka", sink_options({piped!r}, bootstrap_servers={servers!r}))


@dp.append_flow(target="work")
def to_work() -> DataFrame:
    return spark.readStream.table("raw").transform(outgoing())
"""


def main(remote: str, servers: str, raw: str, work: str, piped: str, directory: str) -> None:
    """Copy ``raw`` to ``work`` with a session of Spark Connect, then to ``piped`` with a declared pipeline.

    ``remote``: a server's address, or ``local[2]``."""
    builder: Any = SparkSession.builder
    builder = builder.remote(remote)
    if remote.startswith("local"):
        builder = builder.config("spark.jars", ",".join(kafka_jars())).config(map=ALONE)
        builder = builder.config("spark.log.level", "OFF")
    else:
        os.environ["SPARK_REMOTE"] = remote  # for the pipeline
    spark: SparkSession = builder.getOrCreate()
    checked = check(spark, bootstrap_servers=servers, topics=[raw], outputs=[work], schema="n int", real_time=True)
    stream = read_topic(spark, raw, bootstrap_servers=servers).transform(outgoing(value=F.upper(F.col("value"))))
    checkpoint = Path(directory, "checkpoint")
    query = write_topic(stream, work, bootstrap_servers=servers, checkpoint=checkpoint, trigger={"availableNow": True})
    query.awaitTermination(STREAM_TIMEOUT)
    status = checkpoint_status(checkpoint, bootstrap_servers=servers)
    write_topic(read_topic(spark, raw, bootstrap_servers=servers, streaming=False), work, bootstrap_servers=servers)
    backfilled = backfill_twice(spark, Path(directory))
    run_pipeline(Path(directory, "pipeline"), servers, raw, piped)
    found = {
        "kind": type(spark).__module__,
        "sampled": checked.sampled[raw],
        "slots": checked.slots,
        "lag": [one.lag for one in status.partitions],
        "committed": sum(one.committed or 0 for one in status.partitions),
        "backfilled": backfilled,
    }
    print(json.dumps(found))


def backfill_twice(spark: SparkSession, directory: Path) -> dict[str, list[int]]:
    """Rows of a whole output and of one by months after each second run; runs that fail, and one that reads what it
    writes, change nothing."""
    source = FromParquet(directory / "in")
    spark.range(10).selectExpr("id AS n", "id % 2 AS month").write.parquet(str(directory / "in"))
    counts: dict[str, list[int]] = {"whole": [], "parts": []}
    months: list[Step] = [lambda df: df.where("month = 0"), lambda df: df.where("month = 1")]
    for name, columns in (("whole", ()), ("parts", ("month",))):
        path = directory / name
        to = ToParquet(path, "overwrite", columns)
        for _ in range(2):
            for month in months:
                backfill(spark, source, month, to=to)
            with contextlib.suppress(ConfigurationError):
                backfill(spark, source, lambda df: df.union(spark.read.parquet(str(path))), to=to)  # noqa: B023
            with contextlib.suppress(PySparkException):
                # In one task: another one would go on for a moment, and write where the run has cleared up.
                backfill(spark, source, lambda df: df.coalesce(1).where("raise_error('no') IS NULL"), to=to)
            counts[name].append(spark.read.parquet(str(path)).count())
    counts["left"] = [len(list(directory.glob(".*")))]
    return counts


def run_pipeline(directory: Path, servers: str, raw: str, piped: str) -> None:
    """As ``spark-pipelines run`` does it, in the session that there is; which it then stops."""
    from pyspark.pipelines.cli import run  # noqa: PLC0415 - it wants a session of Spark Connect to be there

    (directory / "transformations").mkdir(parents=True)
    spec = directory / "spark-pipeline.yml"
    spec.write_text(SPEC.format(storage=(directory / "storage").as_uri()))
    transformation = TRANSFORMATION.format(servers=servers, raw=raw, piped=piped)
    (directory / "transformations" / "work.py").write_text(transformation)
    run(spec, full_refresh=[], full_refresh_all=False, refresh=[], dry=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
