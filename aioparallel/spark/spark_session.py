"""Facts about a session, found without its JVM, so it works in classic Spark and over Connect."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from aioparallel.records.errors import CheckFailed

__all__ = [
    "connector_trouble",
    "is_connect",
    "java_version",
    "naming_the_jars",
    "shuffle_partitions",
    "summary_of",
    "task_slots",
]

_LOCAL: Final = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")
# Spark's default; and the number of tasks for each slot, so that a few long ones delay the stage little.
_SHUFFLE_PARTITIONS: Final = 200
_TASKS_PER_SLOT: Final = 8
_NO_CONNECTOR: Final = (
    "the session has no Kafka connector: start it with SparkSession.builder.config("
    '"spark.jars", ",".join(kafka_jars())), or spark-submit --jars "$(python -m aioparallel.jvm)"'
)


def connector_trouble(spark: SparkSession) -> str | None:
    """Why this session cannot read topics, and what to do; None if it has the Kafka connector. Asks no broker."""
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "any")
    try:
        _ = source.load().schema  # known without a broker
    except Exception as error:
        return _NO_CONNECTOR if _is_no_connector(error) else summary_of(error)
    return None


@contextlib.contextmanager
def naming_the_jars() -> Iterator[None]:
    """Turn the error of a session without the connector into CheckFailed, which says what to do."""
    try:
        yield
    except Exception as error:
        if not _is_no_connector(error):
            raise
        raise CheckFailed([_NO_CONNECTOR]) from None  # Java's error is long and says no more


def is_connect(spark: SparkSession) -> bool:
    """Whether this is a Spark Connect session."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def java_version(spark: SparkSession) -> str:
    """The version of the Java that runs Spark, like "17.0.15". Runs a job."""
    (row,) = spark.sql("SELECT java_method('java.lang.System', 'getProperty', 'java.version') AS version").collect()
    return str(row.version)


def task_slots(spark: SparkSession) -> int | None:
    """How many tasks run at once, by Spark's settings; None if they do not say (dynamic executors)."""
    cores_of_a_task = int(spark.conf.get("spark.task.cpus", "1") or 1)
    if local := _LOCAL.fullmatch(spark.conf.get("spark.master", "") or ""):
        if local[1] == "*":
            if not is_connect(spark):
                return int(spark.sparkContext.defaultParallelism) // cores_of_a_task
            threads = spark.range(1 << 16).select(F.spark_partition_id()).distinct().count()  # one partition each
            return threads // cores_of_a_task
        return int(local[1] or 1) // cores_of_a_task
    executors, cores = (spark.conf.get(f"spark.executor.{name}", "") for name in ("instances", "cores"))
    if not executors or not cores:
        return None
    return int(executors) * (int(cores) // cores_of_a_task)


def shuffle_partitions(spark: SparkSession) -> int | None:
    """How many partitions a shuffle before Python workers should have. None: Spark's own number, as the user has set
    it, or it is small enough.

    Each partition costs a tenth of a second there, even if it is empty. Spark has 200 by default. It merges small ones,
    but not in streams and under ``persist()`` (``spark.sql.optimizer.canChangeCachedPlanOutputPartitioning`` is false).
    """
    if spark.conf.get("spark.sql.shuffle.partitions", str(_SHUFFLE_PARTITIONS)) != str(_SHUFFLE_PARTITIONS):
        return None
    slots = task_slots(spark)
    return None if slots is None or _TASKS_PER_SLOT * slots >= _SHUFFLE_PARTITIONS else _TASKS_PER_SLOT * max(1, slots)


def _is_no_connector(error: Exception) -> bool:
    # Classic Spark and Connect have different errors for this, and neither a class of its own.
    text = str(error).lower()
    return "failed to find" in text and "data source: kafka" in text


def summary_of(error: Exception) -> str:
    """Spark's error without stack traces: the first line, and the root cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        del lines[0]  # from the gateway, about its own objects
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    first = lines[0].removeprefix(": ")
    return f"{first}, caused by {causes[-1]}" if causes and causes[-1] not in first else first
