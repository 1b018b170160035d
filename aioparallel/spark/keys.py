"""Keys of rows, names of rows in messages, and a shuffle that brings the rows of a key together."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

from pyspark.sql import DataFrame, types

from aioparallel.config.callables import is_async
from aioparallel.config.handling import check_count
from aioparallel.config.unknown_options import refuses_others
from aioparallel.records.errors import ConfigurationError
from aioparallel.spark.rows import Unreadable
from aioparallel.spark.schemas import BINARY_COLLATION, has_collation
from aioparallel.spark.spark_session import shuffle_partitions
from aioparallel.spark.values import Row

__all__ = [
    "EQUAL_AS_IN_PYTHON",
    "Key",
    "LaneKey",
    "RowLabel",
    "check_hashable",
    "check_key",
    "key_columns",
    "key_function",
    "missing_column",
    "one_lane",
    "plain_key",
    "repartition_by_key",
]

T = TypeVar("T")

Key = str | Sequence[str] | Callable[[Row], Hashable]
"""A column, several columns, or a plain function of the row. Rows whose key is None have no order."""

# Values of these types are equal in Spark exactly if they are equal in Python.
_AS_IN_PYTHON: Final = frozenset((str, int, bytes, bool, type(None), datetime.date, datetime.datetime))
EQUAL_AS_IN_PYTHON: Final = (
    types.BooleanType,
    types.IntegralType,
    types.StringType,
    types.BinaryType,
    types.DateType,
    types.DecimalType,
)
"""Types whose values are equal in Spark exactly if they are in Python. (Texts with a collation are refused.)"""


def check_key(key: object) -> None:
    """Raises ConfigurationError for anything but a :data:`Key` or None."""
    if key is None or isinstance(key, str):
        return
    if isinstance(key, list | tuple) and key and all(isinstance(name, str) for name in key):
        return
    if not callable(key) or is_async(key):
        raise ConfigurationError("key", key, "must be a column, a list of columns, or a plain function of the row")


def key_columns(key: Key | None) -> tuple[str, ...]:
    """The columns that the key names."""
    if key is None or callable(key):
        return ()
    return (key,) if isinstance(key, str) else tuple(key)


def key_function(key: Key | None) -> Callable[[Row], Hashable] | None:
    """Returns the key of a row."""
    if key is None or (callable(key) and not isinstance(key, str)):
        return key
    columns = key_columns(key)
    return itemgetter(*columns) if len(columns) == 1 else _Columns(columns)


class _Columns:
    def __init__(self, columns: tuple[str, ...]) -> None:
        self._values = itemgetter(*columns)

    def __call__(self, row: Row) -> Hashable:
        values: tuple[Hashable, ...] = self._values(row)
        return None if all(value is None for value in values) else values


class LaneKey(Generic[T]):
    """The key of an item, equal for values that are equal in Spark."""

    __slots__ = ("key",)

    def __init__(self, key: Callable[[T], Hashable] | None) -> None:
        self.key = key

    def __call__(self, item: T | Unreadable) -> Hashable:
        """Raises UnreadableRow, so such an item fails before its handler is called."""
        if type(item) is Unreadable:
            raise item.error
        if self.key is None:
            return None
        key = self.key(item)  # type: ignore[arg-type]  # called for each row: no cast
        return key if type(key) is str else one_lane(key)


def one_lane(key: Hashable) -> Hashable:
    """The same value for all keys that are equal in Spark: NaN equals NaN, also in a tuple, and -0.0 equals 0.0."""
    kind = type(key)
    if kind in _AS_IN_PYTHON:
        return key
    if isinstance(key, tuple):
        return tuple([one_lane(one) for one in key])
    if isinstance(key, frozenset):
        return frozenset([one_lane(one) for one in key])
    try:
        return key if key == key else math.nan  # noqa: PLR0124 - false for NaN; math.nan is one object, so one key
    except Exception:  # pandas.NA: its comparison has no truth value
        return key


def plain_key(given: types.StructType, keys: Sequence[str]) -> Callable[[Row], Hashable] | None:
    """A function in C for the key of one column whose values are equal in Spark exactly if they are in Python. None for
    other keys."""
    # Times only here: those of rows are in UTC. In other zones Python compares a repeated hour in its own way.
    if len(keys) != 1 or not isinstance(given[keys[0]].dataType, (*EQUAL_AS_IN_PYTHON, types.TimestampType)):
        return None
    return itemgetter(keys[0])


def check_hashable(given: types.StructType, keys: Sequence[str]) -> None:
    """Raises ConfigurationError for a key column whose values cannot be keys, or that Python compares in another way
    than Spark."""
    for name in keys:
        kind = given[name].dataType
        if isinstance(kind, types.ArrayType | types.MapType | types.StructType | types.VariantType):
            raise ConfigurationError("key", name, f"is {kind.simpleString()}: name a column of it, or give a function")
        if has_collation(kind):
            raise ConfigurationError(
                "key",
                name,
                f"is {kind.simpleString()}: texts that are equal by the collation would not be one key; derive a "
                f"column, as F.collate(F.lower({name!r}), {BINARY_COLLATION!r}), and name that",
            )


def missing_column(name: str, columns: Sequence[str]) -> str:
    """What to say about a name that is no column."""
    there = f"is no column; there are {', '.join(columns)}"
    plain = name.removeprefix("`").removesuffix("`").replace("``", "`")
    if plain in columns:
        return f"{there}; a row's names have no backticks: {plain!r}"
    if same := [column for column in columns if column.lower() == plain.lower()]:
        return f"{there}; a row's names are as they are written: {same[0]!r}"
    if plain.partition(".")[0] in columns:
        return f"{there}; a field of a struct is none: select it as a column"
    return there


class RowLabel:
    """Names a row by its place in Kafka if it has one, else by its place in the task; and by its key."""

    def __init__(self, partition: int, columns: Sequence[str]) -> None:
        self._partition = partition
        self._columns = columns

    def __call__(self, row: Row | Unreadable, index: int) -> str:
        """As in "row 17 of partition 3 (tailnum='N123')"."""
        if isinstance(row, Unreadable):
            row = {str(name): value for name, value in row.readable.items()}
        place = f"row {index} of partition {self._partition}"
        if {"topic", "partition", "offset"} <= row.keys():
            place = f"{row['topic']}-{row['partition']} offset {row['offset']}"
        named = ", ".join(f"{name}={row[name]!r:.60}" for name in self._columns if name in row)
        return f"{place} ({named})" if named else place


def _quoted(name: str, columns: set[str]) -> str:
    """The name for Spark, which would take ``a.b`` for a field of the column ``a``."""
    doubled = name.replace("`", "``")
    return f"`{doubled}`" if name in columns else name


@refuses_others
def repartition_by_key(
    key: str | Sequence[str], *, order_by: str | Sequence[str] | None = None, partitions: int | None = None
) -> Callable[[DataFrame], DataFrame]:
    """Bring the rows of each key into one partition, for ``df.transform(...)`` before
    :func:`~aioparallel.spark.operator.parallel_map`, which keeps the order of a key only within a partition. Not needed
    after a Kafka topic that is partitioned by that key.

    ``order_by``: columns by which the rows of a partition are sorted. By default their order is that of Spark's
    shuffle.
    ``partitions``: number of partitions. None: ``spark.sql.shuffle.partitions``; while that is Spark's default of 200,
    eight for each task that runs at once, if that number is known and smaller.

    Raises ConfigurationError for a wrong option, and for ``order_by`` on a stream, which Spark cannot sort.
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
                "is not possible on a stream: partition its source by the key instead, as with a topic, and leave "
                "repartition_by_key out",
            )
        count = shuffle_partitions(df.sparkSession) if partitions is None else partitions
        numbered: tuple[Any, ...] = () if count is None else (count,)
        names = set(df.columns)
        together = df.repartition(*numbered, *(_quoted(name, names) for name in keys))
        return together.sortWithinPartitions(*(_quoted(name, names) for name in sorting)) if sorting else together

    return repartition
