"""The known sets of jars, as data."""

from __future__ import annotations

from typing import Final

from aioparallel.jvm.jars import JarSet
from aioparallel.jvm.maven import Artifact

__all__ = ["JAR_SETS", "KAFKA", "KAFKA_VERSION", "SPARK_KAFKA", "kafka_of"]

KAFKA_VERSION: Final = "4.3.1"
"""Version of the brokers that :mod:`aioparallel.testing` starts."""


def kafka_of(version: str) -> JarSet:
    """Apache Kafka in this version."""
    return JarSet(
        name="kafka",
        version=version,
        title="Apache Kafka",
        artifacts=(
            Artifact("org.apache.kafka", "kafka_2.13", version),
            Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
        ),
        size="about 46 jars, 44 MB",
        otherwise="or use Docker or the embedded broker",
    )


KAFKA: Final = kafka_of(KAFKA_VERSION)

SPARK_KAFKA: Final = JarSet(
    name="spark-kafka",
    version="4.2.0",
    title="Spark's Kafka connector",
    # Each without dependencies, because pyspark contains newer versions of them. The token provider, which serves
    # Kerberos and delegation tokens, was not published with 4.1 and 4.2. Version 4.0.0 has all that the connector uses.
    artifacts=(
        Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0", alone=True),
        Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0", alone=True),
        Artifact("org.apache.kafka", "kafka-clients", "3.9.2", alone=True),
        Artifact("org.apache.commons", "commons-pool2", "2.13.1", alone=True),
    ),
    size="4 jars, 10 MB",
)

JAR_SETS: Final = {"kafka": KAFKA, "spark": SPARK_KAFKA}
"""The sets by their names on the command line."""
