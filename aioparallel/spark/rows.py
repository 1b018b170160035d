"""Reads Arrow batches as rows, and arrays as arguments of calls.

Spark has values that Python cannot represent: strings may hold any bytes, years exceed 1 to 9999, and maps may have a
key twice. A row with such a value fails, and the others of its batch go on. Arrow converts a batch in one step, which
is fast; only if that raises, the row is searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NoReturn

import pyarrow as pa

from aioparallel.engine.flow.sizes import Sized
from aioparallel.records.errors import UnreadableRow

__all__ = ["Unreadable", "arguments_of", "rows_of", "values_of"]

# Rows that are made of an Arrow batch at a time, and their bytes: Arrow makes them without letting other threads run.
_AT_ONCE: Final = 1_000
_BYTES_AT_ONCE: Final = 1 << 20
# Bytes that Python needs in addition to Arrow's: for a value, a list or map, a row or struct.
_VALUE: Final = 40
_LIST: Final = 80
_STRUCT: Final = 200
_UNREADABLE: Final = (ValueError, KeyError, TypeError, OverflowError, pa.ArrowException)
_SHOWN: Final = 60


class Unreadable:
    """Replaces a row, or the arguments of a call."""

    __slots__ = ("columns", "error", "readable")

    def __init__(self, columns: Iterable[tuple[str | int, Any]]) -> None:
        self.columns: list[Any] = []
        """The columns as Arrow arrays of one value."""
        self.readable: dict[str | int, Any] = {}
        """Columns or arguments that Python can represent."""
        wrong = []
        for name, column in columns:
            self.columns.append(column)
            try:
                self.readable[name] = values_of(column)[0]
            except _UNREADABLE as error:
                what = f"column {name!r}" if isinstance(name, str) else f"argument {name}"
                wrong.append(f"{what} {_why(column, error)}")
        self.error = UnreadableRow("; ".join(wrong) or "Python cannot represent its values together")

    def __getitem__(self, name: object) -> NoReturn:
        """Raises UnreadableRow, so a row whose key is read fails before its handler is called."""
        raise self.error


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Sized[Any]]:
    """All rows, as dicts or :class:`Unreadable`, some at a time. Times are in UTC, not in the session's zone: Java has
    zones that Python lacks."""
    return _items_of(batches, values_of, lambda batch: zip(batch.schema.names, batch.columns, strict=True), _STRUCT)


def arguments_of(arrays: Iterable[Any]) -> Iterator[Sized[Any]]:
    """Arrays, or tuples of arrays, as tuples of arguments or :class:`Unreadable`, some at a time. Raises UnreadableRow
    for year-month intervals."""

    def batch_of(given: Any) -> pa.RecordBatch:
        columns = given if isinstance(given, tuple) else (given,)
        return pa.RecordBatch.from_arrays(list(columns), [str(number) for number in range(len(columns))])

    def read(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        return list(zip(*map(values_of, batch.columns), strict=True))

    try:
        yield from _items_of(map(batch_of, arrays), read, lambda batch: enumerate(batch.columns, 1), 0)
    except KeyError as error:
        if error.args != (pa.lib.Type_INTERVAL_MONTHS,):  # pyarrow has no class for arrays of this type
            raise
        raise UnreadableRow(
            "an argument is, or contains, a year-month interval, which Python cannot read: cast it to a string"
        ) from error


def _items_of(
    batches: Iterable[pa.RecordBatch],
    read: Callable[[pa.RecordBatch], list[Any]],
    named_columns: Callable[[pa.RecordBatch], Iterable[tuple[str | int, Any]]],
    overhead: int,
) -> Iterator[Sized[Any]]:
    """``overhead``: bytes of an item without its values."""

    def items(part: pa.RecordBatch) -> list[Any]:
        try:
            return read(part)
        except MemoryError:
            raise
        except _UNREADABLE:
            if part.num_rows == 1:
                return [Unreadable(named_columns(part))]
            half = part.num_rows // 2
            return [*items(part.slice(0, half)), *items(part.slice(half))]

    count = _AT_ONCE
    for given in batches:
        batch, start = _in_utc(given), 0
        while start < batch.num_rows:
            count = min(2 * count, _AT_ONCE, batch.num_rows - start)
            while (size := _size_of(part := batch.slice(start, count), overhead)) > _BYTES_AT_ONCE and count > 1:
                count = (count + 1) // 2
            yield Sized(items(part), size)
            start += count


def values_of(given: Any) -> list[Any]:
    """Rows of a batch, or values of an array. A map is a dict, or a list of pairs if its keys are nested."""
    kinds = given.schema.types if isinstance(given, pa.RecordBatch) else [given.type]
    strict = not any(map(_has_nested_keys, kinds))
    values: list[Any] = given.to_pylist(maps_as_pydicts="strict" if strict else None)
    return values


def _has_nested_keys(kind: Any) -> bool:
    if pa.types.is_map(kind):
        return pa.types.is_nested(kind.key_type) or _has_nested_keys(kind.item_type)
    return any(_has_nested_keys(kind.field(number).type) for number in range(kind.num_fields))


def _size_of(batch: pa.RecordBatch, overhead: int) -> int:
    """About the bytes of its items in Python."""
    return overhead * int(batch.num_rows) + sum([int(one.nbytes) + _extra_size(one) for one in batch.columns])


def _extra_size(array: Any) -> int:
    kind = array.type
    if pa.types.is_struct(kind):
        return _STRUCT * len(array) + sum([_extra_size(array.field(number)) for number in range(kind.num_fields)])
    if pa.types.is_map(kind) and len(array):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        parts = [one.slice(first, last - first) for one in (array.keys, array.items)]
        return _LIST * len(array) + sum(map(_extra_size, parts))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _LIST * len(array) + _extra_size(array.flatten())
    return _VALUE * len(array)


def _in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    kinds = batch.schema.types
    wanted = list(map(_type_in_utc, kinds))
    if wanted == kinds:
        return batch
    columns = list(map(_as_type, batch.columns, wanted))
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _as_type(array: Any, kind: Any) -> Any:
    """The same values with other zones. Views and casts of whole nested arrays do not work if null arrays are in
    them."""
    if array.type == kind:
        return array
    if pa.types.is_timestamp(kind):
        return array.view(kind)
    if pa.types.is_struct(kind):
        parts = [_as_type(array.field(number), field.type) for number, field in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null() if array.null_count else None)
    if pa.types.is_map(kind):
        parts = [_as_type(array.keys, kind.key_type), _as_type(array.items, kind.item_type)]
        inner = pa.StructArray.from_arrays(parts, fields=[kind.key_field, kind.item_field])
    else:
        inner = _as_type(array.values, kind.value_type)
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], array.null_count, array.offset, [inner])


def _type_in_utc(kind: Any) -> Any:
    """The type with the zone UTC, also in nested types. It has the same layout."""
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_type_in_utc(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_in_utc(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_type_in_utc(kind.key_type), kind.item_field.with_type(_type_in_utc(kind.item_type)))
    return kind


def _why(column: Any, error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        found = f"{error.object!r:.{_SHOWN}}"
        return f"is text that is not UTF-8, {found}: read it as binary, or through F.make_valid_utf8"
    if isinstance(error, KeyError):
        return "is a map with a key twice, which a dict cannot hold: F.map_entries makes an array of it"
    return f"is a value of {column.type} that Python cannot represent ({error}): cast it to a string"
