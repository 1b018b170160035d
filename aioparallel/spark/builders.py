"""What handlers return, to Arrow arrays of the declared types; nothing that does not fit passes for something else.

pyarrow takes 1.5 for the integer 1, 5 for a date in 1970, a time without a time zone for UTC, text for a list of its
letters, and fills a misspelt field of a struct with null. So each builder knows what its type is made of. The types of
a column's values are looked at together (a set of them, 20 ns each), and one by one only where that finds another one.
"""

from __future__ import annotations

import datetime
import decimal
import itertools
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, cast

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_type

from aioparallel.spark.values import as_mapping, shown

__all__ = ["Builder", "StructBuilder", "builder_of"]

_NONE: Final = type(None)
_LARGEST_SINGLE: Final = 3.4028235677973366e38  # what rounds to a float of 32 bits and not to infinity


class Builder(Protocol):
    """Arrays of one type."""

    arrow_type: pa.DataType

    def build(self, values: Sequence[object]) -> pa.Array:
        """Raises an exception, of any of several kinds, if one of them does not fit."""

    def misfit(self, value: object) -> str | None:
        """What is wrong with one value that is not null, and where in it; None: it fits."""


def _wrong(builder: Builder, value: object, *, nullable: bool) -> str | None:
    if value is not None:
        return builder.misfit(value)
    return None if nullable else " is null, and is declared NOT NULL"


def builder_of(kind: types.DataType) -> Builder:
    """The one for a type of Spark's."""
    if isinstance(kind, types.StructType):
        return StructBuilder(kind)
    if isinstance(kind, types.ArrayType):
        return _ListBuilder(kind)
    if isinstance(kind, types.MapType):
        return _MapBuilder(kind)
    return _LeafBuilder(kind)


def _whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _real(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _single(value: object) -> bool:
    if not _real(value):
        return False
    number = float(cast("float", value))
    return math.isinf(number) or math.isnan(number) or abs(number) <= _LARGEST_SINGLE


def _decimal(value: object) -> bool:
    return isinstance(value, decimal.Decimal) or _whole(value)


def _day(value: object) -> bool:
    return isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)


def _moment(value: object) -> bool:
    return isinstance(value, datetime.datetime) and value.tzinfo is not None


def _wall_clock(value: object) -> bool:
    return isinstance(value, datetime.datetime) and value.tzinfo is None


def _instance(*kinds: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kinds)


# By Spark's type: Python's own types that surely fit, what else does, and what to say of the others.
_LEAVES: Final[dict[type[types.DataType], tuple[tuple[type, ...], Callable[[object], bool], str]]] = {
    types.BooleanType: ((bool,), lambda value: type(value).__name__ in ("bool", "bool_"), "True or False"),
    types.IntegralType: ((int,), _whole, "a whole number"),
    types.FloatType: ((), _single, "a number within its range"),
    types.DoubleType: ((float, int), _real, "a number"),
    types.DecimalType: ((decimal.Decimal, int), _decimal, "a Decimal"),
    types.StringType: ((str,), _instance(str), "text"),
    types.BinaryType: ((bytes,), _instance(bytes, bytearray, memoryview), "bytes"),
    types.DateType: ((datetime.date,), _day, "a date, without a time"),
    types.TimestampType: ((), _moment, "a datetime with a time zone, as datetime.now(UTC)"),
    types.TimestampNTZType: ((), _wall_clock, "a datetime without a time zone"),
}


# Types that Spark hardly uses: intervals, variants. pyarrow knows.
_ANYTHING: Final[tuple[tuple[type, ...], Callable[[object], bool], str]] = ((), lambda value: True, "")


class _LeafBuilder:
    def __init__(self, kind: types.DataType) -> None:
        self._kind = kind
        self.arrow_type = to_arrow_type(kind, timezone="UTC")
        # The most special first: a DecimalType is a FractionalType too.
        found = [_LEAVES[one] for one in (type(kind), *type(kind).__mro__) if one in _LEAVES]
        sure, self._fits, self._wanted = found[0] if found else _ANYTHING
        self._sure: set[type] = {_NONE, *sure}

    def build(self, values: Sequence[object]) -> pa.Array:
        if not self._sure.issuperset(map(type, values)):
            fits = self._fits
            if not all(value is None or fits(value) for value in values):
                raise TypeError(self._wanted)
        return pa.array(values, self.arrow_type)

    def misfit(self, value: object) -> str | None:
        found = shown(value)
        if type(value) not in self._sure and not self._fits(value):
            return f" is {found}; {self._kind.simpleString()} wants {self._wanted}"
        try:
            pa.array([value], self.arrow_type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            return f" is {found}, which is no {self._kind.simpleString()}: {str(error).splitlines()[0]}"
        return None


class _ListBuilder:
    def __init__(self, kind: types.ArrayType) -> None:
        self._element = builder_of(kind.elementType)
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
        _expect(self._nullable or None not in elements)
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
    def __init__(self, kind: types.MapType) -> None:
        self._key = builder_of(kind.keyType)
        self._value = builder_of(kind.valueType)
        self._nullable = kind.valueContainsNull
        self.arrow_type = to_arrow_type(kind, timezone="UTC")

    def build(self, values: Sequence[Any]) -> pa.Array:
        offsets: list[int | None] = []
        keys: list[object] = []
        items: list[object] = []
        for value in values:
            offsets.append(None if value is None else len(keys))
            if value is not None:
                for key, item in _pairs(value):
                    keys.append(key)
                    items.append(item)
        _expect(None not in keys and (self._nullable or None not in items))
        ends = pa.array([*offsets, len(keys)], pa.int32())
        return pa.MapArray.from_arrays(ends, self._key.build(keys), self._value.build(items), type=self.arrow_type)

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
        return None


class StructBuilder:
    """Rows: mappings, Spark's rows, named tuples, dataclasses, with exactly these fields."""

    def __init__(self, kind: types.StructType) -> None:
        self._names = kind.fieldNames()
        self._known = frozenset(self._names)
        self._builders = [builder_of(field.dataType) for field in kind.fields]
        self._required = [field.name for field in kind.fields if not field.nullable]
        columns = zip(kind.fields, self._builders, strict=True)
        self.schema = pa.schema(
            [pa.field(field.name, builder.arrow_type, nullable=field.nullable) for field, builder in columns]
        )
        self.arrow_type = pa.struct(list(self.schema))

    def columns(self, values: Sequence[object]) -> list[pa.Array]:
        """An array for each field; no value may be None."""
        rows = [value if type(value) is dict else as_mapping(value) for value in values]
        width = len(self._names)
        _expect(all(len(row) == width for row in rows))
        lists = {name: [row[name] for row in rows] for name in self._names}
        _expect(all(None not in lists[name] for name in self._required))
        return [builder.build(lists[name]) for name, builder in zip(self._names, self._builders, strict=True)]

    def build(self, values: Sequence[object]) -> pa.Array:
        """As one array; None is null."""
        if not self._names:
            return pa.array([None if value is None else as_mapping(value) for value in values], self.arrow_type)
        there = [value for value in values if value is not None]
        made = pa.StructArray.from_arrays(self.columns(there), fields=list(self.schema))
        if len(there) == len(values):
            return made
        numbers = itertools.count()
        return made.take(pa.array([None if value is None else next(numbers) for value in values], pa.int64()))

    def misfit(self, value: object) -> str | None:
        """What is wrong with one of them; None: it fits."""
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


def _expect(fits: bool) -> None:
    if not fits:
        raise ValueError("one of them does not fit")


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple) or type(value).__name__ == "ndarray"


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    """Of a map, which Arrow gives as a list of pairs."""
    if isinstance(value, Mapping):
        return list(value.items())
    if not _is_list(value):
        raise TypeError("no map")
    return [(key, item) for key, item in value]
