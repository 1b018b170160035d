"""The jars of Spark's Kafka connector for the installed PySpark."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import pyspark

from aioparallel.config.unknown_options import refuses_others
from aioparallel.jvm.jars import JarSet
from aioparallel.jvm.sets import SPARK_KAFKA
from aioparallel.records.errors import ConfigurationError
from aioparallel.spark.versions import series_of

__all__ = ["kafka_jars"]

logger = logging.getLogger(__name__)

_CONNECTORS: Final[dict[tuple[int, int], JarSet]] = {(4, 2): SPARK_KAFKA, (4, 3): SPARK_KAFKA}
"""By PySpark's series. No connector was published for 4.2.1 and 4.3.0. That of 4.2.0 works there too (all tests were
run with 4.3.0), though Spark does not guarantee it."""


@refuses_others
def kafka_jars(report: Callable[[str], None] = logger.info) -> list[str]:
    """Paths of the four jars (10 MB) with which Spark reads and writes Kafka; downloaded once with Maven.

    ::

        spark = SparkSession.builder.config("spark.jars", ",".join(kafka_jars())).getOrCreate()

    The same works with ``SparkSession.builder.remote("local[2]")``, whose server is started with the builder's settings
    (it warns that spark.jars cannot be modified, but has them). A server elsewhere needs them when it is started.
    Declared pipelines accept them only on the command line: ``spark-pipelines run --jars "$(python -m
    aioparallel.jvm)"``. In ``spark-pipeline.yml`` they end the run with CANNOT_MODIFY_CONFIG, though a dry run accepts
    them.

    ``report`` is called with a sentence before each slow step. Raises JarsMissing if they are not cached and cannot be
    downloaded, JavaNotFound without Java for Maven, and ConfigurationError for a PySpark without a known connector.
    """
    version = pyspark.__version__
    connector = _CONNECTORS.get(series_of(version))
    if connector is None:
        known = " and ".join(f"{major}.{minor}" for major, minor in _CONNECTORS)
        raise ConfigurationError(
            "pyspark",
            version,
            f"jars of the Kafka connector are known for {known}; install "
            f"pyspark=={SPARK_KAFKA.version}, or give Spark those of "
            f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version} yourself (spark.jars.packages)",
        )
    return [str(jar) for jar in connector.paths(report)]
