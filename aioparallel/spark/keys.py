"""Keys of rows, how rows are named in messages, and rows of one key in one partition."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, MapType, StructType

from aioparallel.errors import ConfigurationError
from aioparallel.handling import check_count
from aioparallel.policies import is_async
from aioparallel.spark.values import Row

__all__ = ["Key", "RowLabel", "check_key", "key_columns", "key_function", "repartition_by_key"]

Key = str | Sequence[str] | Callable[[Row], Hashable]
"""A column, several, or a plain function of the row. Null, or None from the function, is no order."""


def check_key(key: object) -> None:
    """Raises ConfigurationError for what is no :data:`Key`."""
    if key is None or isinstance(key, str):
        return
    if isinstance(key, list | tuple) and key and all(isinstance(name, str) for name in key):
        return
    if not callable(key) or is_async(key):
        raise ConfigurationError("key", key, "must be a column, a list of columns, or a plain function of the row")


def key_columns(key: Key | None) -> tuple[str, ...]:
    """The columns it names; none where it is a function."""
    if key is None or callable(key):
        return ()
    return (key,) if isinstance(key, str) else tuple(key)


def key_function(key: Key | None) -> Callable[[Row], Hashable] | None:
    """What gives a row's key."""
    if key is None or (callable(key) and not isinstance(key, str)):
        return key
    columns = key_columns(key)
    return itemgetter(*columns) if len(columns) == 1 else _Columns(columns)


class _Columns:
    """The key of several columns."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self._values = itemgetter(*columns)

    def __call__(self, row: Row) -> Hashable:
        values: tuple[Hashable, ...] = self._values(row)
        return None if all(value is None for value in values) else values


def check_hashable(given: StructType, keys: Sequence[str]) -> None:
    """Raises ConfigurationError for a key column whose values cannot be one."""
    for name in keys:
        if isinstance(given[name].dataType, ArrayType | MapType | StructType):
            raise ConfigurationError(
                "key", name, f"is {given[name].dataType.simpleString()}: name a column of it, or give a function"
            )


class RowLabel:
    """Names a row: by where it comes from in Kafka, where it says so, or by its place in its task; and by its key."""

    def __init__(self, partition: int, columns: Sequence[str]) -> None:
        self._partition = partition
        self._columns = columns

    def __call__(self, row: Row, index: int) -> str:
        """As in "row 17 of partition 3 (tailnum='N123')"."""
        place = f"row {index} of partition {self._partition}"
        if {"topic", "partition", "offset"} <= row.keys():
            place = f"{row['topic']}-{row['partition']} offset {row['offset']}"
        named = ", ".join(f"{name}={row.get(name)!r:.60}" for name in self._columns)
        return f"{place} ({named})" if named else place


def _quoted(name: str, columns: set[str]) -> str:
    """A column named "a.b" would be a field of another one."""
    return f"`{name}`" if name in columns and not name.startswith("`") else name


def repartition_by_key(
    key: str | Sequence[str], *, order_by: str | Sequence[str] | None = None, partitions: int | None = None
) -> Callable[[DataFrame], DataFrame]:
    """Bring the rows of each key together, for ``df.transform(...)`` before
    :func:`~aioparallel.spark.operator.parallel_map`, which keeps the order of a key within a partition only.

    ``order_by``: columns that say in which order the rows of a key come; without it that is left to Spark's shuffle.
    ``partitions``: how many; None: Spark's ``spark.sql.shuffle.partitions``. Not needed behind a Kafka topic that is
    partitioned by that key. Raises ConfigurationError for ``order_by`` on a stream, which Spark cannot sort.
    """
    keys = (key,) if isinstance(key, str) else tuple(key)
    sorting = () if order_by is None else (order_by,) if isinstance(order_by, str) else tuple(order_by)
    if not keys or not all(isinstance(name, str) for name in (*keys, *sorting)):
        raise ConfigurationError("key", key, "must be a column, or a list of columns, and so must order_by")
    if partitions is not None:
        check_count("partitions", partitions)

    def repartition(df: DataFrame) -> DataFrame:
        if sorting and df.isStreaming:
            raise ConfigurationError(
                "order_by",
                order_by,
                "cannot be had on a stream: partition its source by the key instead, as a topic is, and leave "
                "repartition_by_key out",
            )
        numbered: tuple[Any, ...] = () if partitions is None else (partitions,)
        names = set(df.columns)
        together = df.repartition(*numbered, *(_quoted(name, names) for name in keys))
        return together.sortWithinPartitions(*(_quoted(name, names) for name in sorting)) if sorting else together

    return repartition
