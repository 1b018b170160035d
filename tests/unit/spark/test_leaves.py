"""What a value of Python's, NumPy's or pandas' becomes: itself, or an error."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import zoneinfo
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import types

from aioparallel.engine.flow.work import OnError
from aioparallel.records.errors import ConfigurationError, InvalidOutput
from aioparallel.spark import async_udf, parallel_map, run_locally
from aioparallel.spark.builders import builder_of
from aioparallel.spark.schemas import type_of

DAY = types.DayTimeIntervalType(0, 0)
SECOND = types.DayTimeIntervalType()
UTC = datetime.UTC
ODD = datetime.timezone(datetime.timedelta(microseconds=1))


def kind_of(kind: str | types.DataType) -> types.DataType:
    return type_of("type", kind) if isinstance(kind, str) else kind


@pytest.mark.parametrize(
    ("kind", "value", "wrong"),
    [
        (SECOND, 5, "wants a timedelta"),
        (SECOND, pd.Timedelta(1, "ns"), "wants a timedelta"),
        (SECOND, np.timedelta64(1, "s"), "wants a timedelta"),
        (DAY, datetime.timedelta(hours=25), "a timedelta of whole days"),
        (types.TimeType(6), 5, "wants a time"),
        (types.TimeType(6), datetime.time(1, tzinfo=UTC), "without a time zone"),
        (types.TimeType(3), datetime.time(1, 0, 0, 1), "3 digits"),
        ("float", 1e-50, "within its range"),
        ("float", -1e-46, "within its range"),
        ("float", np.float64(1e-50), "within its range"),
        ("float", 2**24 + 1, "exactly representable"),
        ("double", np.longdouble("1") + np.finfo(np.longdouble).eps, "that it can hold"),
        ("double", 2**53 + 1, "exactly representable"),
        ("timestamp", pd.Timestamp(1, unit="ns", tz="UTC"), "in microseconds"),
        ("timestamp_ntz", pd.Timestamp(1, unit="ns"), "in microseconds"),
        ("timestamp", pd.NaT, "which is no timestamp"),
        ("timestamp_ntz", pd.NaT, "timestamp_ntz wants"),
        ("double", np.uint64(2**64 - 1), "which is no double"),
        ("float", np.uint64(2**64 - 1), "which is no float"),
        ("int", pd.NA, "wants a whole number"),
        ("int", np.float64(1), "wants a whole number"),
        ("int", np.bool_(True), "wants a whole number"),
        ("decimal(5, 1)", decimal.Decimal("NaN"), "which is no decimal"),
        ("map<string, int>", [("a", 1), ("b", 2), ("a", 3)], "has the key 'a' twice"),
        ("map<double, int>", [(0.0, 1), (-0.0, 2)], "has the key -0.0 twice"),
        ("map<double, int>", {float("nan"): 1, float("-nan"): 2}, "has the key nan twice"),
        ("map<float, int>", {0.1: 1, float(np.float32(0.1)): 2}, "twice"),
        ("map<array<double>, int>", [([float("nan")], 1), ([float("nan")], 2)], "twice"),
        ("map<struct<a: int>, int>", [({"a": 1}, 1), ({"a": 1}, 2)], "twice"),
        ("array<map<string, int>>", [{}, [("a", 1), ("a", 3)]], "[1] has the key 'a' twice"),
        ("array<int>", np.array(5), "an array wants a list"),
        (types.StructType([]), {"a": 1}, "'a', which is not declared"),
        (types.VariantType(), {"value": b"x"}, "has no 'metadata'"),
        (types.VariantType(), {"value": b"x", "metadata": None}, "NOT NULL"),
    ],
)
def test_nothing_is_changed_without_a_word(kind: str | types.DataType, value: Any, wrong: str) -> None:
    """It does not fit, and is told."""
    builder = builder_of(kind_of(kind))
    assert wrong in str(builder.misfit(value))
    with pytest.raises(Exception, match=r"."):
        builder.build([value])


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (SECOND, datetime.timedelta(seconds=1.5), datetime.timedelta(seconds=1.5)),
        (SECOND, pd.Timedelta(1, "s"), datetime.timedelta(seconds=1)),
        (DAY, datetime.timedelta(days=-3), datetime.timedelta(days=-3)),
        (types.TimeType(6), datetime.time(1, 2, 3, 4), datetime.time(1, 2, 3, 4)),
        ("float", 1e-45, float(np.float32(1e-45))),
        ("float", np.float16(1.5), 1.5),
        ("double", np.float32(1.5), 1.5),
        ("double", np.int8(3), 3.0),
        ("double", np.uint64(3), 3.0),
        ("float", np.uint64(3), 3.0),
        ("decimal(5, 1)", np.int64(3), decimal.Decimal("3.0")),
        ("bigint", np.uint8(3), 3),
        ("boolean", np.bool_(True), True),
        ("string", np.str_("x"), "x"),
        ("binary", np.bytes_(b"x"), b"x"),
        (
            "timestamp",
            datetime.datetime(2026, 1, 1, tzinfo=ODD),
            datetime.datetime(2025, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        ),
        (
            "timestamp",
            datetime.datetime(2025, 11, 2, 1, 30, tzinfo=zoneinfo.ZoneInfo("America/New_York"), fold=1),
            datetime.datetime(2025, 11, 2, 6, 30, tzinfo=UTC),
        ),
        ("timestamp", pd.Timestamp("2026-01-01", tz="UTC"), datetime.datetime(2026, 1, 1, tzinfo=UTC)),
        ("array<int>", np.array([1, 2]), [1, 2]),
        ("array<array<double>>", np.array([[1.0], [2.0]]), [[1.0], [2.0]]),
        ("map<string, array<int>>", {"a": np.array([1, 2])}, [("a", [1, 2])]),
        ("map<bigint, string>", {np.int64(1): "x"}, [(1, "x")]),
        ("struct<a: array<int> not null>", {"a": np.array([1, 2])}, {"a": [1, 2]}),
        (types.VariantType(), types.VariantVal(b"v", b"m"), {"value": b"v", "metadata": b"m"}),
    ],
)
def test_values_of_numpy_and_pandas(kind: str | types.DataType, value: Any, expected: Any) -> None:
    """Where they are what the type holds, they are taken."""
    builder = builder_of(kind_of(kind))
    assert builder.build([value, None]).to_pylist() == [expected, None]
    assert builder.misfit(value) is None


ARRAY, INTS = np.array([1, 2]), types.ArrayType(types.IntegerType())


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (types.ArrayType(INTS, containsNull=False), [ARRAY, ARRAY], [[1, 2], [1, 2]]),
        (types.MapType(types.StringType(), INTS, valueContainsNull=False), {"a": ARRAY}, [("a", [1, 2])]),
        (types.StructType([types.StructField("a", INTS, nullable=False)]), {"a": ARRAY}, {"a": [1, 2]}),
    ],
)
def test_arrays_of_numpy_where_null_is_not_allowed(kind: types.DataType, value: Any, expected: Any) -> None:
    """In elements, in values of maps, and in fields."""
    builder = builder_of(kind)
    assert builder.build([value]).to_pylist() == [expected]
    assert builder.misfit(value) is None


def test_an_array_of_numpy_in_a_column_that_is_not_null() -> None:
    """Of an operator and of a column."""

    async def row(given: dict[str, Any]) -> dict[str, Any]:
        return {"v": np.arange(given["n"])}

    @async_udf(returns="struct<v array<bigint> not null>")
    async def column(n: int) -> dict[str, Any]:
        return {"v": np.arange(n)}

    operator = parallel_map(row, schema="v array<bigint> not null", retry=None)
    assert run_locally(operator, [{"n": 2}]) == run_locally(column, [2]) == [{"v": [0, 1]}]


def test_a_map_with_a_key_twice_is_that_rows_failure() -> None:
    """Spark would read such a map in different ways."""

    async def pairs(row: dict[str, Any]) -> dict[str, Any]:
        return {"m": [("a", 1), ("a" if row["n"] else "b", 2)]}

    with pytest.raises(InvalidOutput, match="m has the key 'a' twice"):
        run_locally(parallel_map(pairs, schema="m map<string, int>", retry=None), [{"n": 0}, {"n": 1}])


class Lost(Mapping[str, Any]):
    """Its values are gone."""

    def __getitem__(self, name: str) -> Any:
        raise RuntimeError("the connection is closed")

    def __iter__(self) -> Iterator[str]:
        return iter("ab")

    def __len__(self) -> int:
        return 2


@dataclasses.dataclass(slots=True)
class Unset:
    a: int
    b: int = dataclasses.field(init=False)


@pytest.mark.parametrize("value", [types.Row("a", "b")(1), Lost(), Unset(1)], ids=["short row", "mapping", "dataclass"])
def test_a_result_that_cannot_be_looked_into_is_that_rows_failure(value: Any) -> None:
    """A Row with fewer values than names, an object that raises."""

    async def give(row: dict[str, Any]) -> Any:
        return value if row["n"] else {"a": 1, "b": 2}

    def run(on_error: OnError) -> list[Any]:
        operator = parallel_map(give, schema="a int, b int", retry=None, on_error=on_error, in_order=True)
        return run_locally(operator, [{"n": 0}, {"n": 1}, {"n": 0}])

    assert run("skip") == [{"a": 1, "b": 2}] * 2
    assert [one["error"] is None for one in run("emit")] == [True, False, True]
    with pytest.raises(InvalidOutput, match="for row 1 of partition 0 does not fit"):
        run("raise")


FOLDED = types.StringType("UTF8_LCASE")


@pytest.mark.parametrize("key", [FOLDED, types.StructType([types.StructField("a", FOLDED)])])
def test_maps_whose_keys_spark_compares_in_its_own_way_are_refused(key: types.DataType) -> None:
    """{"a": 1, "A": 2} would have a key twice."""
    kind = types.ArrayType(types.MapType(key, types.IntegerType()))
    with pytest.raises(ConfigurationError, match="keys that are equal by the collation would be two"):
        async_udf(returns=kind)
    with pytest.raises(ConfigurationError, match="keys that are equal by the collation would be two"):
        parallel_map(nothing, schema=types.StructType([types.StructField("m", kind)]))


def test_columns_that_python_cannot_read_are_refused() -> None:
    """However deep within: of pyarrow's error nobody would know which."""
    months = types.ArrayType(types.YearMonthIntervalType())
    given = types.StructType([types.StructField("n", types.IntegerType()), types.StructField("age", months)])
    with pytest.raises(ConfigurationError, match="df='age': is array<interval year to month>, which Python cannot"):
        parallel_map(nothing, schema="n int").check(given)


def test_a_column_that_python_cannot_make_is_refused_where_it_is_declared() -> None:
    """However deep within."""
    months = types.ArrayType(types.YearMonthIntervalType())
    with pytest.raises(ConfigurationError, match="returns='array<interval year to month>': has no values in Python"):
        async_udf(returns=months)


async def nothing(row: dict[str, Any]) -> dict[str, Any]:
    return {"n": 0}
