"""Arrow batches to rows and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar, cast

import pyarrow as pa
from pyspark.sql.types import DataType, MapType, StructType

from aioparallel.engine.flow.sizes import Sized
from aioparallel.records.errors import ConfigurationError
from aioparallel.spark.builders import StructBuilder
from aioparallel.spark.ddl import read_fields, read_type
from aioparallel.spark.keys import has_collation, parts_of
from aioparallel.spark.unreadable_rows import Unreadable, readable_parts
from aioparallel.spark.values import Row

__all__ = ["Input", "RowBuilder", "arguments_of", "columns_of", "rows_of", "type_of", "values_of"]

T = TypeVar("T")

# Rows made of one Arrow batch at a time, and their bytes: Arrow makes them without letting other threads run.
_AT_ONCE: Final = 1_000
_BYTES_AT_ONCE: Final = 1 << 20
# Bytes that Python takes beside Arrow's: of a value, a list or map, a row or struct.
_VALUE: Final = 40
_LIST: Final = 80
_STRUCT: Final = 200


def columns_of(option: str, schema: str | StructType) -> StructType:
    """The columns that ``schema`` names. Raises ConfigurationError, naming the ``option``."""
    if isinstance(schema, str):
        return read_fields(option, schema)
    given: object = schema
    if not isinstance(given, StructType) or not given.fields:
        raise ConfigurationError(option, schema, 'must be columns: "tailnum string, delay int", or a StructType')
    _check_keys(option, given)
    return given


def type_of(option: str, returns: str | DataType) -> DataType:
    """The type that ``returns`` names. Raises ConfigurationError, naming the ``option``."""
    if isinstance(returns, str):
        return read_type(option, returns)
    if not isinstance(returns, DataType):
        raise ConfigurationError(option, returns, 'must be a type: "string", "struct<status int, body string>", ...')
    _check_keys(option, returns)
    return returns


def _check_keys(option: str, kind: DataType) -> None:
    """Raises ConfigurationError for maps whose keys are texts with a collation: which of them are equal is Spark's
    knowledge, and a map that has one twice is none."""
    for found in parts_of(kind):
        if isinstance(found, MapType) and any(map(has_collation, parts_of(found.keyType))):
            raise ConfigurationError(
                option,
                kind,
                f"holds {found.simpleString()}: keys that it holds equal would be two here; declare them without a "
                "collation",
            )


class Input(Generic[T]):
    """What a task reads: batches or arrays of Spark's. ``rows``: how many one has; ``part``: those from the first on,
    so many; ``size``: bytes of a part as Python's objects, about; ``items``: these."""

    def __init__(
        self,
        given: Iterable[T],
        rows: Callable[[T], int],
        part: Callable[[T, int, int], T],
        size: Callable[[T], int],
        items: Callable[[T], list[Any]],
    ) -> None:
        self._given = given
        self._rows = rows
        self._part = part
        self._size = size
        self._items = items

    def lists(self) -> Iterator[Sized[Any]]:
        """All items, some at a time."""
        count = _AT_ONCE
        for one in self._given:
            rows, start = self._rows(one), 0
            while start < rows:
                count = min(2 * count, _AT_ONCE, rows - start)
                while (size := self._size(part := self._part(one, start, count))) > _BYTES_AT_ONCE and count > 1:
                    count = (count + 1) // 2
                yield Sized(self._items(part), size)
                start += count


def rows_of(batches: Iterable[pa.RecordBatch]) -> Input[pa.RecordBatch]:
    """Batches as rows. Times are in UTC, whatever the session's zone: Java knows some that Python does not."""
    return Input(
        batches,
        lambda batch: batch.num_rows,
        lambda batch, first, count: batch.slice(first, count),
        lambda batch: _STRUCT * batch.num_rows + sum(map(_size_of, batch.columns)),
        lambda batch: _rows(_in_utc(batch)),
    )


def arguments_of(arrays: Iterable[Any]) -> Input[Any]:
    """Arrays, or tuples of them, as tuples of arguments."""

    def columns(given: Any) -> tuple[Any, ...]:
        return given if isinstance(given, tuple) else (given,)

    def arguments(given: Any) -> list[tuple[Any, ...] | Unreadable]:
        return _arguments(tuple([_array_in_utc(column) for column in columns(given)]))

    return Input(
        arrays,
        lambda given: len(columns(given)[0]),
        lambda given, first, count: tuple([column.slice(first, count) for column in columns(given)]),
        lambda given: sum(map(_size_of, columns(given))),
        arguments,
    )


def _size_of(array: Any) -> int:
    """About the bytes that its values take in Python."""
    return int(array.nbytes) + _size_beside(array)


def _size_beside(array: Any) -> int:
    kind = array.type
    if pa.types.is_struct(kind):
        return _STRUCT * len(array) + sum([_size_beside(array.field(number)) for number in range(kind.num_fields)])
    if pa.types.is_map(kind) and len(array):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        parts = [one.slice(first, last - first) for one in (array.keys, array.items)]
        return _LIST * len(array) + sum(map(_size_beside, parts))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _LIST * len(array) + _size_beside(array.flatten())
    return _VALUE * len(array)


def _rows(batch: pa.RecordBatch) -> list[Row | Unreadable]:
    rows: list[Row | Unreadable] = []
    for part in readable_parts(batch, batch.num_rows, lambda one, first, count: one.slice(first, count), values_of):
        if isinstance(part, list):
            rows += part
        else:
            columns = zip(part.schema.names, part.columns, strict=True)
            rows.append(Unreadable(columns, values_of))
    return rows


def _arguments(arrays: tuple[Any, ...]) -> list[tuple[Any, ...] | Unreadable]:
    def read(given: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return list(zip(*map(values_of, given), strict=True))

    def part(given: tuple[Any, ...], first: int, count: int) -> tuple[Any, ...]:
        return tuple([one.slice(first, count) for one in given])

    calls: list[tuple[Any, ...] | Unreadable] = []
    for found in readable_parts(arrays, len(arrays[0]), part, read):
        if isinstance(found, list):
            calls += found
        else:
            calls.append(Unreadable(enumerate(found, 1), values_of))
    return calls


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
    """Arrow batches of the declared columns. ``given``: the column of rows as Spark gave them."""

    def __init__(self, columns: StructType, given: str | None = None) -> None:
        self._rows = StructBuilder(columns)
        if given is not None:
            self._rows.replace(given, _GivenBuilder(cast("StructType", columns[given].dataType), given=True))

    def build(self, values: Sequence[object]) -> pa.RecordBatch:
        """All of them. Raises one of several exceptions if one does not fit; :meth:`misfit` says which, and why."""
        return pa.RecordBatch.from_arrays(self._rows.columns(values), schema=self._rows.schema)

    def misfit(self, value: object) -> str | None:
        """What is wrong with one value; None: it fits."""
        wrong: Any = self._rows.misfit(value) if value is not None else " is None, which is no row"
        return wrong and _as_sentence(wrong)


class _GivenBuilder(StructBuilder):
    """Rows as Spark gave them, those that Python cannot hold too."""

    def build(self, values: Sequence[object]) -> pa.Array:
        parts = [
            self._as_it_was(group[0]) if unreadable else super(_GivenBuilder, self).build(group)
            for unreadable, group in _groups(values)
        ]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def _as_it_was(self, row: Any) -> pa.Array:
        fields = list(self.schema)
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for field, column in zip(fields, row.columns, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, fields=fields)


def _groups(values: Sequence[object]) -> list[tuple[bool, list[object]]]:
    """Those that can be read together, each other one by itself; one group at least."""
    groups: list[tuple[bool, list[object]]] = []
    for value in values:
        unreadable = type(value) is Unreadable
        if not groups or unreadable or groups[-1][0]:
            groups.append((unreadable, []))
        groups[-1][1].append(value)
    return groups or [(False, [])]


def _as_sentence(wrong: str) -> str:
    """Of what a builder says, which begins with where in the value it is."""
    return wrong[1:] if wrong[0] == "." else f"it{wrong}"
