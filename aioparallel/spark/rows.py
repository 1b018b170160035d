"""Arrow batches to rows and back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa
from pyspark.sql.types import DataType, StructType

from aioparallel.errors import ConfigurationError
from aioparallel.spark.builders import StructBuilder
from aioparallel.spark.ddl import read_fields, read_type

__all__ = ["Input", "RowBuilder", "arguments_of", "columns_of", "rows_of", "type_of", "values_of"]

T = TypeVar("T")

# Rows made of one Arrow batch at a time, and their bytes: Arrow makes them without letting other threads run.
_AT_ONCE: Final = 1_000
_BYTES_AT_ONCE: Final = 8 << 20
# Bytes of rows that a task reads ahead.
_BYTES_AHEAD: Final = 64 << 20


def columns_of(option: str, schema: str | StructType) -> StructType:
    """The columns that ``schema`` names. Raises ConfigurationError, naming the ``option``."""
    if isinstance(schema, str):
        return read_fields(option, schema)
    given: object = schema
    if not isinstance(given, StructType) or not given.fields:
        raise ConfigurationError(option, schema, 'must be columns: "tailnum string, delay int", or a StructType')
    return given


def type_of(option: str, returns: str | DataType) -> DataType:
    """The type that ``returns`` names. Raises ConfigurationError, naming the ``option``."""
    if isinstance(returns, str):
        return read_type(option, returns)
    if not isinstance(returns, DataType):
        raise ConfigurationError(option, returns, 'must be a type: "string", "struct<status int, body string>", ...')
    return returns


class Input(Generic[T]):
    """What a task reads: batches or arrays of Spark's. ``size``: rows and bytes of one; ``items``: those from the first
    on, so many.

    The first is read at once, because rows are counted ahead and may be of any size.
    """

    def __init__(
        self,
        given: Iterable[T],
        size: Callable[[T], tuple[int, int]],
        items: Callable[[T, int, int], list[Any]],
    ) -> None:
        self._size = size
        self._items = items
        self._given = iter(given)
        self._first = list(itertools.islice(self._given, 1))

    @property
    def rows_ahead(self) -> int | None:
        """Rows that may be read ahead, by the size of the first ones; None: there are none."""
        if not self._first:
            return None
        rows, size = self._size(self._first[0])
        return max(1, _BYTES_AHEAD * max(1, rows) // max(1, size))

    def lists(self) -> Iterator[list[Any]]:
        """All items, some at a time."""
        first, self._first = self._first, []
        for one in itertools.chain(first, self._given):
            rows, size = self._size(one)
            step = max(1, min(_AT_ONCE, _BYTES_AT_ONCE * rows // max(1, size)))
            for start in range(0, rows, step):
                yield self._items(one, start, step)


def rows_of(batches: Iterable[pa.RecordBatch]) -> Input[pa.RecordBatch]:
    """Batches as rows. Times are in UTC, whatever the session's zone: Java knows some that Python does not."""
    return Input(
        batches,
        lambda batch: (batch.num_rows, batch.nbytes),
        lambda batch, first, count: values_of(_in_utc(batch.slice(first, count))),
    )


def arguments_of(arrays: Iterable[Any]) -> Input[Any]:
    """Arrays, or tuples of them, as tuples of arguments."""

    def columns(given: Any) -> tuple[Any, ...]:
        return given if isinstance(given, tuple) else (given,)

    def arguments(given: Any, first: int, count: int) -> list[tuple[Any, ...]]:
        lists = [values_of(_array_in_utc(column.slice(first, count))) for column in columns(given)]
        return list(zip(*lists, strict=True))

    def size(given: Any) -> tuple[int, int]:
        return len(columns(given)[0]), sum(column.nbytes for column in columns(given))

    return Input(arrays, size, arguments)


def values_of(given: Any) -> list[Any]:
    """Rows of a batch, or values of an array. Maps are dicts; pairs, where a key cannot be one of a dict's."""
    kinds = given.schema.types if isinstance(given, pa.RecordBatch) else [given.type]
    strict = not any(map(_has_nested_keys, kinds))
    values: list[Any] = given.to_pylist(maps_as_pydicts="strict" if strict else None)
    return values


def _has_nested_keys(kind: Any) -> bool:
    if pa.types.is_map(kind):
        return pa.types.is_nested(kind.key_type) or _has_nested_keys(kind.item_type)
    return any(_has_nested_keys(kind.field(number).type) for number in range(kind.num_fields))


def _in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    if not any(_type_in_utc(field.type) != field.type for field in batch.schema):
        return batch
    return pa.RecordBatch.from_arrays([_array_in_utc(column) for column in batch.columns], names=batch.schema.names)


def _array_in_utc(array: Any) -> Any:
    wanted = _type_in_utc(array.type)
    return array if wanted == array.type else array.cast(wanted)


def _type_in_utc(kind: Any) -> Any:
    """The same, with UTC in place of other time zones, however deep within."""
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_type_in_utc(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_in_utc(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_type_in_utc(kind.key_type), kind.item_field.with_type(_type_in_utc(kind.item_type)))
    return kind


class RowBuilder:
    """Arrow batches of the declared columns."""

    def __init__(self, columns: StructType) -> None:
        self._rows = StructBuilder(columns)

    def build(self, values: Sequence[object]) -> pa.RecordBatch:
        """All of them. Raises one of several exceptions if one does not fit; :meth:`misfit` says which, and why."""
        return pa.RecordBatch.from_arrays(self._rows.columns(values), schema=self._rows.schema)

    def misfit(self, value: object) -> str | None:
        """What is wrong with one value; None: it fits."""
        wrong: Any = self._rows.misfit(value) if value is not None else " is None, which is no row"
        return wrong and _as_sentence(wrong)


def _as_sentence(wrong: str) -> str:
    """Of what a builder says, which begins with where in the value it is."""
    return wrong[1:] if wrong[0] == "." else f"it{wrong}"
