"""What the flights pipeline of examples/ counts, in Spark."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from examples.flights_pipeline.totals import delays, found, missing, once, overtaken

pytestmark = pytest.mark.spark

SCHEMA = "key binary, offset bigint, value binary, headers array<struct<key:string,value:binary>>"


def test_what_comes_twice_is_one_flight(spark: SparkSession) -> None:
    """By the place in raw, not by what is in it; the rest of raw is missing."""
    value = '{"carrier": "UA", "airline": "United", "dep_delay": 5, "arr_delay": null, "weather": null}'
    places = [(0, 7), (0, 7), (1, 7), (0, 8), (0, 8)]
    rows = [
        (
            b"N1",
            3,
            value.encode(),
            [("src-topic", b"raw"), ("src-partition", b"%d" % place[0]), ("src-offset", b"%d" % place[1])],
        )
        for place in places
    ]
    flights = once(found(spark.createDataFrame(rows, SCHEMA)))
    (row,) = delays(flights).collect()
    assert (row.carrier, row.weather, row.flights, row.dep_delay, row.arr_delay) == ("UA", "unknown", 3, 15, None)
    raw = [(0, offset, b'{"carrier": "AA"}') for offset in range(7, 10)] + [(1, 7, b'{"carrier": "UA"}')]
    (gone,) = missing(spark.createDataFrame(raw, "partition int, offset bigint, value binary"), flights).collect()
    assert (gone.carrier, gone["count"]) == ("AA", 1)


def test_what_overtakes_is_counted(spark: SparkSession) -> None:
    """Within a key; a repetition of what has been there overtakes nothing."""

    def row(key: bytes, offset: int, raw: int) -> tuple[object, ...]:
        return key, offset, b"{}", [("src-partition", b"0"), ("src-offset", b"%d" % raw)]

    right = [row(b"a", 0, 5), row(b"b", 1, 4), row(b"a", 2, 9), row(b"a", 3, 5), row(b"a", 4, 9)]
    assert overtaken(found(spark.createDataFrame(right, SCHEMA))) == 0
    assert overtaken(found(spark.createDataFrame([*right, row(b"b", 5, 3), row(b"a", 6, 10)], SCHEMA))) == 1
