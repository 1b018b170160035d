"""Keys of rows, how rows are named in messages, and rows of one key in one partition."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
    YearMonthIntervalType,
)

from aioparallel.config.handling import check_count
from aioparallel.config.policies import is_async
from aioparallel.records.errors import ConfigurationError
from aioparallel.spark.spark_session import shuffle_partitions
from aioparallel.spark.unreadable_rows import Unreadable
from aioparallel.spark.values import Row

__all__ = [
    "Key",
    "RowLabel",
    "check_hashable",
    "check_holdable",
    "check_key",
    "check_readable",
    "has_collation",
    "key_columns",
    "key_function",
    "missing_column",
    "one_lane",
    "parts_of",
    "plain_key",
    "repartition_by_key",
]

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


# Equal for Spark when they are for Python.
_AS_IN_PYTHON: Final = frozenset((str, int, bytes, bool, type(None), datetime.date, datetime.datetime))
# A collation by which texts are equal when their bytes are.
_BINARY: Final = "UTF8_BINARY"


# Columns of these have values of such types alone. (Texts with a collation are refused.)
_PLAIN_KEYS: Final = (StringType, IntegralType, BinaryType, BooleanType, DateType, TimestampType)


def one_lane(key: Hashable) -> Hashable:
    """The same for all keys that Spark holds equal. NaN is one key, alone and within a tuple; -0.0 is 0.0."""
    kind = type(key)
    if kind in _AS_IN_PYTHON:
        return key
    if isinstance(key, tuple):
        return tuple([one_lane(one) for one in key])
    if isinstance(key, frozenset):
        return frozenset([one_lane(one) for one in key])
    try:  # what is one object is one key
        return key if key == key else math.nan  # noqa: PLR0124 - NaN is not
    except Exception:  # pandas.NA is neither
        return key


def plain_key(given: StructType, keys: Sequence[str]) -> Callable[[Row], Hashable] | None:
    """The key of one column whose values are equal in Spark and Python alike, as a function written in C. None: the key
    is another one."""
    if len(keys) != 1 or not isinstance(given[keys[0]].dataType, _PLAIN_KEYS):
        return None
    return itemgetter(keys[0])


def parts_of(kind: DataType) -> Iterator[DataType]:
    """The type, and all within it."""
    yield kind
    within = [kind.elementType] if isinstance(kind, ArrayType) else []
    if isinstance(kind, MapType):
        within = [kind.keyType, kind.valueType]
    if isinstance(kind, StructType):
        within = [field.dataType for field in kind.fields]
    for one in within:
        yield from parts_of(one)


def has_collation(kind: DataType) -> bool:
    """Whether its texts may be equal though they are not the same."""
    return isinstance(kind, StringType) and kind.collation != _BINARY


def check_readable(given: StructType) -> None:
    """Raises ConfigurationError for a column of which Arrow's Python makes nothing: no row could be read."""
    for field in given.fields:
        if any(isinstance(part, YearMonthIntervalType) for part in parts_of(field.dataType)):
            raise ConfigurationError(
                "df",
                field.name,
                f"is {field.dataType.simpleString()}, which Python cannot read: cast it to a string, or leave it out",
            )


def check_holdable(option: str, kind: DataType) -> None:
    """Raises ConfigurationError for a result type without values in Python."""
    if any(isinstance(part, YearMonthIntervalType) for part in parts_of(kind)):
        raise ConfigurationError(
            option, kind.simpleString(), "has no values in Python: return the months as an int, and cast the column"
        )


def check_hashable(given: StructType, keys: Sequence[str]) -> None:
    """Raises ConfigurationError for a key column whose values cannot be one, or are equal in another way here."""
    for name in keys:
        kind = given[name].dataType
        if isinstance(kind, ArrayType | MapType | StructType | VariantType):
            raise ConfigurationError("key", name, f"is {kind.simpleString()}: name a column of it, or give a function")
        if has_collation(kind):
            raise ConfigurationError(
                "key",
                name,
                f"is {kind.simpleString()}: texts that it holds equal would not be one key; make a column of what is "
                f"equal, as F.collate(F.lower({name!r}), {_BINARY!r}), and name that",
            )


def missing_column(name: str, columns: Sequence[str]) -> str:
    """What to say of one that is not there."""
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
    """Names a row: by where it comes from in Kafka, where it says so, or by its place in its task; and by its key."""

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
    """A column named "a.b" would be a field of another one."""
    doubled = name.replace("`", "``")
    return f"`{doubled}`" if name in columns else name


def repartition_by_key(
    key: str | Sequence[str], *, order_by: str | Sequence[str] | None = None, partitions: int | None = None
) -> Callable[[DataFrame], DataFrame]:
    """Bring the rows of each key together, for ``df.transform(...)`` before
    :func:`~aioparallel.spark.operator.parallel_map`, which keeps the order of a key within a partition only.

    ``order_by``: columns that say in which order the rows of a key come; without it that is left to Spark's shuffle.
    ``partitions``: how many; None: ``spark.sql.shuffle.partitions``, and while that is Spark's default of 200, eight
    for each task that runs at once, where that is known and fewer. Not needed behind a Kafka topic that is partitioned
    by that key. Raises ConfigurationError for ``order_by`` on a stream, which Spark cannot sort.
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
        count = shuffle_partitions(df.sparkSession) if partitions is None else partitions
        numbered: tuple[Any, ...] = () if count is None else (count,)
        names = set(df.columns)
        together = df.repartition(*numbered, *(_quoted(name, names) for name in keys))
        return together.sortWithinPartitions(*(_quoted(name, names) for name in sorting)) if sorting else together

    return repartition
