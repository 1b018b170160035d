"""What handlers may return, and what does not fit the declared schema."""

from __future__ import annotations

import collections
import datetime
import decimal
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from pyspark.sql import Row as SparkRow

from aioparallel.records.errors import InvalidOutput
from aioparallel.spark import parallel_map, run_locally
from aioparallel.spark.values import Row
from tests.support.spark.tried import numbers


class Named(NamedTuple):
    n: int
    twice: int


@dataclass
class Data:
    n: int
    twice: int


@pytest.mark.parametrize("made", [dict, SparkRow, Named, Data])
def test_what_a_handler_may_return(made: Any) -> None:
    """Whatever has fields by name."""

    async def give(row: Row) -> Any:
        return made(n=row["n"], twice=0)

    assert run_locally(parallel_map(give, schema="twice int, n bigint"), numbers(1)) == [{"twice": 0, "n": 0}]


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ({"n": 1}, "it has no 'm' (None is null); it has 'n'"),
        ({"n": 1, "m": None, "o": 1}, "it has 'o', which is not declared; declared are 'n', 'm'"),
        ({"n": None, "m": None}, "n is null, and is declared NOT NULL"),
        ({"n": "x", "m": None}, "n is 'x' (str); bigint wants a whole number"),
        ({"n": 2**70, "m": None}, "which is no bigint"),
        ({"n": 1, "m": {"a": 1, "b": 2}}, "m has 'b', which is not declared; declared are 'a'"),
        ({"n": 1, "m": {"a": 2**40}}, "m.a is 1099511627776 (int), which is no int"),
        (
            None,
            "it is None, which is no row",
        ),
        ((1, None), "it is no row: it must be a dict"),
        ("text", "it is no row: it must be a dict"),
    ],
)
@pytest.mark.parametrize("on_error", ["raise", "emit"])
def test_what_does_not_fit(value: Any, wrong: str, on_error: Any) -> None:
    """Is named with its row and column; the others beside it come through."""

    async def give(row: Row) -> Any:
        return value if row["n"] == 5 else {"n": row["n"], "m": {"a": 1}}

    operator = parallel_map(give, schema="n bigint not null, m struct<a: int>", key="n", on_error=on_error)
    if on_error == "raise":
        with pytest.raises(InvalidOutput) as caught:
            run_locally(operator, numbers(10))
        said = str(caught.value)
    else:
        given = run_locally(operator, numbers(10))
        assert [row["row"]["n"] for row in given if row["error"] is not None] == [5]
        assert sum(row["error"] is None for row in given) == 9
        said = next(row["error"] for row in given if row["error"] is not None)
    assert wrong in said
    assert "row 5 of partition 0 (n=5)" in said


def test_types_go_both_ways() -> None:
    """What Spark has types for arrives as Python's own, and leaves as it came."""
    row = {
        "t": datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC),
        "d": datetime.date(2026, 1, 2),
        "x": decimal.Decimal("1.50"),
        "b": b"bytes",
        "a": [1, None],
        "m": {"k": 1.5},
        "s": {"y": "z"},
        "none": None,
    }
    ddl = (
        "t timestamp, d date, x decimal(5, 2), b binary, a array<int>, m map<string, double>, s struct<y: string>, "
        "none string"
    )

    async def same(row: Row) -> Row:
        return row

    assert run_locally(parallel_map(same, schema=ddl), [row], schema=ddl) == [row]
    some = parallel_map(same, schema="a int, b int", in_order=True)
    assert run_locally(some, [{"a": 1}, {"b": 2}]) == [{"a": 1, "b": None}, {"a": None, "b": 2}]
    emitted = parallel_map(same, schema="n int", on_error="emit", retry=None)
    assert run_locally(emitted, [row], schema=ddl)[0]["row"] == row


UTC = datetime.UTC


NAIVE = datetime.datetime(2026, 1, 1, 5)  # noqa: DTZ001 - on purpose


@pytest.mark.parametrize(
    ("ddl", "value", "wrong"),
    [
        ("int", 1.5, "is 1.5 (float); int wants a whole number"),
        ("int", 1.0, "int wants a whole number"),
        ("int", True, "int wants a whole number"),
        ("tinyint", 300, "is 300 (int), which is no tinyint"),
        ("float", 1e39, "float wants a number within its range"),
        ("double", True, "double wants a number"),
        ("double", decimal.Decimal(1), "double wants a number"),
        ("boolean", 1, "boolean wants True or False"),
        ("string", b"x", "string wants text"),
        ("string", 1, "string wants text"),
        ("binary", "x", "binary wants bytes"),
        ("date", NAIVE, "date wants a date, without a time"),
        ("date", 5, "date wants a date"),
        ("timestamp", NAIVE, "timestamp wants a datetime with a time zone"),
        ("timestamp", 5, "timestamp wants a datetime with a time zone"),
        ("timestamp_ntz", NAIVE.replace(tzinfo=UTC), "wants a datetime without a time zone"),
        ("decimal(5, 1)", decimal.Decimal("1.25"), "would cause data loss"),
        ("decimal(5, 1)", 1.5, "wants a Decimal"),
        ("array<string>", "text", "is 'text' (str); an array wants a list"),
        ("array<int>", [1, 2.5], "[1] is 2.5 (float); int wants"),
        ("array<struct<a: int>>", [{"a": 1}, {"b": 1}], "[1] has no 'a'"),
        ("map<string, int>", [1], "a map wants a dict"),
        ("map<string, int>", {1: 1}, ": the key is 1 (int)"),
        ("map<string, int>", {None: 1}, ": the key is null"),
        ("map<string, struct<a: int not null>>", {"k": {"a": None}}, "['k'].a is null, and is declared NOT NULL"),
        ("struct<a: struct<b: array<date>>>", {"a": {"b": [None, 3]}}, ".a.b[1] is 3 (int)"),
    ],
)
def test_nothing_passes_for_what_it_is_not(ddl: str, value: Any, wrong: str) -> None:
    """Though pyarrow would take most of these, and change them."""

    async def give(row: Row) -> Any:
        return {"n": row["n"], "x": value if row["n"] == 5 else None}

    operator = parallel_map(give, schema=f"n bigint, x {ddl}", on_error="emit", retry=None)
    given = run_locally(operator, numbers(10))
    failed = [row for row in given if row["error"] is not None]
    assert [row["row"]["n"] for row in failed] == [5]
    assert wrong in failed[0]["error"]
    assert "schema: x" in failed[0]["error"]


def test_columns_that_make_up_what_is_missing() -> None:
    """Are no rows: a misspelt name would be null."""

    async def give(row: Row) -> Any:
        return collections.defaultdict(lambda: None, nn=row["n"])

    with pytest.raises(InvalidOutput, match="has no 'n'"):
        run_locally(parallel_map(give, schema="n bigint"), numbers(1))
