"""Builds Arrow arrays of declared types from the results of handlers, and refuses values that do not fit.

pyarrow alone converts silently: 1.5 to the integer 1, 5 to a date in 1970, a time without zone to UTC, text to a list
of characters, and a misspelt field of a struct to null. So each builder checks types. It compares the set of types in a
column (20 ns a value), and looks at single values only if there is an unexpected type.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_type

from aioparallel.spark.keys import EQUAL_AS_IN_PYTHON, one_lane
from aioparallel.spark.leaves import LeafBuilder
from aioparallel.spark.rows import Unreadable
from aioparallel.spark.values import as_mapping, shown

__all__ = ["Builder", "StructBuilder", "builder_of"]


class Builder(Protocol):
    """Builds arrays of one type."""

    arrow_type: pa.DataType

    def build(self, values: Sequence[object]) -> pa.Array:
        """Raises an exception, of one of several classes, if a value does not fit."""

    def misfit(self, value: object) -> str | None:
        """What is wrong with a value that is not null, and where in it; None if it fits."""


def _wrong(builder: Builder, value: object, *, nullable: bool) -> str | None:
    if value is not None:
        return builder.misfit(value)
    return None if nullable else " is null, and is declared NOT NULL"


def builder_of(kind: types.DataType, *, given: bool = False) -> Builder:
    """The builder for a Spark type. ``given``: the values come from Spark and are returned unchanged, so a map may have
    NaN twice, and a row may be an :class:`~aioparallel.spark.rows.Unreadable`."""
    if isinstance(kind, types.StructType):
        return _GivenBuilder(kind, given=True) if given else StructBuilder(kind)
    if isinstance(kind, types.ArrayType):
        return _ListBuilder(kind, given=given)
    if isinstance(kind, types.MapType):
        return _MapBuilder(kind, given=given)
    if isinstance(kind, types.UserDefinedType):
        return builder_of(kind.sqlType(), given=given)
    if isinstance(kind, types.VariantType):
        return _VariantBuilder(kind)
    return LeafBuilder(kind)


class _ListBuilder:
    def __init__(self, kind: types.ArrayType, *, given: bool) -> None:
        self._element = builder_of(kind.elementType, given=given)
        self._nullable = kind.containsNull
        self.arrow_type = to_arrow_type(kind, timezone="UTC")

    def build(self, values: Sequence[Any]) -> pa.Array:
        offsets: list[int | None] = []
        elements: list[object] = []
        for value in values:
            offsets.append(None if value is None else len(elements))
            if value is not None:
                _expect(_is_list(value))
                elements.extend(value)
        _expect(self._nullable or not _has_null(elements))
        ends = pa.array([*offsets, len(elements)], pa.int32())
        return pa.ListArray.from_arrays(ends, self._element.build(elements), type=self.arrow_type)

    def misfit(self, value: Any) -> str | None:
        if not _is_list(value):
            return f" is {shown(value)}; an array wants a list"
        for number, element in enumerate(value):
            if wrong := _wrong(self._element, element, nullable=self._nullable):
                return f"[{number}]{wrong}"
        return None


class _MapBuilder:
    def __init__(self, kind: types.MapType, *, given: bool) -> None:
        self._key = builder_of(kind.keyType, given=given)
        self._value = builder_of(kind.valueType, given=given)
        self._nullable = kind.valueContainsNull
        self._given = given
        # Different keys of such a dict are different in Spark as well.
        self._dicts_are_sure = isinstance(kind.keyType, EQUAL_AS_IN_PYTHON)
        self.arrow_type = to_arrow_type(kind, timezone="UTC")

    def build(self, values: Sequence[Any]) -> pa.Array:
        offsets: list[int | None] = []
        keys: list[object] = []
        items: list[object] = []
        unsure: list[tuple[int, int]] = []  # start and end of maps that may have a key twice
        for value in values:
            start = len(keys)
            offsets.append(None if value is None else start)
            if value is not None:
                for key, item in _pairs(value):
                    keys.append(key)
                    items.append(item)
                if not (self._given or (self._dicts_are_sure and isinstance(value, Mapping))):
                    unsure.append((start, len(keys)))
        _expect(not _has_null(keys) and (self._nullable or not _has_null(items)))
        made = self._key.build(keys)
        _expect(all(_first_twice(made[start:end]) is None for start, end in unsure))
        ends = pa.array([*offsets, len(keys)], pa.int32())
        return pa.MapArray.from_arrays(ends, made, self._value.build(items), type=self.arrow_type)

    def misfit(self, value: Any) -> str | None:
        try:
            pairs = _pairs(value)
        except (TypeError, ValueError):
            return f" is {shown(value)}; a map wants a dict"
        for key, item in pairs:
            if wrong := _wrong(self._key, key, nullable=False):
                return f": the key{wrong}"
            if wrong := _wrong(self._value, item, nullable=self._nullable):
                return f"[{key!r:.80}]{wrong}"
        twice = _first_twice(self._key.build([key for key, _ in pairs]))
        return None if twice is None else f" has the key {pairs[twice][0]!r:.80} twice"


class StructBuilder:
    """Rows (mappings, Spark's Row, named tuples, dataclasses) with exactly these fields.

    ``given``: True, or the name of a field, for values that come from Spark, see :func:`builder_of`.
    """

    def __init__(self, kind: types.StructType, *, given: bool | str = False) -> None:
        self._names = kind.fieldNames()
        self._known = frozenset(self._names)
        self._builders = [builder_of(field.dataType, given=given in (True, field.name)) for field in kind.fields]
        self._required = [field.name for field in kind.fields if not field.nullable]
        columns = zip(kind.fields, self._builders, strict=True)
        self.schema = pa.schema(
            [pa.field(field.name, builder.arrow_type, nullable=field.nullable) for field, builder in columns]
        )
        self.arrow_type = pa.struct(list(self.schema))

    def batch(self, values: Sequence[object]) -> pa.RecordBatch:
        """A batch of rows. Raises an exception, of one of several classes, if a value does not fit, or is None."""
        return pa.RecordBatch.from_arrays(self._columns(values), schema=self.schema)

    def _columns(self, values: Sequence[object]) -> list[pa.Array]:
        rows = [value if type(value) is dict else as_mapping(value) for value in values]
        width = len(self._names)
        _expect(all(len(row) == width for row in rows))
        lists = {name: [row[name] for row in rows] for name in self._names}
        _expect(not any(_has_null(lists[name]) for name in self._required))
        return [builder.build(lists[name]) for name, builder in zip(self._names, self._builders, strict=True)]

    def build(self, values: Sequence[object]) -> pa.Array:
        """One array; None becomes null."""
        if not self._names:
            _expect(all(value is None or not as_mapping(value) for value in values))
            return pa.array([None if value is None else as_mapping(value) for value in values], self.arrow_type)
        there = [value for value in values if value is not None]
        made = pa.StructArray.from_arrays(self._columns(there), fields=list(self.schema))
        if len(there) == len(values):
            return made
        numbers = itertools.count()
        return made.take(pa.array([None if value is None else next(numbers) for value in values], pa.int64()))

    def misfit(self, value: object) -> str | None:
        """What is wrong with a row; None if it fits."""
        try:
            row = as_mapping(value)
        except TypeError as error:
            return f" {error}"
        if missing := [name for name in self._names if name not in row]:
            found = ", ".join(map(repr, row)) or "no fields"
            return f" has no {missing[0]!r} (None is null); it has {found}"
        if more := [name for name in row if name not in self._known]:
            return f" has {more[0]!r}, which is not declared; declared are {', '.join(map(repr, self._names))}"
        for name, builder in zip(self._names, self._builders, strict=True):
            if wrong := _wrong(builder, row[name], nullable=name not in self._required):
                return f".{name}{wrong}"
        return None


class _GivenBuilder(StructBuilder):
    """Structs that come from Spark."""

    def build(self, values: Sequence[object]) -> pa.Array:
        parts: list[pa.Array] = []
        for is_unreadable, group in itertools.groupby(values, lambda value: type(value) is Unreadable):
            if is_unreadable:
                parts += map(self._unchanged, group)
            else:
                parts.append(super().build([*group]))
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts or [super().build([])])

    def _unchanged(self, row: Any) -> pa.Array:
        fields = list(self.schema)
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for field, column in zip(fields, row.columns, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, fields=fields)


class _VariantBuilder:
    """Variants, as handlers get them (dicts with two binary values) or as Spark's VariantVal."""

    def __init__(self, kind: types.VariantType) -> None:
        self.arrow_type = to_arrow_type(kind, timezone="UTC")
        parts = [types.StructField(part.name, types.BinaryType(), nullable=False) for part in self.arrow_type]
        self._parts = StructBuilder(types.StructType(parts))
        self._parts.schema = pa.schema(list(self.arrow_type))

    def build(self, values: Sequence[object]) -> pa.Array:
        return self._parts.build([_variant(value) for value in values])

    def misfit(self, value: object) -> str | None:
        return self._parts.misfit(_variant(value))


def _variant(value: object) -> object:
    return {"value": value.value, "metadata": value.metadata} if isinstance(value, types.VariantVal) else value


def _expect(fits: bool) -> None:
    if not fits:
        raise ValueError("a value does not fit")


def _has_null(values: Sequence[object]) -> bool:
    """``None in values`` would compare each value, and comparing a NumPy array has no single result."""
    return type(None) in set(map(type, values))


def _first_twice(keys: pa.Array) -> int | None:
    """Index of the first key that is equal to an earlier one in Spark."""
    if len(keys) < 2:
        return None
    if pa.types.is_timestamp(keys.type):
        keys = keys.cast(pa.int64())  # years may be outside of Python's range
    seen: set[Hashable] = set()
    for place, key in enumerate(keys.to_pylist()):
        one = one_lane(_hashable(key))
        if one in seen:
            return place
        seen.add(one)
    return None


def _hashable(value: Any) -> Hashable:
    if isinstance(value, list):
        return tuple([_hashable(one) for one in value])
    if isinstance(value, dict):
        return tuple([_hashable(one) for one in value.values()])
    found: Hashable = value
    return found


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) or (type(value).__name__ == "ndarray" and value.ndim > 0)


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    """The pairs of a map, which Arrow gives as a list."""
    if isinstance(value, Mapping):
        return list(value.items())
    if not _is_list(value):
        raise TypeError("not a map")
    return [(key, item) for key, item in value]
