"""The jars of Spark's Kafka connector, as a session needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from aioparallel.records.errors import ConfigurationError
from aioparallel.spark.connector_jars import kafka_jars
from aioparallel.spark.kafka_properties import CLIENTS_VERSION, CONSUMER, PRODUCER


@pytest.mark.spark
def test_a_session_with_the_jars_knows_kafka(spark: SparkSession) -> None:
    """The source gives its columns, which it does without asking a broker."""
    source = spark.read.format("kafka").options(**{"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "none"})
    assert source.option("includeHeaders", True).load().columns == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
    ]


@pytest.mark.spark
def test_properties_are_those_of_the_clients_in_the_jars(spark: SparkSession) -> None:
    """Of consumer and producer, and of the admin client, with which the driver asks for offsets."""
    java: Any = spark._jvm
    clients = java.org.apache.kafka.clients
    consumer, producer, admin = (
        frozenset(kind.configNames())
        for kind in (clients.consumer.ConsumerConfig, clients.producer.ProducerConfig, clients.admin.AdminClientConfig)
    )
    assert consumer | admin == CONSUMER
    assert producer == PRODUCER
    assert java.org.apache.kafka.common.utils.AppInfoParser.getVersion() == CLIENTS_VERSION


@pytest.mark.spark
@pytest.mark.parametrize("version", ["4.2.0", "4.2.1", "4.3.0"])
def test_the_same_connector_serves_the_next_pyspark(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have no connector of their own work with that of 4.2.0: the same four jars."""
    monkeypatch.setattr(pyspark, "__version__", version)
    assert [Path(jar).name.split("-")[0] for jar in kafka_jars()] == ["commons", "kafka", "spark", "spark"]


def test_an_unknown_pyspark_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version is named, with those that are known and the way round."""
    monkeypatch.setattr(pyspark, "__version__", "4.1.0")
    with pytest.raises(ConfigurationError, match=r"pyspark='4\.1\.0': .*install pyspark==4\.2\.0, or .*_2\.13:4\.1\.0"):
        kafka_jars()
