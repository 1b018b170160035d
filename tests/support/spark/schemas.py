"""Types and columns of Spark, any of them, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st
from pyspark.sql import types

__all__ = ["TYPES", "structs"]

SIMPLE = [
    types.BooleanType(),
    types.ByteType(),
    types.ShortType(),
    types.IntegerType(),
    types.LongType(),
    types.FloatType(),
    types.DoubleType(),
    types.StringType(),
    types.BinaryType(),
    types.DateType(),
    types.TimestampType(),
    types.TimestampNTZType(),
    types.DecimalType(12, 3),
]
NAMES = st.text(st.characters(categories=["L", "N"]) | st.sampled_from("_ `-"), min_size=1, max_size=8)


def structs(inner: st.SearchStrategy[types.DataType]) -> st.SearchStrategy[types.StructType]:
    fields = st.builds(types.StructField, NAMES, inner, st.booleans())
    return st.lists(fields, min_size=1, max_size=4, unique_by=lambda field: field.name.lower()).map(types.StructType)


TYPES: st.SearchStrategy[types.DataType] = st.recursive(
    st.sampled_from(SIMPLE),
    lambda inner: (
        st.builds(types.ArrayType, inner) | st.builds(types.MapType, st.sampled_from(SIMPLE), inner) | structs(inner)
    ),
    max_leaves=8,
)
