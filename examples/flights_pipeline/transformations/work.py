"""Topic work: the flights that took place, each with the name of its airline and with its aircraft for a key."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from aioparallel.spark.headers import outgoing
from aioparallel.spark.topics import sink_options

spark = SparkSession.active()

# Sinks and temporary views need no catalog. Tables do, and one that lasts, or the second run ends with
# LOCATION_ALREADY_EXISTS: --conf spark.sql.catalogImplementation=hive, from a working directory that lasts as well.
dp.create_sink("work", "kafka", sink_options("work", bootstrap_servers=spark.conf.get("spark.flights.servers") or ""))


@dp.append_flow(target="work")
def to_work() -> DataFrame:
    """Those with a departure. Nothing here shuffles (the join is a broadcast), so each key keeps its order.

    ``outgoing`` adds where each record stood in ``raw``, as headers: what is written twice can be told later.
    """
    flights = spark.readStream.table("flights")
    airlines = F.broadcast(spark.read.table("airlines"))
    columns = ("carrier", "airline", "flight", "tailnum", "origin", "dest", "time_hour", "dep_delay", "arr_delay")
    return (
        flights.where("dep_time IS NOT NULL")
        .join(airlines, "carrier", "left")
        .withColumn("key", F.coalesce("tailnum", F.concat_ws("-", "carrier", "flight")))
        .withColumn("value", F.to_json(F.struct(*columns)))
        .transform(outgoing())
    )
