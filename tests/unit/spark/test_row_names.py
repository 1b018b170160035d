"""Idempotency keys of the sink, without Spark: each writer in this process."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from aioparallel import Batch, batches
from aioparallel.records.errors import ConfigurationError, Reject
from aioparallel.spark import SinkRow
from aioparallel.spark.row_names import Naming, RowNames, _numbered, digest_of_row
from aioparallel.spark.schemas import columns_of
from aioparallel.spark.sink import AioparallelDataSource, Written

HERE: Final = __name__
PLACE: Final = "topic string, partition int, offset bigint"
handled: list[tuple[str, dict[str, Any]]] = []


async def note(row: SinkRow) -> None:
    """Key and row."""
    handled.append((row.idempotency_key, dict(row)))


async def note_without_key(row: SinkRow) -> None:
    """The row."""
    handled.append(("", dict(row)))


@batches(size=7)
async def note_batch(batch: Batch[SinkRow]) -> None:
    """:func:`note` of many."""
    handled.extend((row.idempotency_key, dict(row)) for row in batch)


@pytest.fixture(autouse=True)
def nothing_handled() -> Iterator[None]:
    """A test sees its own rows."""
    handled.clear()
    yield
    handled.clear()


def write(
    schema: str, *tasks: Sequence[tuple[Any, ...]], handler: str = "note", **options: str
) -> tuple[dict[str, dict[str, Any]], int]:
    """Rows by their keys, written by these tasks; how many were left out. No two have one key."""
    columns = columns_of("schema", schema)
    before, skipped = len(handled), 0
    for rows in tasks:
        given: Mapping[str, str] = {"handler": f"{HERE}:{handler}", "attempts": "1", **options}
        writer = AioparallelDataSource(dict(given)).writer(columns, False)
        named = [dict(zip(columns.fieldNames(), row, strict=True)) for row in rows]
        table = pa.Table.from_pylist(named, to_arrow_schema(columns, timezone="UTC"))
        written = writer.write(iter(table.to_batches(3)))
        assert isinstance(written, Written)
        skipped += written.skipped
    new = handled[before:]
    found = dict(new)
    assert len(found) == len(new)
    return found, skipped


def exploded(records: int = 10, each: int = 3) -> list[tuple[Any, ...]]:
    """Rows of which several were made of one record."""
    return [("raw", 0, offset, f"part {part}") for offset in range(records) for part in range(each)]


def test_rows_of_one_record_have_keys_of_their_own() -> None:
    """And the same ones when they come again: in another order, and spread over other tasks."""
    rows = exploded()
    first, _ = write(f"{PLACE}, value string", rows)
    assert len(first) == 30
    random.Random(2).shuffle(rows)
    again, _ = write(f"{PLACE}, value string", rows[:11], rows[11:])
    assert again == first


def test_equal_rows_of_one_record_have_keys_of_their_own() -> None:
    """By their place among each other, whatever stands between them."""
    rows = [("raw", 0, 5, "a"), ("raw", 0, 5, "b"), ("raw", 0, 5, "a"), ("raw", 1, 5, "a"), ("raw", 0, 5, "a")]
    first, _ = write(f"{PLACE}, value string", rows)
    assert len(first) == 5
    assert write(f"{PLACE}, value string", rows[::-1])[0] == first


def test_a_batch_handlers_rows_have_the_same_keys() -> None:
    """Whoever asks for them."""
    rows = exploded()
    found = write(f"{PLACE}, value string", rows)[0]
    assert write(f"{PLACE}, value string", rows, handler="note_batch")[0] == found


@pytest.mark.parametrize(
    "schema",
    [
        "id bigint",
        "topic string, partition int",
        "topic string, partition bigint, offset bigint",
        "topic string, partition int, offset int",
        "topic binary, partition int, offset bigint",
        "Topic string, Partition int, Offset bigint",
    ],
)
def test_rows_that_nothing_names_are_refused_at_the_start(schema: str) -> None:
    """With what to write. Columns of these names with other types, offsets of something else, do not count."""
    found = "none of them" if "topic" not in schema else schema.partition(", ")[0]
    for make in ("writer", "streamWriter"):
        source = AioparallelDataSource({"handler": f"{HERE}:note"})
        with pytest.raises(ConfigurationError, match=f'is needed.*"id", "order".*there is {found}.*"id", "none"'):
            getattr(source, make)(columns_of("schema", schema), False)


def test_no_keys_where_the_service_needs_none() -> None:
    """Then nothing is asked of the rows, and a handler that wants a key is told why there is none."""
    given: dict[str, str] = {"handler": f"{HERE}:note_without_key", "attempts": "1", "id": "none"}
    AioparallelDataSource(given).writer(columns_of("schema", "n bigint"), False).write(
        iter(pa.table({"n": [None, 1]}).to_batches())
    )
    assert [row for _, row in handled] == [{"n": None}, {"n": 1}]
    with pytest.raises(ConfigurationError, match="gives rows no keys"):
        write("n bigint", [(1,)], id="none")
    with pytest.raises(ConfigurationError, match="is also a column"):
        write("none bigint", [(1,)], id="none")


@pytest.mark.parametrize("handler", ["note", "note_batch"])
@pytest.mark.parametrize(
    ("schema", "option", "rows", "column"),
    [
        ("a string, b int", "a,b", [("x", 1), ("x", None), (None, 1), ("y", 1)], "b"),
        (
            f"{PLACE}, b int",
            "",
            [("raw", 0, 1, 1), ("raw", 0, None, 1), (None, None, None, 1), ("raw", 0, 2, 1)],
            "off",
        ),
    ],
)
def test_a_row_with_null_in_what_names_it_fails(
    schema: str, option: str, rows: list[tuple[Any, ...]], column: str, handler: str
) -> None:
    """By ``on_error``, and its handler is not called: two such rows would have one key. Columns that may be NULL are
    not refused, since nearly all of Spark's are declared so."""
    options = {"id": option} if option else {}
    found, skipped = write(schema, rows, handler=handler, on_error="skip", **options)
    names = columns_of("schema", schema).fieldNames()
    assert [*found.values()] == [dict(zip(names, row, strict=True)) for row in (rows[0], rows[3])]
    assert skipped == 2
    with pytest.raises(Reject, match=f"column {column}.* is NULL.*leave such rows out") as caught:
        write(schema, rows, handler=handler, **options)
    assert "row 1 of partition 0" in str(caught.value.__notes__) or "raw-0 offset None" in str(caught.value.__notes__)


def test_the_columns_that_identify_a_row_are_its_key() -> None:
    """Nothing else, not even its place: rows that are equal in them have one key, since they identify."""
    keys = [[*write("order bigint, c string", rows, id="order")[0]] for rows in ([(7, "a")], [(7, "b")])]
    assert keys == [["[7]"], ["[7]"]]
    moment = datetime(2024, 2, 29, 12, tzinfo=UTC)
    (key,) = write("a string, t timestamp, d decimal(4,2)", [('x",', moment, Decimal("1.5"))], id="a, t, d")[0]
    assert key == '["x\\",","2024-02-29 12:00:00+00:00","1.50"]'


ROW: Final[dict[str, Any]] = {
    "topic": "raw",
    "none": None,
    "flag": True,
    "nan": float("nan"),
    "zero": -0.0,
    "small": 5e-324,
    "decimal": Decimal("1.50"),
    "bytes": b"\x00\xff",
    "text": "ü \ud800 \U0001f600",
    "at": datetime(2024, 2, 29, 12, 30, 0, 999_999, tzinfo=UTC),
    "day": date(1, 1, 1),
    "span": timedelta(days=-1, microseconds=5),
    "map": {"b": [1, 2], "a": {"y": None, "x": 1.5}},
    "days": {date(2024, 1, 2): 1, date(2024, 1, 1): {"n": 2}},
    "pairs": [((1, 2), "x")],
    "large": 10**37,
}
KNOWN: Final = "ff90b32d6e6d0240c25ec91056ef41df"


def test_a_digest_is_the_same_in_every_process() -> None:
    """Another process, with other hashes of text, and one of yesterday: the value is known."""
    program = f"from {HERE} import ROW, digest_of_row\nprint(digest_of_row(ROW).hex())"
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "TZ": zone},
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed, zone in (("1", "UTC"), ("2", "America/New_York"))
    }
    assert said == {digest_of_row(ROW).hex()} == {KNOWN}


def test_a_digest_knows_no_order_of_maps() -> None:
    """Of nothing else."""
    other = {**ROW, "map": {"a": {"x": 1.5, "y": None}, "b": [1, 2]}, "days": dict(reversed(ROW["days"].items()))}
    assert digest_of_row(other) == digest_of_row(ROW)
    assert digest_of_row({**ROW, "map": {**ROW["map"], "b": [2, 1]}}) != digest_of_row(ROW)


@pytest.mark.parametrize("column", [name for name in ROW if name not in ("none", "flag", "text")])
def test_a_digest_changes_with_each_value(column: str) -> None:
    """NaN is a value like others, and none is taken for NULL."""
    assert digest_of_row({**ROW, column: None}) != digest_of_row(ROW)


def test_many_rows_take_little() -> None:
    """Equal rows are told apart among the last 50,000 at least, and at most 100,000 are remembered for it."""
    names = RowNames(Naming("topic", ("topic", "partition", "offset")))
    first = names.name(row_at(0))
    for offset in range(1, 50_000):
        names.name(row_at(offset))
    assert names.name(row_at(0)) == f"{first}-1"
    for offset in range(50_000, 200_000):
        names.name(row_at(offset))
    assert len(names._places._newer) + len(names._places._older) <= 100_000


def test_equal_records_are_numbered() -> None:
    """Among those of the task, over its Arrow batches; the first has the digest alone."""
    digest = "0123456789abcdef"
    batches = [[f"{digest} 0 5 raw", f"{digest} 0 5 raw", f"{digest} 1 5 raw"], [], [f"{digest} 0 5 raw"]]
    found = [names.to_pylist() for names in _numbered(pa.array(names, pa.string()) for names in batches)]
    assert found == [[digest, f"{digest}-1", digest], [], [f"{digest}-2"]]


def row_at(offset: int) -> dict[str, Any]:
    """A row."""
    return {"topic": "raw", "partition": 0, "offset": offset, "value": "v"}
