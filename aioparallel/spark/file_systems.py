"""Lists, moves and removes directories as Spark sees them.

Local ones directly; others by Hadoop's clients in the JVM of a classic session, with its settings. Over Connect there
is no JVM, so files are moved only if the server sees the local files of this process.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from pyspark.sql import SparkSession

__all__ = ["Files", "Location", "has_jvm", "is_hidden", "locate", "whole_path", "without_links"]

_ELSEWHERE: Final = re.compile(r"(?!file:)\w[\w+.-]*:/")


class LocalFiles:
    """Local files: each move is atomic. Paths are absolute, as from :func:`whole_path`; methods raise OSError."""

    def uri(self, path: str) -> str:
        """The path for Spark, independent of its default file system."""
        return f"file:{path}"

    def is_there(self, path: str) -> bool:
        return os.path.lexists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def entries(self, path: str) -> list[str]:
        """Names in a directory; empty if it does not exist."""
        return sorted(os.listdir(path)) if os.path.isdir(path) else []

    def move(self, path: str, to: str) -> None:
        """Move to a path that does not exist yet; creates its parent directories."""
        os.makedirs(os.path.dirname(to), exist_ok=True)
        os.rename(path, to)

    def remove(self, path: str) -> None:
        while os.path.lexists(path):
            with contextlib.suppress(FileNotFoundError):  # a task that ends late has removed a file of its own
                shutil.rmtree(path)


class HadoopFiles:
    """The same for Hadoop's file systems: HDFS moves atomically, object stores copy each file. Methods raise Java's
    errors, too."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        self._path: Any = jvm.org.apache.hadoop.fs.Path
        self._system: Any = self._path(path).getFileSystem(_settings(spark))

    def uri(self, path: str) -> str:
        return path

    def is_there(self, path: str) -> bool:
        return bool(self._system.exists(self._path(path)))

    def is_directory(self, path: str) -> bool:
        return self.is_there(path) and bool(self._system.getFileStatus(self._path(path)).isDirectory())

    def entries(self, path: str) -> list[str]:
        if not self.is_there(path):
            return []
        return sorted(str(one.getPath().getName()) for one in self._system.listStatus(self._path(path)))

    def move(self, path: str, to: str) -> None:
        self._system.mkdirs(self._path(to).getParent())
        if self.is_there(to) or not self._system.rename(self._path(path), self._path(to)):
            raise OSError(f"{path} cannot be moved to {to}")

    def remove(self, path: str) -> None:
        self._system.delete(self._path(path), True)


Files: TypeAlias = LocalFiles | HadoopFiles


class Location(NamedTuple):
    """A directory. ``files`` is None if only Spark's server can access it."""

    path: str
    files: Files | None


def locate(spark: SparkSession, path: str | os.PathLike[str]) -> Location:
    """The location of a path."""
    whole, text = whole_path(spark, path), os.fspath(path)
    is_local = not _ELSEWHERE.match(whole)
    if has_jvm(spark):
        return Location(whole, LocalFiles() if is_local else HadoopFiles(spark, whole))
    return Location(whole, LocalFiles() if is_local and _sees_our_files(spark, whole, text) else None)


def whole_path(spark: SparkSession, path: str | os.PathLike[str]) -> str:
    """A comparable path: local ones absolute, without ``file:`` and links; others with their scheme."""
    text = os.fspath(path)
    if has_jvm(spark):  # it knows the default file system and its own working directory
        jvm: Any = spark._jvm
        java_path = jvm.org.apache.hadoop.fs.Path(text)
        text = str(java_path.getFileSystem(_settings(spark)).makeQualified(java_path).toString())
    return without_links(text)


def without_links(text: str) -> str:
    """A comparable path from an absolute one of Spark's."""
    if _ELSEWHERE.match(text):
        return text.rstrip("/")
    return os.path.realpath(re.sub("^file:/*", "/", text))


def has_jvm(spark: SparkSession) -> bool:
    """Whether it is a classic session."""
    return hasattr(spark, "_jsparkSession")


def is_hidden(name: str) -> bool:
    """Whether readers of Parquet ignore the file."""
    return name.startswith((".", "_")) and "=" not in name


def _settings(spark: SparkSession) -> Any:
    session: Any = spark
    return session._jsparkSession.sessionState().newHadoopConf()


def _sees_our_files(spark: SparkSession, whole: str, text: str) -> bool:
    """Whether the server finds a directory that this process creates next to the path. Uses the scheme of the path as
    given: without one, the server uses its default file system."""
    above = whole
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    scheme = "file:" if text.startswith("file:") else ""
    with contextlib.suppress(Exception), _directory(above) as made:
        _ = spark.read.text(scheme + made).schema
        return True
    return False


@contextlib.contextmanager
def _directory(above: str) -> Iterator[str]:
    made = tempfile.mkdtemp(prefix=".backfill-", dir=above)
    try:
        yield made
    finally:
        os.rmdir(made)
