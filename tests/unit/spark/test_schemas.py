"""Schemas as DDL, parsed without a JVM. Spark parses them in the same way (tests/spark/test_operator.py)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types

from aioparallel.records.errors import ConfigurationError
from aioparallel.spark.schemas import columns_of, type_of
from tests.support.spark.schemas import TYPES, structs


def ddl(kind: types.DataType) -> str:
    """As a person would write it."""
    if isinstance(kind, types.ArrayType):
        return f"array<{ddl(kind.elementType)}>"
    if isinstance(kind, types.MapType):
        return f"MAP<{ddl(kind.keyType)}, {ddl(kind.valueType)}>"
    if isinstance(kind, types.StructType):
        return f"struct<{columns(kind)}>"
    return kind.simpleString()


def columns(struct: types.StructType) -> str:
    return ", ".join(
        f"`{field.name.replace('`', '``')}` {ddl(field.dataType)}{'' if field.nullable else ' not  null'}"
        for field in struct.fields
    )


@given(structs(TYPES))
def test_what_is_written_is_read(struct: types.StructType) -> None:
    """Any columns, nested in any way."""
    assert columns_of("schema", columns(struct)) == struct
    assert type_of("returns", columns(struct)) == struct


@given(TYPES)
def test_a_type_alone(kind: types.DataType) -> None:
    """Not only columns."""
    assert type_of("returns", f" {ddl(kind)} ") == kind


@given(st.text(st.sampled_from("ab<>(),: `'1int") | st.characters(), max_size=30))
def test_any_text(text: str) -> None:
    """Either columns or one named error."""
    said = f"schema={text!r}: "
    try:
        found = columns_of("schema", text).fields
    except ConfigurationError as error:
        said = str(error)
        found = []
    assert found or said.startswith(f"schema={text!r}: must be columns")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "names no column"),
        ("a", "ends too early"),
        ("a int,", "ends too early"),
        ("a int b", "'b' is left over"),
        ("a strin", "'strin' is no type"),
        ("a array<int", "'>' is expected, found 'the end'"),
        ("a decimal(x)", "a number is expected, found 'x'"),
        ("a int; b int", "'; b int' is not part of a schema"),
        ("a int, A string", "'a' is named twice"),
        ("a int comment b", "a comment in quotes is expected, found 'b'"),
    ],
)
def test_mistakes(text: str, wrong: str) -> None:
    """Each says what it has found where."""
    with pytest.raises(ConfigurationError) as caught:
        columns_of("schema", text)
    assert wrong in str(caught.value)


def test_comments_and_colons() -> None:
    """As in Spark's own texts."""
    assert columns_of("schema", "a: int COMMENT 'what it\\'s for', b string") == types.StructType(
        [
            types.StructField("a", types.IntegerType(), True, {"comment": "what it's for"}),
            types.StructField("b", types.StringType()),
        ]
    )
