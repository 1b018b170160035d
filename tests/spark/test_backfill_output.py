"""Backfills to Parquet files: what is there stays until all of the new is, and nothing reads what it writes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from aioparallel.jvm.java_runtime import SPARK_MODULES, find_java
from aioparallel.records.errors import ConfigurationError
from aioparallel.spark import parallel_map
from aioparallel.spark.backfill import FromParquet, ToParquet, backfill
from aioparallel.spark.file_systems import HadoopFiles, Location
from aioparallel.spark.parquet_output import ParquetOutput
from tests.support.waiting import DEADLINE, until

pytestmark = pytest.mark.spark
START = "n int, month int"


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Path:
    """100 rows: n, and month 1 or 2."""
    path = tmp_path / "in"
    spark.range(100).selectExpr("cast(id as int) as n", "cast(1 + id % 2 as int) as month").write.parquet(str(path))
    return path


def rows(spark: SparkSession, path: Path, column: str = "n") -> list[int]:
    return sorted(row[0] for row in spark.read.parquet(str(path)).select(column).collect())


def month(number: int) -> Callable[[DataFrame], DataFrame]:
    return lambda frame: frame.where(F.col("month") == number)


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


@contextlib.contextmanager
def config(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = str(spark.conf.get(name))
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


async def fail_late(row: dict[str, Any]) -> dict[str, Any]:
    if row["n"] >= 90:
        raise ValueError("no such thing")
    return row


failing = parallel_map(fail_late, schema=START, retry=None)


def test_partitions_that_are_not_written_stay(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    """February beside January, and twice; one that has no row any more stays as it was."""
    to = ToParquet(tmp_path / "out", "overwrite", partition_by="month")
    for number in (1, 2, 2):
        backfill(spark, FromParquet(source), month(number), to=to)
    assert rows(spark, tmp_path / "out") == list(range(100))
    backfill(spark, FromParquet(source), month(2), lambda frame: frame.where("n < 50"), to=to)
    assert rows(spark, tmp_path / "out") == sorted([*range(0, 100, 2), *range(1, 50, 2)])
    backfill(spark, FromParquet(source), month(3), to=to)
    assert len(rows(spark, tmp_path / "out")) == 75
    assert names(tmp_path / "out") == ["._SUCCESS.crc", "_SUCCESS", "month=1", "month=2"]
    assert names(tmp_path) == ["in", "out"]


@pytest.mark.parametrize("partition_by", [pytest.param((), marks=pytest.mark.slow), ("month",)])
def test_a_run_that_fails_leaves_what_was_there(
    spark: SparkSession, source: Path, tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    """Also where there was nothing: no empty directory, at which the next run would end."""
    out = tmp_path / "out"
    for mode in ("overwrite",) if partition_by else ("error", "append"):
        with pytest.raises(Exception, match="no such thing"):
            backfill(spark, FromParquet(source), failing, to=ToParquet(out, mode, partition_by))  # type: ignore[arg-type]
        assert names(tmp_path) == ["in"]
    backfill(spark, FromParquet(source), lambda frame: frame.where("n < 50"), to=ToParquet(out, "error", partition_by))
    for mode in ("overwrite",) if partition_by else ("overwrite", "append"):
        with pytest.raises(Exception, match="no such thing"):
            backfill(spark, FromParquet(source), failing, to=ToParquet(out, mode, partition_by))  # type: ignore[arg-type]
        assert rows(spark, out) == list(range(50))
    backfill(spark, FromParquet(source), to=ToParquet(out, "overwrite", partition_by))
    assert rows(spark, out) == list(range(100))
    with pytest.raises(ConfigurationError, match=r'to=.*already exists: mode="overwrite" replaces'):
        backfill(spark, FromParquet(source), to=ToParquet(out, "error", partition_by))
    assert names(tmp_path) == ["in", "out"]


class LateJob:
    """A frame, and its writer, whose job fails while a task of it is about to write a file."""

    def __init__(self, spark: SparkSession, has_started: Path) -> None:
        self.spark = spark
        self.write = self
        self.has_started = has_started

    def parquet(self, path: str, mode: str, partitionBy: object) -> None:  # noqa: N803 - Spark's name
        target = Path(path.removeprefix("file://").removeprefix("file:"))
        has_started = self.has_started

        def late(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from batches
            has_started.touch()
            time.sleep(2)
            target.mkdir(parents=True)
            (target / "part-0").touch()

        job = self.spark.range(1).coalesce(1).mapInArrow(late, "id long")
        self.task = threading.Thread(target=job.collect)
        self.task.start()
        asyncio.run(until(has_started.exists))
        raise ValueError("no such thing")


def test_a_task_that_outlives_its_job_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reports the failure of a job while other tasks of it may still write."""
    job = LateJob(spark, tmp_path / "has_started")
    with pytest.raises(ValueError, match="no such thing"):
        ParquetOutput(spark, tmp_path / "out", "error", ()).write(cast("DataFrame", job))
    job.task.join()
    assert names(tmp_path) == ["has_started"]


def test_an_empty_directory_is_no_output(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    """As a failed job of Spark leaves one."""
    (tmp_path / "out" / "_temporary").mkdir(parents=True)
    backfill(spark, FromParquet(source), to=ToParquet(tmp_path / "out"))
    assert rows(spark, tmp_path / "out") == list(range(100))


@pytest.mark.parametrize("partition_by", [pytest.param((), marks=pytest.mark.slow), ("month",)])
def test_two_that_begin_at_once(spark: SparkSession, source: Path, tmp_path: Path, partition_by: Any) -> None:
    """Neither found anything there: what is appended is in addition, a month beside another one stays, and one that
    expects nothing fails."""

    def finished_meanwhile(number: int) -> Callable[[DataFrame], DataFrame]:
        def step(frame: DataFrame) -> DataFrame:
            backfill(spark, FromParquet(source), month(number), to=ToParquet(out, "append", partition_by))
            return frame.where("month = 1")

        return step

    out = tmp_path / "appended"
    backfill(spark, FromParquet(source), finished_meanwhile(1), to=ToParquet(out, "append", partition_by))
    assert rows(spark, out) == sorted([*range(0, 100, 2)] * 2)
    out = tmp_path / "replaced"
    backfill(spark, FromParquet(source), finished_meanwhile(2), to=ToParquet(out, "overwrite", partition_by))
    assert rows(spark, out) == list(range(0, 100, 1 if partition_by else 2))
    out = tmp_path / "new"
    with pytest.raises(ConfigurationError, match="already exists"):
        backfill(spark, FromParquet(source), finished_meanwhile(2), to=ToParquet(out, "error", partition_by))
    assert rows(spark, out) == list(range(1, 100, 2))


def test_what_is_partitioned_otherwise_is_refused(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    """Files of a run without partitions would stay beside them."""
    backfill(spark, FromParquet(source), to=ToParquet(tmp_path / "out"))
    for columns in ("month", ["n", "month"]):
        with pytest.raises(ConfigurationError, match=r"is not partitioned by .*write to another directory"):
            backfill(spark, FromParquet(source), to=ToParquet(tmp_path / "out", "overwrite", columns))


def test_two_levels_of_partitions(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    """A day is replaced, the other days of its month stay; through a link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    to = ToParquet(tmp_path / "out", "overwrite", ("month", "day"))
    for days in ("n % 5", "0"):
        backfill(spark, FromParquet(source), lambda frame, d=days: frame.withColumn("day", F.expr(d)), to=to)  # type: ignore[misc]
    found = {
        (row.month, row.day): row["count"]
        for row in spark.read.parquet(str(tmp_path / "out")).groupBy("month", "day").count().collect()
    }
    assert found == {(m, day): 10 if day else 50 for m in (1, 2) for day in range(5)}
    assert names(tmp_path) == ["in", "out", "real"]


def test_files_are_moved_by_hadoop_too(
    spark: SparkSession, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on HDFS: replaced whole, by partitions, and put back when a move fails."""
    monkeypatch.setattr("aioparallel.spark.file_systems.LocalFiles", lambda: HadoopFiles(spark, f"file:{tmp_path}"))
    whole, parts = (ToParquet(tmp_path / name, "overwrite", by) for name, by in (("whole", ()), ("parts", "month")))
    for _ in range(2):
        backfill(spark, FromParquet(source), to=whole)
        backfill(spark, FromParquet(source), month(1), to=parts)
    backfill(spark, FromParquet(source), month(2), to=parts)
    assert rows(spark, tmp_path / "whole") == rows(spark, tmp_path / "parts") == list(range(100))
    move, moves = HadoopFiles.move, []

    def second_fails(self: HadoopFiles, path: str, to: str) -> None:
        moves.append(path)
        if len(moves) == 4:
            raise OSError("the disk is gone")
        move(self, path, to)

    monkeypatch.setattr(HadoopFiles, "move", second_fails)
    with pytest.raises(OSError, match="the disk is gone"):
        backfill(spark, FromParquet(source), lambda frame: frame.withColumn("n", F.lit(7)), to=parts)
    assert rows(spark, tmp_path / "parts") == list(range(100))
    assert names(tmp_path) == ["in", "parts", "whole"]


def test_cached_frames_see_what_was_moved(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    """As when Spark writes itself: it would answer from its cache otherwise."""
    out = tmp_path / "out"
    backfill(spark, FromParquet(source), to=ToParquet(out))
    cached = spark.read.parquet(str(out)).persist()
    assert cached.count() == 100
    backfill(spark, FromParquet(source), month(1), to=ToParquet(out, "overwrite"))
    try:
        assert spark.read.parquet(str(out)).count() == 50
    finally:
        cached.unpersist()


def test_a_partition_beside_the_one_that_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """Is neither read nor holds what is read; the directory of both does."""
    out = tmp_path / "out"
    spark.range(10).selectExpr("id", "1 AS month").write.partitionBy("month").parquet(str(out))
    backfill(spark, FromParquet(out / "month=1"), to=ToParquet(out / "month=2"))
    assert len(rows(spark, out, "id")) == 20
    with pytest.raises(ConfigurationError, match="is inside an input"):
        backfill(spark, FromParquet(out), to=ToParquet(out / "month=3"))


@pytest.mark.parametrize("mode", [pytest.param("error", marks=pytest.mark.slow), "overwrite"])
def test_where_only_the_server_reaches_the_files(
    spark: SparkSession, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    """A run that fails leaves an empty directory, at which the next one does not end; and what is there stays."""
    monkeypatch.setattr("aioparallel.spark.parquet_output.locate", lambda _, path: Location(os.fspath(path), None))
    to = ToParquet(tmp_path / "out", mode)
    with pytest.raises(Exception, match="no such thing"):
        backfill(spark, FromParquet(source), failing, to=to)
    assert names(tmp_path / "out") == []
    backfill(spark, FromParquet(source), to=to)
    with pytest.raises(ConfigurationError, match=r"already exists|cannot be replaced over Connect"):
        backfill(spark, FromParquet(source), month(1), to=to)
    assert rows(spark, tmp_path / "out") == list(range(100))


@pytest.mark.parametrize("mode", [pytest.param("overwrite", marks=pytest.mark.slow), "append"])
def test_a_step_that_reads_what_is_written(spark: SparkSession, source: Path, tmp_path: Path, mode: Any) -> None:
    """The present output, however it comes into the frame: by its path, a link, a table, a view, from the cache, in a
    subquery. It is as it was."""
    out, link = tmp_path / "out", tmp_path / "link"
    backfill(spark, FromParquet(source), to=ToParquet(out))
    link.symlink_to(out)
    spark.sql(f"CREATE TABLE present USING parquet LOCATION '{out}'")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW seen AS SELECT * FROM present")
    cached = spark.read.parquet(str(out)).persist()
    with config(spark, "spark.sql.sources.useV1SourceList", ""):
        other = spark.read.parquet(str(out)).where("n >= 0").persist()
    readers: list[Callable[[DataFrame], DataFrame]] = [
        lambda frame: frame.union(spark.read.parquet(f"file://{out}")),
        lambda frame: frame.union(spark.read.parquet(str(link))),
        lambda frame: frame.union(spark.table("present")),
        lambda frame: frame.union(spark.table("seen")),
        lambda frame: frame.union(cached),
        lambda frame: frame.union(other),
        lambda frame: frame.where(F.expr("n > (SELECT max(n) - 10 FROM present)")),
        lambda frame: frame.join(spark.read.parquet(f"{out}/*.parquet"), "n", "left_anti"),
    ]
    try:
        for step in readers:
            with pytest.raises(ConfigurationError, match=r"to=.*an input.*write to another directory"):
                backfill(spark, FromParquet(source), step, to=ToParquet(out, mode))
        assert rows(spark, out) == list(range(100))
    finally:
        cached.unpersist()
        other.unpersist()
        spark.sql("DROP TABLE present")


def test_files_beside_the_output_may_be_read(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    """A single file in the directory above, and names that begin alike."""
    (file,) = [path for path in source.iterdir() if path.suffix == ".parquet"][:1]
    file.rename(tmp_path / "one.parquet")
    backfill(
        spark,
        FromParquet(tmp_path / "one.parquet"),
        lambda frame: frame.unionByName(spark.read.parquet(str(tmp_path / "one.parquet"))),
        to=ToParquet(tmp_path / "in2"),
    )
    assert (tmp_path / "in2" / "_SUCCESS").exists()


@pytest.mark.slow
def test_a_driver_that_is_killed_leaves_what_was_there(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    """kill -9 in the middle, with and without partitions, beside a directory that was not there yet; and the next
    run."""
    outs = {"whole": (), "parts": ("month",)}
    for name, columns in outs.items():
        backfill(spark, FromParquet(source), month(1), to=ToParquet(tmp_path / name, partition_by=columns))
    environment = {**os.environ, "JAVA_HOME": str(find_java(SPARK_MODULES).home), "PYSPARK_PYTHON": sys.executable}
    program = [sys.executable, "-m", "tests.support.spark.killed_backfill", str(tmp_path)]
    running = subprocess.Popen(program, env=environment, start_new_session=True)
    try:
        asyncio.run(until(lambda: len(list(tmp_path.glob("started-*"))) == 3, DEADLINE, "handlers in all three"))
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait(DEADLINE)
    assert rows(spark, tmp_path / "whole") == rows(spark, tmp_path / "parts") == list(range(0, 100, 2))
    for name, columns in {**outs, "new": ()}.items():
        mode: Any = "error" if name == "new" else "overwrite"
        backfill(spark, FromParquet(source), to=ToParquet(tmp_path / name, mode, columns))
        assert rows(spark, tmp_path / name) == list(range(100))
