"""How far the flows are: the client of declared pipelines tells neither rows nor lag, so a listener does."""

from pyspark.sql import SparkSession

from aioparallel.spark.progress import ProgressListener

# A line on stderr every second; the queries have the names of their flows. It needs no close: the client stops the
# session at the end, and the listener with it.
SparkSession.active().streams.addListener(ProgressListener(show="lines", every=1.0))
