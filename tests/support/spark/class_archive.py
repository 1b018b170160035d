"""An archive of Spark's loaded classes (JEP 350), in the cache of jars: a Spark of the tests then starts with half the
CPU time. Measured on two cores until it had written a Parquet file: 9 s instead of 16 s.

``python -m tests.support.spark.class_archive`` makes it, unless it is there, in 20 s of CPU time more. It is for one
Java and one PySpark. Java checks it, and ignores one that does not fit.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from aioparallel.jvm.jars import cache_directory
from aioparallel.jvm.java_runtime import SPARK_MODULES, find_java
from aioparallel.records.errors import JavaNotFound

__all__ = ["EXIT_TIMEOUT", "archive_options", "end_jvm"]

EXIT_TIMEOUT: Final = 120.0
"""Seconds for the JVM to end after its standard input has been closed."""
_QUIET: Final = "-Xlog:cds*=off -Xlog:cds=off"
"""No message about an archive that does not fit."""


def archive_options() -> str:
    """Options for Java that name the archive; empty if there is none."""
    try:
        archive = _place()
    except (JavaNotFound, NotADirectoryError):  # Spark's workers import PySpark from a zip file, without jars
        return ""
    return f"-XX:SharedArchiveFile={archive} {_QUIET}" if archive.exists() else ""


def end_jvm() -> None:
    """``SparkSession.stop`` ends Spark, and leaves the JVM to the end of Python. It ends with its standard input."""
    gateway: Any = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(EXIT_TIMEOUT)


def _place() -> Path:
    """Its path, which depends on the Java executable and on PySpark's jars."""
    java = find_java(SPARK_MODULES).executable.resolve()
    jars = Path(pyspark.__file__).parent / "jars"
    about = f"{java} {java.stat().st_mtime_ns} {jars} {jars.stat().st_mtime_ns}"
    return cache_directory() / f"spark-{pyspark.__version__}-{hashlib.sha256(about.encode()).hexdigest()[:12]}.jsa"


def _work(archive: Path, scratch: Path) -> None:
    """A Spark that does a little of everything, and writes the archive when it ends."""
    from tests.support.spark.settings import ALONE, QUICK_START, SERVING  # noqa: PLC0415 - it asks for the archive

    options = f"{QUICK_START} -XX:ArchiveClassesAtExit={archive} {_QUIET}"
    builder: Any = SparkSession.builder
    builder = builder.master("local[2]").config(map={**ALONE, **SERVING, "spark.driver.extraJavaOptions": options})
    spark: SparkSession = builder.config("spark.log.level", "OFF").getOrCreate()
    try:
        numbers = spark.range(100).selectExpr("id", "id % 3 AS part", "cast(id AS string) AS text")
        numbers.write.partitionBy("part").parquet(str(scratch / "numbers"))
        numbers = spark.read.parquet(str(scratch / "numbers"))
        numbers.mapInArrow(lambda batches: batches, numbers.schema).groupBy("part").count().collect()
        stream = spark.readStream.schema(numbers.schema).parquet(str(scratch / "numbers")).writeStream.format("noop")
        stream = stream.option("checkpointLocation", str(scratch / "checkpoint")).trigger(availableNow=True)
        stream.start().awaitTermination()
    finally:
        spark.stop()
        end_jvm()


def main() -> int:
    """Make it, unless it is there."""
    try:
        os.environ["JAVA_HOME"] = str(find_java(SPARK_MODULES).home)
    except JavaNotFound as missing:
        print(f"no archive of Spark's classes: {missing}")
        return 0
    os.environ["PYSPARK_PYTHON"] = sys.executable
    archive = _place()
    if archive.exists():
        return 0
    archive.parent.mkdir(parents=True, exist_ok=True)
    fresh = archive.with_name(f"{archive.name}.{os.getpid()}")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            _work(fresh, Path(scratch))
        if fresh.exists():
            fresh.replace(archive)  # atomic, so that others see the whole file or none
    finally:
        fresh.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
