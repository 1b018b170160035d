"""Rows that Python cannot hold: each fails by itself, with its input as Arrow has it."""

from __future__ import annotations

import ctypes
import datetime
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from aioparallel.records.errors import UnreadableRow
from aioparallel.spark import async_udf, parallel_map
from aioparallel.spark.rows import Unreadable, arguments_of, rows_of

TEXTS = pa.StringArray.from_buffers(3, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xffb"))
YEARS = pa.array([0, -719_529, 3_000_000], pa.int32()).cast(pa.date32())
MOMENTS = pa.array([0, 253_402_318_799_000_000, -62_167_219_200_000_000], pa.int64()).cast(
    pa.timestamp("us", "America/New_York")
)
MAPS = pa.MapArray.from_arrays([0, 1, 3, 4], ["a", "a", "a", "b"], [1, 2, 3, 4])
NESTED = pa.ListArray.from_arrays([0, 1, 2, 3], pa.StructArray.from_arrays([TEXTS], ["text"]))
GOOD = pa.array([10, 11, 12])
CASES = [
    (TEXTS, [1], "text that is not UTF-8, b'\\xff'"),
    (NESTED, [1], "text that is not UTF-8, b'\\xff'"),
    (YEARS, [1, 2], "date32"),
    (MOMENTS, [1, 2], "timestamp"),
    (MAPS, [1], "a map with a key twice"),
]


async def same(row: dict[str, Any]) -> dict[str, Any]:
    """As it was."""
    return {"n": row["n"]}


@pytest.mark.parametrize(("array", "bad", "wrong"), CASES)
def test_rows(array: pa.Array, bad: list[int], wrong: str) -> None:
    """The others are read; of these the columns that can be are, too."""
    batch = pa.RecordBatch.from_arrays([GOOD, array], ["n", "v"])
    rows = [row for some in rows_of([batch]) for row in some]
    assert [number for number, row in enumerate(rows) if isinstance(row, Unreadable)] == bad
    for number in bad:
        assert rows[number].readable == {"n": 10 + number}
        assert f"column 'v' is {'a value of ' if 'UTF' not in wrong and 'map' not in wrong else ''}{wrong}" in str(
            rows[number].error
        )
    assert [row["n"] for row in rows if not isinstance(row, Unreadable)] == [
        n for n in (10, 11, 12) if n - 10 not in bad
    ]


@pytest.mark.parametrize(("array", "bad", "wrong"), CASES)
def test_a_failed_row_is_given_as_it_was(array: pa.Array, bad: list[int], wrong: str) -> None:
    """To the byte, beside those that Python holds; 0 attempts, because no handler was called."""
    batch = pa.RecordBatch.from_arrays([GOOD, array], ["n", "v"])
    given = from_arrow_schema(batch.schema)
    operator = parallel_map(same, schema="n bigint", key="n", on_error="emit", in_order=True)
    out = pa.Table.from_batches(list(operator.on_executor(given)([batch])))
    assert [value.as_py() for value in out["attempts"]] == [0 if number in bad else 1 for number in range(3)]
    assert all(wrong in out["error"][number].as_py() for number in bad)
    rows = out["row"].combine_chunks()
    for number in bad:
        kept = rows.field("v")[number : number + 1]
        assert kept.cast(pa.binary() if kept.type == pa.string() else kept.type).equals(
            array[number : number + 1].cast(pa.binary() if kept.type == pa.string() else kept.type)
        )
    assert [rows.is_null()[number].as_py() for number in range(3)] == [number not in bad for number in range(3)]


def test_a_row_that_has_failed_goes_back_with_all_that_spark_lets_it_have() -> None:
    """A cast makes maps with NaN twice, which a dict can be."""
    nan = float("nan")
    maps = pa.MapArray.from_arrays([0, 2, 3], [nan, -nan, 1.0], [1, 2, 3])
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2]), maps], ["n", "m"])

    async def fail(row: dict[str, Any]) -> dict[str, Any]:
        raise ValueError(len(row["m"]))

    operator = parallel_map(fail, schema="n bigint", on_error="emit", in_order=True, retry=None)
    out = pa.Table.from_batches(list(operator.on_executor(from_arrow_schema(batch.schema))([batch])))
    assert out["error"].to_pylist() == ["ValueError: 2", "ValueError: 1"]
    assert out["row"].combine_chunks().field("m").cast(maps.type).to_pylist()[1] == [(1.0, 3)]


def test_a_failure_names_its_row() -> None:
    """With its key, or its place in Kafka, where they can be read."""
    names = ["topic", "partition", "offset", "v"]
    batch = pa.RecordBatch.from_arrays([pa.array(["t"] * 3), pa.array([0] * 3), GOOD, TEXTS], names)
    operator = parallel_map(same, schema="n bigint", key=["offset", "v"], retry=None)
    with pytest.raises(UnreadableRow) as caught:
        list(operator.on_executor(from_arrow_schema(batch.schema))([batch.slice(1)]))
    assert caught.value.__notes__ == ['for t-0 offset 11 (offset=11); on_error="emit" or "skip" goes on without it']


def test_rows_that_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """With a line in the log."""
    batch = pa.RecordBatch.from_arrays([GOOD, TEXTS], ["n", "v"])
    operator = parallel_map(same, schema="n bigint", on_error="skip")
    out = pa.Table.from_batches(list(operator.on_executor(from_arrow_schema(batch.schema))([batch])))
    assert sorted(out["n"].to_pylist()) == [10, 12]
    assert "row 1 of partition 0" in caplog.text


def test_arguments_of_columns() -> None:
    """Null, or an error, in their place."""

    async def text(n: int, v: str) -> str:
        return f"{n}{v}"

    for on_error in ("null", "emit"):
        column = async_udf(returns="string", key="v", on_error=on_error)(text)
        given: Any = [(GOOD, TEXTS)]
        out = [value for array in column.on_executor()(iter(given)) for value in array.to_pylist()]
        if on_error == "null":
            assert out == ["10a", None, "12b"]
        else:
            assert [one["value"] for one in out] == ["10a", None, "12b"]
            assert out[1]["error"].startswith("UnreadableRow: argument 2 is text that is not UTF-8")


def test_many_rows_are_read_together() -> None:
    """One of a thousand is looked for by halves."""
    moments = [datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)] * 1_000
    array = pa.array(moments, pa.timestamp("us", "UTC"))
    bad = MOMENTS[1:2].cast(pa.timestamp("us", "UTC"))
    lists = list(arguments_of([pa.concat_arrays([array[:700], bad, array[701:]])]))
    rows = [row for some in lists for row in some]
    assert [number for number, row in enumerate(rows) if isinstance(row, Unreadable)] == [700]
    assert rows[0] == rows[-1] == (moments[0],)


class _Schema(ctypes.Structure):
    """A type in Arrow's C data interface."""


_Schema._fields_ = [
    ("format", ctypes.c_char_p),
    *((name, ctypes.c_void_p) for name in ("name", "metadata")),
    *((name, ctypes.c_int64) for name in ("flags", "children_count")),
    ("children", ctypes.POINTER(ctypes.POINTER(_Schema))),
    *((name, ctypes.c_void_p) for name in ("dictionary", "release", "private")),
]


def in_months(counts: pa.Array) -> pa.StructArray:
    """A struct with a field of Spark's year-month intervals, which pyarrow itself cannot make."""
    schema, data = _Schema(), (ctypes.c_char * 80)()
    pa.StructArray.from_arrays([counts], ["n"])._export_to_c(ctypes.addressof(data), ctypes.addressof(schema))
    schema.children[0].contents.format = b"tiM"
    return pa.Array._import_from_c(ctypes.addressof(data), ctypes.addressof(schema))


@pytest.mark.parametrize("is_nested", [False, True])
def test_intervals_of_months_are_refused(is_nested: bool) -> None:
    """pyarrow has no class for their arrays, and raises KeyError."""
    structs = in_months(pa.array([1, None, 14], pa.int32()))

    def arrays() -> Iterator[Any]:
        yield structs if is_nested else structs.field(0)  # where PySpark's worker takes it from a batch

    async def one(value: Any) -> str:
        return str(value)

    column = async_udf(returns="string", on_error="emit")(one)
    with pytest.raises(UnreadableRow, match="year-month interval, which Python cannot read: cast it to a string"):
        list(column.on_executor()(arrays()))


def test_lists_and_structs_may_have_times_and_nulls() -> None:
    """Also in a part of a batch, as each batch of ``run_locally`` but the first."""
    times = pa.array([0, 1, 2, 3], pa.timestamp("us", "Europe/Berlin"))
    structs = pa.StructArray.from_arrays([times, pa.nulls(4)], ["at", "none"])
    lists = pa.ListArray.from_arrays([0, 1, 4], structs)
    maps = pa.MapArray.from_arrays([0, 1, 4], ["a", "a", "b", "c"], structs)
    batch = pa.RecordBatch.from_arrays([structs[:2], lists, maps], ["struct", "list", "map"])
    first, one, two, three = (
        {"at": datetime.datetime(1970, 1, 1, microsecond=number, tzinfo=datetime.UTC), "none": None}
        for number in range(4)
    )
    expected = [
        {"struct": first, "list": [first], "map": {"a": first}},
        {"struct": one, "list": [one, two, three], "map": {"a": one, "b": two, "c": three}},
    ]
    assert [list(rows) for rows in rows_of([batch, batch.slice(1)])] == [expected, expected[1:]]
