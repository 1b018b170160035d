"""Writes Parquet files so that all of them appear when the last one is written.

Spark writes into a staging directory next to the output, which readers ignore. When it has ended, the files are moved.
So a run that fails leaves what was there, and no empty directory. Files that are replaced are moved away first, and
removed last.

A process that is killed while files are moved has moved some partitions and not others. A partition that was moved away
and not yet replaced is recognised by its new rows, which are still in the staging directory: the next run moves it
back. A partition that was replaced is never moved back, not even if it was deleted since.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Final, Literal, TypeAlias
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from aioparallel.records.errors import ConfigurationError
from aioparallel.spark.file_systems import Files, has_jvm, is_hidden, locate

__all__ = ["Mode", "ParquetOutput"]

logger = logging.getLogger(__name__)

Mode: TypeAlias = Literal["error", "append", "overwrite"]

# Seconds to wait for running tasks of a job that has failed, and between two looks at them.
_LATE_TASKS: Final = 10.0
_LOOK_INTERVAL: Final = 0.1
# In the staging directory: new rows, what was moved away as a whole, and what was moved away by partitions.
_ROWS: Final = "_rows"
_REPLACED: Final = "_replaced"
_REPLACED_PARTITIONS: Final = "_replaced_partitions"
_ANOTHER: Final = "write to another directory"
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Spark and Hive write for a partition's value that is NULL or an empty text."""
_ALREADY: Final = 'already exists: mode="overwrite" replaces what is there, "append" adds to it'
_OF_FAILED_JOBS: Final = ("_temporary", "_SUCCESS", "._SUCCESS.crc")
"""Entries that a Spark job leaves in a directory if it fails or has no rows."""


class ParquetOutput:
    """A directory to write to. Raises ConfigurationError if its content does not agree with the mode."""

    def __init__(
        self, spark: SparkSession, path: str | os.PathLike[str], mode: Mode, partition_by: Sequence[str]
    ) -> None:
        self._spark = spark
        self._given = os.fspath(path)
        self._mode = mode
        self._columns = list(partition_by)
        location = locate(spark, path)
        self.path = location.path
        self._files = location.files
        if self._files is None:
            self._check_remote()
            return
        self._above, _, self._name = self.path.rpartition("/")
        self._is_root = not self._name or self._above.endswith(":/") or os.path.ismount(self.path)
        if not self._is_root:
            _put_back(self._files, self._above, self._name)
        self._check(self._files)

    def write(self, frame: DataFrame) -> None:
        """Write all rows, or nothing."""
        if self._files is None:
            self._write_remotely(frame)
            return
        if self._mode == "append" and (self._is_root or self._files.is_directory(self.path)):
            frame.write.parquet(self._files.uri(self.path), mode="append", partitionBy=self._columns or None)
        else:
            self._write_and_move(frame, self._files)
        # Spark does not notice the moves: its cached frames would keep the old rows.
        self._spark.catalog.refreshByPath(self._files.uri(self.path))

    def _write_remotely(self, frame: DataFrame) -> None:
        writer, mode = frame.write, self._mode
        if mode == "overwrite" and self._columns:
            writer = writer.option("partitionOverwriteMode", "dynamic")
        else:
            mode = "append"  # the directory is missing, or was left empty by a failed run
        writer.parquet(self._given, mode=mode, partitionBy=self._columns or None)

    def _write_and_move(self, frame: DataFrame, files: Files) -> None:
        staging = f"{self._above}/.{self._name}.backfill-{uuid.uuid4().hex}"
        try:
            try:
                frame.write.parquet(files.uri(f"{staging}/{_ROWS}"), mode="error", partitionBy=self._columns or None)
            except BaseException:
                self._wait_for_late_tasks()
                raise
            self._check(files)  # again: writing took time
            rows, replaced, units = f"{staging}/{_ROWS}", f"{staging}/{_REPLACED}", [""]
            if self._is_there(files):
                if self._mode == "append":  # another run has made it meanwhile
                    units = list(_files(files, rows))
                elif self._columns:
                    replaced, units = f"{staging}/{_REPLACED_PARTITIONS}", list(_partitions(files, rows))
                    self._check_replaced(files, units)
            _replace(files, self.path, rows, replaced, units)
        except BaseException:
            _clear(files, staging, has_failed=True)
            raise
        _clear(files, staging)

    def _wait_for_late_tasks(self) -> None:
        """Other tasks of a failed job may still write for a moment: wait until no task runs, for some seconds. Tasks of
        other jobs count, too, as Spark does not tell them apart."""
        if not has_jvm(self._spark):
            return
        deadline = time.monotonic() + _LATE_TASKS
        with contextlib.suppress(Exception):  # the session has ended
            while time.monotonic() < deadline and _runs_tasks(self._spark):
                time.sleep(_LOOK_INTERVAL)

    def _check_replaced(self, files: Files, partitions: Sequence[str]) -> None:
        """Refuse to replace rows with NULL in a partition column: they may belong to any run."""
        for partition in partitions:
            if _NULL in [part.partition("=")[2] for part in partition.split("/")] and files.is_there(
                _below(self.path, partition)
            ):
                raise self._wrong(
                    f"has rows with NULL in {', '.join(self._columns)} ({partition}), and so have the new ones, which "
                    "would replace them: give these rows a value, as with F.coalesce; with on_error="
                    '"emit" a row that succeeded has its columns in value, one that failed in row'
                )

    def _is_there(self, files: Files) -> bool:
        """Whether there is anything but what a failed Spark job leaves."""
        if files.is_there(self.path) and not files.is_directory(self.path):
            return True
        return any(
            name not in _OF_FAILED_JOBS and not name.startswith(".spark-staging-") for name in files.entries(self.path)
        )

    def _check(self, files: Files) -> None:
        if self._mode != "append" and self._is_root:
            raise self._wrong("is the root of a file system, and cannot be moved: name a directory in it")
        if self._mode == "error" and self._is_there(files):
            raise self._wrong(_ALREADY)
        if self._mode == "append" and files.is_there(self.path) and not files.is_directory(self.path):
            raise self._wrong(f"is a file: {_ANOTHER}")
        if self._mode == "append" or self._columns:
            self._check_partitions(files)

    def _check_partitions(self, files: Files, below: str = "", depth: int = 0) -> None:
        """Check that existing files are partitioned like the new rows: readers refuse a mixture."""
        for name in files.entries(_below(self.path, below)):
            if is_hidden(name):
                continue
            inner = _below(below, name)
            column = [unquote(name.partition("=")[0])] if "=" in name else []
            if column == self._columns[depth : depth + 1]:
                if column:
                    self._check_partitions(files, inner, depth + 1)
            elif not column or files.is_directory(_below(self.path, inner)):
                by = f"is not partitioned by {', '.join(self._columns)}" if self._columns else "is partitioned"
                raise self._wrong(f"{by}, it has {inner}, and readers refuse a mixture: {_ANOTHER}")

    def _check_remote(self) -> None:
        if self._mode == "append" or (self._mode == "overwrite" and self._columns):
            return
        try:
            is_there = bool(self._spark.read.format("binaryFile").load(self._given).inputFiles())
        except Exception:  # it does not exist
            return
        if is_there and self._mode == "error":
            raise self._wrong(_ALREADY)
        if is_there:
            raise self._wrong(
                "cannot be replaced over Connect, since a run that fails would leave nothing of it: give partition_by, "
                f"so that Spark replaces partitions at the end, use a classic session, or {_ANOTHER}"
            )

    def _wrong(self, what: str) -> ConfigurationError:
        return ConfigurationError("to", self._given, what)


def _runs_tasks(spark: SparkSession) -> bool:
    """Asks the scheduler, which knows it at once: the status tracker leaves out some updates of live tasks."""
    numbers = spark.sparkContext._jsc.sc().taskScheduler().runningTasksByExecutors().values().iterator()
    while numbers.hasNext():
        if numbers.next():
            return True
    return False


def _replace(files: Files, path: str, new: str, replaced: str, units: Sequence[str]) -> None:
    """Replace each unit, a path below ``path``, by the same below ``new``. Undoes all if one fails."""
    begun: dict[str, set[str]] = {}
    try:
        for unit in units:
            begun[unit] = set(_files(files, _below(new, unit)))
            target = _below(path, unit)
            if files.is_there(target):
                files.move(target, _below(replaced, unit))
            files.move(_below(new, unit), target)
    except BaseException:
        for unit in reversed(begun):
            _undo(files, _below(path, unit), _below(new, unit), _below(replaced, unit), begun[unit])
        raise


def _undo(files: Files, target: str, new: str, replaced: str, ours: set[str]) -> None:
    """Looks at the files, because an interrupted move may be done or not. Another run may have replaced ``ours``."""
    is_away = False
    try:
        if files.is_there(target) and not files.is_there(new):
            if set(_files(files, target)) != ours:
                files.remove(replaced)
                return
            files.move(target, new)
        is_away = True
        if files.is_there(replaced) and not files.is_there(target):
            files.move(replaced, target)
    except Exception as error:  # the other units must be moved back
        logger.error(  # noqa: TRY400 - the run raises its own error
            "%s cannot be moved back to %s, %s: %s",
            replaced,
            target,
            "which the next backfill there does" if is_away else "where the new rows stay",
            error,
            extra={"action": "backfill_left", "path": replaced},
        )


def _holds_replaced(files: Files, staging: str) -> bool:
    """Whether files that were moved away exist only here."""
    partitions = f"{staging}/{_REPLACED_PARTITIONS}"
    return files.is_there(f"{staging}/{_REPLACED}") or next(_files(files, partitions), None) is not None


def _partitions(files: Files, path: str, below: str = "") -> Iterator[str]:
    """Directories of the last partition column, as ``month=1/day=2``."""
    for name in files.entries(_below(path, below)):
        if "=" in name and files.is_directory(_below(path, _below(below, name))):
            inner = list(_partitions(files, path, _below(below, name)))
            yield from inner or [_below(below, name)]


def _files(files: Files, path: str, below: str = "") -> Iterator[str]:
    """Files below a path. Spark gives them names that no other run has."""
    for name in files.entries(_below(path, below)):
        inner = _below(below, name)
        if files.is_directory(_below(path, inner)):
            yield from _files(files, path, inner)
        elif not is_hidden(name):
            yield inner


def _clear(files: Files, staging: str, *, has_failed: bool = False) -> None:
    try:
        if not (has_failed and _holds_replaced(files, staging)):
            files.remove(staging)
    except Exception as error:  # the output itself is complete
        logger.warning("%s cannot be removed: %s", staging, error, extra={"action": "backfill_left", "path": staging})


def _put_back(files: Files, above: str, name: str) -> None:
    """Move back what killed runs had moved away and not replaced, and log what else they have left."""
    path = f"{above}/{name}"
    of_backfill = re.compile(re.escape(f".{name}.backfill-") + "[0-9a-f]{32}")
    for entry in files.entries(above or "/"):
        if not of_backfill.fullmatch(entry):
            continue
        left = f"{above}/{entry}"
        rows, partitions = f"{left}/{_ROWS}", f"{left}/{_REPLACED_PARTITIONS}"
        _restore(files, f"{left}/{_REPLACED}", rows, path)
        for partition in _partitions(files, partitions):
            _restore(files, *(_below(directory, partition) for directory in (partitions, rows, path)))
        logger.warning(
            "%s was left by a backfill that was killed: remove it, unless one to %s is running",
            left,
            path,
            extra={"action": "backfill_left", "path": left},
        )


def _restore(files: Files, replaced: str, new: str, target: str) -> None:
    if files.is_there(replaced) and files.is_there(new) and not files.is_there(target):
        files.move(replaced, target)


def _below(path: str, name: str) -> str:
    return f"{path}/{name}" if path and name else path or name
