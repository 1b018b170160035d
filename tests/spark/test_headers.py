"""The column of headers, without Kafka."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from aioparallel.spark.headers import outgoing, source_headers
from aioparallel.spark.topics import _records

pytestmark = pytest.mark.spark

HEADERS = "array<struct<key:string,value:binary>>"
SCHEMA = f"key binary, value binary, topic string, partition int, offset bigint, headers {HEADERS}, place int"
PLACE = [("src-topic", b"raw"), ("src-partition", b"3"), ("src-offset", b"9000000000")]


def headers_of(
    spark: SparkSession, original: Sequence[tuple[str, bytes]] | None, column: Column
) -> list[tuple[str, bytes]]:
    """The column, for a record with these headers at offset 9,000,000,000 of raw-3."""
    values = "'raw' AS topic, 3 AS partition, 9000000000 AS offset, 7 AS place"
    (row,) = spark.sql(f"SELECT {values}, {sql(original)} AS headers").select(column.alias("headers")).collect()
    return [(header.key, bytes(header.value)) for header in row.headers]


def sql(headers: Sequence[tuple[str, bytes]] | None) -> str:
    """The column as Spark's source gives it. As SQL, since that needs no job: a tenth of the time."""
    pairs = [f"struct('{name}' AS key, X'{value.hex()}' AS value)" for name, value in headers or ()]
    array = "NULL" if headers is None else f"array({', '.join(pairs)})"
    return f"CAST({array} AS {HEADERS})"


def test_no_headers_are_no_headers(spark: SparkSession) -> None:
    """Spark gives NULL for a record without headers, and NULL in a concat would swallow what is added."""
    assert headers_of(spark, None, source_headers()) == PLACE
    assert headers_of(spark, [], source_headers()) == PLACE


def test_the_original_ones_stay_in_their_order(spark: SparkSession) -> None:
    """Also two of one name, which Kafka allows."""
    original = [("a", b"1"), ("b", b"\xff"), ("a", b"2")]
    assert headers_of(spark, original, source_headers()) == [*original, *PLACE]


def test_those_of_an_earlier_stage_are_replaced(spark: SparkSession) -> None:
    """A consumer finds one source, the last one."""
    original = [("src-topic", b"rawer"), ("a", b"1"), ("src-offset", b"0"), ("src-index", b"4")]
    assert headers_of(spark, original, source_headers()) == [("a", b"1"), *PLACE]


def test_several_of_one_are_told_apart(spark: SparkSession) -> None:
    """An index where a record becomes several; originals may be left behind."""
    column = source_headers(None, index="place")
    assert headers_of(spark, [("a", b"1")], column) == [*PLACE, ("src-index", b"7")]


def test_columns_of_other_names(spark: SparkSession) -> None:
    """A frame that has renamed its columns says which they are."""
    column = source_headers(None, topic=F.lit("t"), partition=F.lit(0), offset=F.col("place"))
    assert headers_of(spark, None, column) == [("src-topic", b"t"), ("src-partition", b"0"), ("src-offset", b"7")]


def digest_of(spark: SparkSession, headers: Sequence[tuple[str, bytes]] | None, *parts: str) -> str:
    """The digest of a record with these headers, key and value, as SQL writes them."""
    # Without places, which need a job.
    column = source_headers(digest_of=[F.expr(part) for part in parts], real_time=True)
    *_, (name, value) = headers_of(spark, headers, column)
    assert name == "src-digest"
    return value.decode()


def test_several_of_one_are_told_apart_by_what_is_written(spark: SparkSession) -> None:
    """By key, value and headers; NULL is nothing else, and no two parts run into each other. The value is known: a
    consumer compares it with what another process, of another day, has written."""
    null = "CAST(NULL AS STRING)"
    parts = [
        ("'a'", "'b'"),
        ("'ab'", "''"),
        ("''", "'ab'"),
        (null, "'a'"),
        ("'a'", null),
        ("'-'", "'a'"),
        ("'a'", "'-'"),
    ]
    found = [digest_of(spark, None, *both) for both in parts]
    headers = [[("h", b"b")], [("h", b"")], [("hb", b"")], [("h", b"b"), ("h", b"b")]]
    found += [digest_of(spark, some, "'a'", "'b'") for some in headers]
    assert len(set(found)) == len(found)
    assert found[0] == digest_of(spark, [], "X'61'", "X'62'") == digest_of(spark, [("src-index", b"1")], "'a'", "'b'")
    assert found[0] == "146a422d58443cff"


def test_outgoing_says_what_tells_records_of_one_source_apart(spark: SparkSession) -> None:
    """A digest, or the number that is given."""
    frame = spark.createDataFrame([(b"k", b"v", "raw", 3, 7, None, 1)], SCHEMA)
    names = [
        [header.key for header in row.headers]
        for column in (None, "place")
        for row in frame.transform(outgoing(index=column)).collect()
    ]
    assert [one[-1] for one in names] == ["src-digest", "src-index"]


def test_equal_ones_have_places(spark: SparkSession) -> None:
    """Those that were made of one record; not in real-time mode. The first has the digest alone."""
    rows = [(b"k", b"v", "raw", 3, offset, None, 1) for offset in (7, 8, 7, 7)]
    frame = spark.createDataFrame(rows, SCHEMA).coalesce(1)
    (digest,) = {bytes(row.headers[-1].value) for row in frame.transform(outgoing(real_time=True)).collect()}
    found = [bytes(row.headers[-1].value) for row in frame.transform(outgoing()).collect()]
    assert found == [digest, digest, digest + b"-1", digest + b"-2"]


def test_outgoing_leaves_nothing_that_would_lead_records_elsewhere(spark: SparkSession) -> None:
    """The sink takes a column topic, and partition, for where to write; they are not among the columns."""
    frame = spark.createDataFrame([], SCHEMA)
    assert frame.transform(outgoing()).columns == ["key", "value", "headers"]
    assert frame.transform(outgoing(source=False)).columns == ["key", "value", "headers"]
    assert frame.transform(outgoing(key="place", headers=None, source=False)).columns == ["key", "value"]
    assert frame.transform(outgoing(key=None)).schema["key"].dataType.simpleString() == "binary"


@pytest.mark.parametrize(
    ("columns", "there"),
    [
        ("'raw' AS topic, 3 AS partition", "topic string, partition int"),
        ("'raw' AS topic, 3 AS partition, 5 AS offset", "topic string, partition int, offset int"),
        ("'raw' AS topic, 3 AS partition, 5L AS offset", ""),
        ("1 AS n", ""),
    ],
    ids=["no offset", "an offset of another type", "all three", "none"],
)
def test_places_that_are_not_whole_are_warned_of(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, columns: str, there: str
) -> None:
    """Without one of them no source is written, and what Spark writes twice is handled twice."""
    frame = spark.sql(f"SELECT 'v' AS value, {columns}")
    written = _records(frame, source=True, index=None, real_time=False)
    assert ("headers" in written.columns) is columns.endswith("5L AS offset")
    told = [one.getMessage() for one in caplog.records if getattr(one, "action", "") == "no_source_columns"]
    assert len(told) == bool(there)
    assert all(f"there is {there};" in line for line in told)
    caplog.clear()
    _records(frame, source=False, index=None, real_time=False)
    assert not caplog.records
