"""What a schema does not read of sampled records. What from_json gave is written here; tests/spark has the real one."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from aioparallel.spark.samples import Sampled, misfits

PLANE = StructType([StructField("seats", IntegerType())])
SCHEMA = StructType(
    [
        StructField("tailnum", StringType(), nullable=False),
        StructField("delay", IntegerType()),
        StructField("plane", PLANE),
    ]
)
GOOD = '{"tailnum": "N1", "delay": 5, "plane": {"seats": 20}, "more": 1}'


def sampled(text: str, offset: int = 0, **parsed: Any) -> Sampled:
    """A record of raw-0, and what from_json gave for it."""
    return Sampled(f"raw-0 offset {offset}", text, parsed)


def good(offset: int = 0) -> Sampled:
    """A record that fits."""
    return sampled(GOOD, offset, tailnum="N1", delay=5, plane={"seats": 20})


def test_what_fits_says_nothing() -> None:
    """Values as in the schema, nulls where they may be, and fields that the schema does not have."""
    absent = sampled('{"tailnum": "N2", "delay": null}', tailnum="N2", delay=None, plane=None)
    assert misfits(SCHEMA, [good(), absent]) == []
    assert misfits(SCHEMA, []) == []


def test_what_spark_reads_is_no_stranger() -> None:
    """It takes single quotes for JSON; what it does not read is told, however deep it is."""
    quoted = sampled("{'tailnum': 'N1'}", tailnum="N1", delay=None, plane=None)
    assert misfits(SCHEMA, [quoted]) == []
    (sentence,) = misfits(SCHEMA, [quoted, sampled("[" * 100_000, 7, tailnum=None, delay=None, plane=None)])
    assert sentence.startswith("1 of 2 values are no JSON objects, such as [[[")


def test_a_value_of_another_type_is_named() -> None:
    """The field, how many, one of them with its place, and what to do; inside a struct too."""
    text = '{"tailnum": "N1", "delay": "late", "plane": {"seats": "many"}}'
    wrong = [sampled(text, offset, tailnum="N1", delay=None, plane={"seats": None}) for offset in (7, 8)]
    assert misfits(SCHEMA, [good(), *wrong]) == [
        'field delay is read as NULL from 2 of 3 records that have it, such as "late" at raw-0 offset 7: int '
        "cannot read that; use another type, or fix the producer",
        'field plane.seats is read as NULL from 2 of 3 records that have it, such as "many" at raw-0 offset 7: int '
        "cannot read that; use another type, or fix the producer",
    ]


def test_a_name_that_no_record_has_is_named() -> None:
    """With the names that there are; Spark gives NULL without a word."""
    record = sampled('{"tailNum": "N1", "delay": 5, "plane": null}', tailnum=None, delay=5, plane=None)
    (sentence,) = misfits(SCHEMA, [record])
    assert sentence == (
        "field tailnum is in none of 1 records (they have delay, plane, tailNum): fix its name, or leave it out"
    )


def test_null_where_the_schema_says_not_null() -> None:
    """from_json does not look at it."""
    null = sampled('{"tailnum": null, "delay": 5, "plane": {"seats": 1}}', 9, tailnum=None, delay=5, plane={"seats": 1})
    (sentence,) = misfits(SCHEMA, [good(), null])
    assert sentence.startswith("field tailnum is NOT NULL, and missing or null in 1 of 2 records, the first at raw-0")


def test_values_that_are_no_objects_are_counted() -> None:
    """Other formats, broken ones and JSON that is a number; a long one is cut."""
    records = [good(), sampled("Obj\x01" * 50, 3), sampled("[1]", 4), sampled("7", 5)]
    (sentence,) = misfits(SCHEMA, records)
    assert sentence.startswith("3 of 4 values are no JSON objects, such as Obj")
    assert "… at raw-0 offset 3" in sentence
