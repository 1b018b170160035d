"""A month of flights from their topic to Parquet, as a batch with the stream's own transformation and handler.

In a clone of the repository, with Java 17 and the flights pipeline's topic ``raw`` on a broker of yours::

    pip install --editable '.[spark]'
    python examples/backfill.py localhost:9092 raw january
"""

import asyncio
import sys
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from aioparallel.spark import parallel_map
from aioparallel.spark.backfill import FromTopic, ToParquet, backfill
from aioparallel.spark.connector_jars import kafka_jars


def clean(records: DataFrame) -> DataFrame:
    """The stream's transformation: flights with a tail number. It works for streams and batches alike."""
    flight = F.from_json(F.col("value").cast("string"), "tailnum string, origin string, dep_delay int")
    return records.select(flight.alias("flight")).select("flight.*").where("tailnum IS NOT NULL")


async def enrich(flight: dict[str, Any]) -> dict[str, Any]:
    """The stream's handler. The sleep stands for a call: HTTP, a database."""
    await asyncio.sleep(0.005)
    return {**flight, "is_late": (flight["dep_delay"] or 0) > 15}


servers, topic, output = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.jars", ",".join(kafka_jars())).getOrCreate()
january = FromTopic(topic, servers, datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 2, 1, tzinfo=UTC))
schema = "tailnum string, origin string, dep_delay int, is_late boolean"
backfill(spark, january, clean, parallel_map(enrich, schema=schema, key="tailnum"), to=ToParquet(output))
print(f"{spark.read.parquet(output).count():,} flights in {output}")
