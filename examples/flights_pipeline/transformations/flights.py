"""The raw flights, cleaned, and the names of airlines. Temporary views: they need no catalog that lasts."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from aioparallel.spark.topics import read_topic

spark = SparkSession.active()

COLUMNS = (
    "carrier string, flight string, tailnum string, origin string, dest string, time_hour string, "
    "dep_time int, dep_delay int, arr_delay int"
)
"""As text: a StructType cannot be made of it within a query function, where Spark refuses to analyse anything."""


@dp.temporary_view
def flights() -> DataFrame:
    """A stream of flights with the place of each in the topic. What is no flight at all is left out."""
    raw = read_topic(
        spark,
        "raw",
        bootstrap_servers=spark.conf.get("spark.flights.servers") or "",
        # A flow that fails is run three times, and each of them writes its micro-batch again: this bounds it.
        per_trigger=int(spark.conf.get("spark.flights.per_trigger") or 50_000),
    )
    flight = F.from_json(F.col("value").cast("string"), COLUMNS)
    return (
        raw.select("topic", "partition", "offset", "headers", flight.alias("flight"))
        .select("topic", "partition", "offset", "headers", "flight.*")
        .where("carrier IS NOT NULL AND origin IS NOT NULL AND time_hour IS NOT NULL")
        .withColumn("carrier", F.upper(F.trim("carrier")))
        .withColumn("tailnum", F.nullif(F.upper(F.trim("tailnum")), F.lit("")))
    )


@dp.temporary_view
def airlines() -> DataFrame:
    """Codes and names."""
    path = spark.conf.get("spark.flights.airlines") or ""
    return spark.read.csv(path, header=True, schema="carrier string, name string").withColumnRenamed("name", "airline")
