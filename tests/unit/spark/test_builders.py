"""Values of any declared type, into Arrow and back."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types

from aioparallel.spark.builders import builder_of
from tests.support.spark.schemas import TYPES

LEAVES: dict[type[types.DataType], st.SearchStrategy[Any]] = {
    types.BooleanType: st.booleans(),
    types.ByteType: st.integers(-(2**7), 2**7 - 1),
    types.ShortType: st.integers(-(2**15), 2**15 - 1),
    types.IntegerType: st.integers(-(2**31), 2**31 - 1),
    types.LongType: st.integers(-(2**63), 2**63 - 1),
    types.FloatType: st.floats(width=32, allow_nan=False),
    types.DoubleType: st.floats(allow_nan=False),
    types.StringType: st.text(max_size=5),
    types.BinaryType: st.binary(max_size=5),
    types.DateType: st.dates(),
    types.TimestampType: st.datetimes(timezones=st.just(datetime.UTC)),
    types.TimestampNTZType: st.datetimes(),
    types.DecimalType: st.decimals(-1000, 1000, places=3).map(lambda value: value.quantize(decimal.Decimal("1.000"))),
}


def values_of(kind: types.DataType) -> st.SearchStrategy[Any]:
    """Without null."""
    if isinstance(kind, types.ArrayType):
        return st.lists(st.none() | values_of(kind.elementType), max_size=3)
    if isinstance(kind, types.MapType):
        items = st.none() | values_of(kind.valueType)
        return st.lists(st.tuples(values_of(kind.keyType), items), max_size=3, unique_by=lambda pair: pair[0])
    if isinstance(kind, types.StructType):
        fields = {field.name: values_of(field.dataType) for field in kind.fields}
        return st.fixed_dictionaries(
            {field.name: st.none() | fields[field.name] if field.nullable else fields[field.name] for field in kind}
        )
    return LEAVES[type(kind)]


TYPED = TYPES.flatmap(lambda kind: st.tuples(st.just(kind), st.lists(st.none() | values_of(kind), max_size=6)))


@given(TYPED)
def test_what_goes_in_comes_out(typed: tuple[types.DataType, list[Any]]) -> None:
    """As it was, null and nested in any way, and nothing of it is called a misfit."""
    kind, values = typed
    builder = builder_of(kind)
    made = builder.build(values)
    assert made.type == builder.arrow_type
    assert made.to_pylist() == values
    assert all(builder.misfit(value) is None for value in values if value is not None)


@given(TYPED, TYPED)
def test_a_misfit_is_found_when_and_only_when_building_fails(
    typed: tuple[types.DataType, list[Any]], other: tuple[types.DataType, list[Any]]
) -> None:
    """Values of one type for another."""
    builder = builder_of(typed[0])
    for value in other[1]:
        if value is None:
            continue
        try:
            builder.build([value])
        except Exception:
            assert builder.misfit(value)
        else:
            assert builder.misfit(value) is None
