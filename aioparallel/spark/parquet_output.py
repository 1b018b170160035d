"""Parquet files that are there when all of them are written, and not before.

They are written beside the directory, into one that readers leave out, and moved when Spark has ended: a run that fails
leaves what was there, and no empty directory. What is replaced is moved away first and removed at last.

A process that is killed while files are moved has moved some partitions and others not; one that was moved away and not
replaced yet is put back by the next run.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Sequence
from typing import Final, Literal, TypeAlias
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from aioparallel.errors import ConfigurationError
from aioparallel.spark.file_systems import Files, is_hidden, locate

__all__ = ["Mode", "ParquetOutput"]

logger = logging.getLogger(__name__)

Mode: TypeAlias = Literal["error", "append", "overwrite"]

_ROWS: Final = "_rows"
_REPLACED: Final = "_replaced"
_REPLACED_PARTITIONS: Final = "_replaced_partitions"
_ANOTHER: Final = "write to another directory"


class ParquetOutput:
    """A directory to write to. Raises ConfigurationError where it is not as the mode wants it."""

    def __init__(
        self, spark: SparkSession, path: str | os.PathLike[str], mode: Mode, partition_by: Sequence[str]
    ) -> None:
        self._given = os.fspath(path)
        self._mode = mode
        self._columns = list(partition_by)
        location = locate(spark, path)
        self.path = location.path
        self._files = location.files
        if self._files is None:
            self._check_remote(spark)
            return
        self._above, _, self._name = self.path.rpartition("/")
        self._is_root = not self._name or self._above.endswith(":/") or os.path.ismount(self.path)
        if not self._is_root:
            _tell_of_leftovers(self._files, self._above, self._name)
        self._check(self._files)

    def write(self, frame: DataFrame) -> None:
        """All of it, or nothing."""
        if self._files is None:
            writer = frame.write
            if self._columns and self._mode == "overwrite":
                writer = writer.option("partitionOverwriteMode", "dynamic")
            writer.parquet(self._given, mode=self._mode, partitionBy=self._columns or None)
        elif self._mode == "append" and (self._is_root or self._is_there(self._files)):
            frame.write.parquet(self._files.uri(self.path), mode="append", partitionBy=self._columns or None)
        else:
            self._write_and_move(frame, self._files)

    def _write_and_move(self, frame: DataFrame, files: Files) -> None:
        staging = f"{self._above}/.{self._name}.backfill-{uuid.uuid4().hex}"
        try:
            frame.write.parquet(files.uri(f"{staging}/{_ROWS}"), mode="error", partitionBy=self._columns or None)
            self._check(files)  # again: that took its time
            rows, replaced, units = f"{staging}/{_ROWS}", f"{staging}/{_REPLACED}", [""]
            if self._is_there(files):
                if self._mode == "append":  # of another run, meanwhile
                    units = list(_files(files, rows))
                elif self._columns:
                    replaced, units = f"{staging}/{_REPLACED_PARTITIONS}", list(_partitions(files, rows))
            _replace(files, self.path, rows, replaced, units)
        finally:
            _clear(files, staging)

    def _is_there(self, files: Files) -> bool:
        """An empty directory, as failed runs of others leave them, holds nothing."""
        return bool(self._visible(files)) or (files.is_there(self.path) and not files.is_directory(self.path))

    def _visible(self, files: Files) -> list[str]:
        return [name for name in files.entries(self.path) if not is_hidden(name)]

    def _check(self, files: Files) -> None:
        if self._mode != "append" and self._is_root:
            raise self._wrong("is a whole file system, and cannot be moved: name a directory in it")
        if self._mode == "error" and self._is_there(files):
            raise self._wrong('already exists: mode="overwrite" replaces what is there, "append" adds to it')
        if self._mode == "overwrite" and self._columns:
            for name in self._visible(files):
                column, is_partition, _ = name.partition("=")
                if not is_partition or unquote(column).lower() != self._columns[0].lower():
                    raise self._wrong(
                        f"is not partitioned by {self._columns[0]}, it has {name}, which would stay beside the new "
                        f"partitions: {_ANOTHER}"
                    )

    def _check_remote(self, spark: SparkSession) -> None:
        if self._mode != "overwrite" or self._columns:
            return
        try:
            _ = spark.read.text(self._given).schema
        except Exception:  # it is not there, and nothing is to be replaced
            return
        raise self._wrong(
            "cannot be replaced over Connect, since a run that fails would leave nothing of it: give partition_by, "
            f"whose partitions Spark replaces at the end, use a classic session, or {_ANOTHER}"
        )

    def _wrong(self, what: str) -> ConfigurationError:
        return ConfigurationError("to", self._given, what)


def _replace(files: Files, path: str, new: str, replaced: str, units: Sequence[str]) -> None:
    """Each unit, a directory below ``path``, by the same below ``new``; or none of them."""
    moved: list[tuple[str, str]] = []
    try:
        for unit in units:
            target = _below(path, unit)
            if files.is_there(target):
                files.move(target, _below(replaced, unit))
                moved.append((target, _below(replaced, unit)))
            files.move(_below(new, unit), target)
            moved.append((_below(new, unit), target))
    except BaseException:
        for before, now in reversed(moved):
            files.move(now, before)
        raise


def _partitions(files: Files, path: str, below: str = "") -> Iterator[str]:
    """Directories of the last of the partition columns, as ``month=1/day=2``."""
    for name in files.entries(_below(path, below)):
        if "=" in name and files.is_directory(_below(path, _below(below, name))):
            inner = list(_partitions(files, path, _below(below, name)))
            yield from inner or [_below(below, name)]


def _files(files: Files, path: str, below: str = "") -> Iterator[str]:
    """Names that no other run has: Spark makes them."""
    for name in files.entries(_below(path, below)):
        inner = _below(below, name)
        if files.is_directory(_below(path, inner)):
            yield from _files(files, path, inner)
        elif not is_hidden(name):
            yield inner


def _clear(files: Files, staging: str) -> None:
    try:
        files.remove(staging)
    except Exception as error:  # whether the rows are where they belong does not depend on it
        logger.warning("%s cannot be removed: %s", staging, error, extra={"action": "backfill_left", "path": staging})


def _tell_of_leftovers(files: Files, above: str, name: str) -> None:
    """Put back what a run that was killed had moved away, and say what else it has left."""
    path = f"{above}/{name}"
    for entry in files.entries(above or "/"):
        if not entry.startswith(f".{name}.backfill-"):
            continue
        left = f"{above}/{entry}"
        if files.is_there(f"{left}/{_REPLACED}") and not files.is_there(path):
            files.move(f"{left}/{_REPLACED}", path)
        for partition in _partitions(files, f"{left}/{_REPLACED_PARTITIONS}"):
            if not files.is_there(_below(path, partition)):
                files.move(f"{left}/{_REPLACED_PARTITIONS}/{partition}", _below(path, partition))
        logger.warning(
            "%s was left by a backfill that was killed: remove it, unless one to %s is running",
            left,
            path,
            extra={"action": "backfill_left", "path": left},
        )


def _below(path: str, name: str) -> str:
    return f"{path}/{name}" if path and name else path or name
