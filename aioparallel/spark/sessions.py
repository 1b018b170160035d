"""What a session tells of itself, without its JVM: the same in classic Spark and over Connect."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from aioparallel.errors import CheckFailed

__all__ = [
    "connector_trouble",
    "is_connect",
    "java_version",
    "naming_the_jars",
    "shuffle_partitions",
    "task_slots",
    "told",
]

_LOCAL: Final = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")
# What Spark has unless somebody sets it; and tasks one after the other, so that a few long ones hold up little.
_SHUFFLE_PARTITIONS: Final = 200
_IN_TURN: Final = 8
_NO_CONNECTOR: Final = (
    "the session has no Kafka connector: start it with SparkSession.builder.config("
    '"spark.jars", ",".join(kafka_jars())), or spark-submit --jars "$(python -m aioparallel.jvm)"'
)


def connector_trouble(spark: SparkSession) -> str | None:
    """Why this session can read no topic, and what to do; None if it has the Kafka connector. Asks no broker."""
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "any")
    try:
        _ = source.load().schema  # known without a broker
    except Exception as error:
        return _NO_CONNECTOR if _is_no_connector(error) else told(error)
    return None


@contextlib.contextmanager
def naming_the_jars() -> Iterator[None]:
    """For what reads or writes a topic: a session without the connector is CheckFailed, which says what to do."""
    try:
        yield
    except Exception as error:
        if not _is_no_connector(error):
            raise
        raise CheckFailed([_NO_CONNECTOR]) from None  # a page of Java, which says no more


def is_connect(spark: SparkSession) -> bool:
    """Whether it is a session of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def java_version(spark: SparkSession) -> str:
    """Of the Java that runs Spark, as in "17.0.15". Runs a job."""
    (row,) = spark.sql("SELECT java_method('java.lang.System', 'getProperty', 'java.version') AS version").collect()
    return str(row.version)


def task_slots(spark: SparkSession) -> int | None:
    """How many tasks run at once, from Spark's settings; None where they do not say (executors come and go)."""
    cores_of_a_task = int(spark.conf.get("spark.task.cpus", "1") or 1)
    if local := _LOCAL.fullmatch(spark.conf.get("spark.master", "") or ""):
        if local[1] == "*":
            if not is_connect(spark):
                return int(spark.sparkContext.defaultParallelism) // cores_of_a_task
            threads = spark.range(1 << 16).select(F.spark_partition_id()).distinct().count()  # a partition for each
            return threads // cores_of_a_task
        return int(local[1] or 1) // cores_of_a_task
    executors, cores = (spark.conf.get(f"spark.executor.{name}", "") for name in ("instances", "cores"))
    if not executors or not cores:
        return None
    return int(executors) * (int(cores) // cores_of_a_task)


def shuffle_partitions(spark: SparkSession) -> int | None:
    """How many partitions a shuffle before Python workers should have; None: as many as Spark gives it, because
    somebody has set that, or it is not more than serves.

    Each of them costs a tenth of a second there, whatever it holds. Spark has 200 and joins small ones, but in streams,
    and under ``persist()`` (``spark.sql.optimizer.canChangeCachedPlanOutputPartitioning`` is false), it does not.
    """
    if spark.conf.get("spark.sql.shuffle.partitions", str(_SHUFFLE_PARTITIONS)) != str(_SHUFFLE_PARTITIONS):
        return None
    slots = task_slots(spark)
    return None if slots is None or _IN_TURN * slots >= _SHUFFLE_PARTITIONS else _IN_TURN * max(1, slots)


def _is_no_connector(error: Exception) -> bool:
    # Classic and Connect have errors of their own for it, and none of them has a class that says what it is.
    text = str(error).lower()
    return "failed to find" in text and "data source: kafka" in text


def told(error: Exception) -> str:
    """What Spark says, without the stack traces: the first line, and the cause behind all others."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        del lines[0]  # the gateway's, which names its own objects
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    first = lines[0].removeprefix(": ")
    return f"{first}, caused by {causes[-1]}" if causes and causes[-1] not in first else first
