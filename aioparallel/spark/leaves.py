"""Builds arrays of scalar types, and checks which values of Python, NumPy and pandas fit each Spark type.

pyarrow alone converts silently: 1e-50 to 0.0 as a 32-bit float, 5 to an interval or a time of day, and it drops
fractions of a microsecond. This module refuses such values.
"""

from __future__ import annotations

import datetime
import decimal
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_type

from aioparallel.spark.values import shown

__all__ = ["LeafBuilder"]

_LARGEST_SINGLE: Final = 3.4028235677973366e38  # larger values round to infinity as 32-bit floats
_SMALLEST_SINGLE: Final = 2.0**-150  # values up to this round to zero


class _Leaf(NamedTuple):
    sure: tuple[type, ...]
    """Python types of which every value fits."""
    fits: Callable[[Any], bool]
    """Whether a value of another type fits."""
    wanted: str
    plain: Callable[[Any], object] | None = None
    """Converts a value of another type for pyarrow."""


def _whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _real(value: Any) -> bool:
    """Numbers that float() keeps, and every int: pyarrow refuses those that are too long."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    if isinstance(value, float | numbers.Integral):
        return True
    number = float(value)
    return bool(number == value) or math.isnan(number)


def _single(value: object) -> bool:
    if type(value) is not float and not _real(value):
        return False
    number = float(cast("float", value))
    return number == 0 or not math.isfinite(number) or _SMALLEST_SINGLE < abs(number) <= _LARGEST_SINGLE


def _plain_real(value: Any) -> object:
    """pyarrow would read the bits of an np.uint64 as a signed number."""
    if isinstance(value, float):
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _decimal(value: object) -> bool:
    return isinstance(value, decimal.Decimal) or _whole(value)


def _plain_decimal(value: Any) -> object:
    return value if isinstance(value, decimal.Decimal) else int(value)


def _day(value: object) -> bool:
    return isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)


def _moment(value: object) -> bool:
    if type(value) is datetime.datetime and value.tzinfo is datetime.UTC:
        return True
    return isinstance(value, datetime.datetime) and value.utcoffset() is not None and not _has_nanoseconds(value)


def _plain_moment(value: Any) -> object:
    """pyarrow drops fractions of a second in the offset of a time zone."""
    if value.tzinfo is datetime.UTC or not value.utcoffset().microseconds:
        return value
    return value.astimezone(datetime.UTC)


def _wall_clock(value: object) -> bool:
    return isinstance(value, datetime.datetime) and value.tzinfo is None and not _has_nanoseconds(value)


def _has_nanoseconds(value: Any) -> bool:
    """Only pandas types have them."""
    return bool(getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0))


def _instance(*kinds: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kinds)


def _interval(kind: types.DayTimeIntervalType) -> _Leaf:
    unit, name = ((86_400_000_000, "days"), (3_600_000_000, "hours"), (60_000_000, "minutes"), (1, ""))[kind.endField]

    def fits(value: object) -> bool:
        return (
            isinstance(value, datetime.timedelta)
            and not value % datetime.timedelta(microseconds=unit)
            and not _has_nanoseconds(value)
        )

    return _Leaf((), fits, f"a timedelta of whole {name}" if name else "a timedelta")


def _time_of_day(kind: types.TimeType) -> _Leaf:
    unit = 10 ** max(0, 6 - kind.precision)

    def fits(value: object) -> bool:
        return isinstance(value, datetime.time) and value.tzinfo is None and not value.microsecond % unit

    return _Leaf((), fits, f"a time without a time zone, with at most {kind.precision} digits after the second")


_BY_KIND: Final[dict[type[types.DataType], _Leaf]] = {
    types.BooleanType: _Leaf((bool,), lambda value: type(value).__name__ in ("bool", "bool_"), "True or False"),
    types.IntegralType: _Leaf((int,), _whole, "a whole number"),
    types.FloatType: _Leaf((), _single, "a number within its range", _plain_real),
    types.DoubleType: _Leaf((float, int), _real, "a number that it can hold", _plain_real),
    types.DecimalType: _Leaf((decimal.Decimal, int), _decimal, "a Decimal", _plain_decimal),
    types.StringType: _Leaf((str,), _instance(str), "text"),
    types.BinaryType: _Leaf((bytes,), _instance(bytes, bytearray, memoryview), "bytes"),
    types.DateType: _Leaf((datetime.date,), _day, "a date, without a time"),
    types.TimestampType: _Leaf(
        (), _moment, "a datetime with a time zone, as datetime.now(UTC), in microseconds", _plain_moment
    ),
    types.TimestampNTZType: _Leaf((), _wall_clock, "a datetime without a time zone, in microseconds"),
}
# For types that Spark does not have yet.
_ANYTHING: Final = _Leaf((), lambda value: True, "")


def _leaf_of(kind: types.DataType) -> _Leaf:
    if isinstance(kind, types.DayTimeIntervalType):
        return _interval(kind)
    if isinstance(kind, types.TimeType):
        return _time_of_day(kind)
    # The most specific class first: a DecimalType is a FractionalType too.
    return next((_BY_KIND[one] for one in type(kind).__mro__ if one in _BY_KIND), _ANYTHING)


class LeafBuilder:
    """Builds arrays of a scalar type, see :class:`~aioparallel.spark.builders.Builder`."""

    def __init__(self, kind: types.DataType) -> None:
        self._kind = kind
        self.arrow_type = to_arrow_type(kind, timezone="UTC")
        self._leaf = _leaf_of(kind)
        self._sure: set[type] = {type(None), *self._leaf.sure}

    def build(self, values: Sequence[object]) -> pa.Array:
        """Raises an exception, of one of several classes, if a value does not fit."""
        if not self._sure.issuperset(map(type, values)):
            _, fits, wanted, plain = self._leaf
            if not all(value is None or fits(value) for value in values):
                raise TypeError(wanted)
            if plain is not None:
                values = [value if value is None else plain(value) for value in values]
        return pa.array(values, self.arrow_type)

    def misfit(self, value: object) -> str | None:
        """What is wrong with a value that is not null; None if it fits."""
        found, name = shown(value), self._kind.simpleString()
        try:
            if type(value) not in self._sure and not self._leaf.fits(value):
                return f" is {found}; {name} wants {self._leaf.wanted}"
            self.build([value])
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            return f" is {found}, which is no {name}: {str(error).splitlines()[0]}"
        return None
