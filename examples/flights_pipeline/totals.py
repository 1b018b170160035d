"""Topic enriched to Parquet, in Spark: ``python -m examples.flights_pipeline.totals SERVERS DELAYS MISSING``.

Prints a line of JSON: the number of records, of flights, and of flights that come before an earlier one of the same
aircraft.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from aioparallel.records.source_headers import SOURCE_OFFSET, SOURCE_PARTITION
from aioparallel.spark.connector_jars import kafka_jars
from aioparallel.spark.topics import read_topic
from examples.flights_pipeline.programs import QUICK_START
from examples.flights_pipeline.settings import ENRICHED, RAW

__all__ = ["delays", "found", "main", "missing", "once", "overtaken"]

PLACE = ["raw_partition", "raw_offset"]
FLIGHT = (
    "carrier string, airline string, dep_delay int, arr_delay int, "
    "weather struct<temp double, precip double, visib double, wind_speed double>"
)


def found(enriched: DataFrame) -> DataFrame:
    """The records of topic ``enriched``, each with the place of its flight in ``raw``."""
    return enriched.select(
        "key",
        "offset",
        _header(SOURCE_PARTITION).cast("int").alias("raw_partition"),
        _header(SOURCE_OFFSET).cast("bigint").alias("raw_offset"),
        F.from_json(F.col("value").cast("string"), FLIGHT).alias("flight"),
    )


def once(records: DataFrame) -> DataFrame:
    """Each flight once.

    A failed flow of a declared pipeline is repeated, and so are records that a killed consumer had not committed.
    Records made from the same record of ``raw`` are one flight.
    """
    return records.dropDuplicates(PLACE).select(*PLACE, "flight.*")


def overtaken(records: DataFrame) -> int:
    """Number of flights whose first record comes before the first one of an earlier flight of the same key."""
    first = records.groupBy("key", *PLACE).agg(F.min("offset").alias("offset"))
    before = F.lag("raw_offset").over(Window.partitionBy("key", "raw_partition").orderBy("offset"))
    return first.select((before > F.col("raw_offset")).alias("is_late")).where("is_late").count()


def delays(flights: DataFrame) -> DataFrame:
    """Counts and delays (minutes) by carrier and weather. Flights without a known delay do not count in sums."""
    return (
        flights.withColumn("weather", condition())
        .groupBy("carrier", "airline", "weather")
        .agg(
            F.count("*").alias("flights"),
            F.sum("dep_delay").alias("dep_delay"),
            F.sum("arr_delay").alias("arr_delay"),
            F.avg("dep_delay").alias("mean_dep_delay"),
            F.avg("arr_delay").alias("mean_arr_delay"),
        )
    )


def condition() -> Column:
    """The weather in a word, as :func:`examples.flights_pipeline.comparing.condition` computes it in pandas."""
    return (
        F.when(F.col("weather").isNull(), "unknown")
        .when(F.col("weather.visib") < 3, "poor visibility")
        .when(F.col("weather.precip") > 0, "rain or snow")
        .when(F.col("weather.wind_speed") >= 20, "windy")
        .otherwise("fair")
    )


def missing(raw: DataFrame, flights: DataFrame) -> DataFrame:
    """Number of records of ``raw`` without a flight, by carrier: the cancelled ones."""
    carrier = F.get_json_object(F.col("value").cast("string"), "$.carrier").alias("carrier")
    places = raw.select(F.col("partition").alias("raw_partition"), F.col("offset").alias("raw_offset"), carrier)
    return places.join(flights.select(*PLACE), PLACE, "left_anti").groupBy("carrier").count()


def main(servers: str, delays_path: str, missing_path: str) -> None:
    """Read both topics without a consumer group, and write the results."""
    spark = _session()
    enriched = read_topic(spark, ENRICHED, bootstrap_servers=servers, streaming=False)
    raw = read_topic(spark, RAW, bootstrap_servers=servers, streaming=False)
    records = found(enriched).persist()  # five jobs read it
    flights = once(records)
    delays(flights).coalesce(1).write.parquet(delays_path)
    missing(raw, flights).coalesce(1).write.parquet(missing_path)
    counts = {"records": records.count(), "flights": flights.count(), "overtaken": overtaken(records)}
    print(json.dumps(counts), flush=True)
    spark.stop()


def _header(name: str) -> Column:
    return F.filter("headers", lambda header: header["key"] == name)[0]["value"].cast("string")


def _session() -> SparkSession:
    builder: Any = SparkSession.builder
    session: SparkSession = (
        builder.master("local[2]")
        .appName("flights")
        .config("spark.jars", ",".join(kafka_jars()))
        .config("spark.driver.extraJavaOptions", QUICK_START)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    return session


if __name__ == "__main__":
    main(*sys.argv[1:])
