"""What a session tells of itself. A stand-in has its settings."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from aioparallel.records.errors import CheckFailed
from aioparallel.spark.spark_session import (
    connector_trouble,
    naming_the_jars,
    shuffle_partitions,
    summary_of,
    task_slots,
)


class Session:
    """Has settings, and a reader that fails."""

    def __init__(self, settings: dict[str, str], error: Exception | None = None) -> None:
        self._settings = settings
        self._error = error
        self.conf = self
        self.read = self

    def get(self, name: str, default: str) -> str:
        return self._settings.get(name, default)

    def format(self, _name: str) -> Session:
        return self

    def option(self, _name: str, _value: str) -> Session:
        return self

    def load(self) -> Any:
        assert self._error is not None
        raise self._error


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[4]"}, 4),
        ({"spark.master": "local[4, 2]"}, 4),
        ({"spark.master": "local[4]", "spark.task.cpus": "2"}, 2),
        ({"spark.master": "yarn", "spark.executor.instances": "3", "spark.executor.cores": "4"}, 12),
        ({"spark.executor.instances": "3", "spark.executor.cores": "5", "spark.task.cpus": "2"}, 6),
        ({"spark.master": "k8s://host", "spark.executor.cores": "4"}, None),
        ({}, None),
    ],
)
def test_task_slots_from_settings(settings: dict[str, str], slots: int | None) -> None:
    """Threads of a local master, cores of executors; nothing is guessed."""
    assert task_slots(cast(SparkSession, Session(settings))) == slots


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"spark.master": "local[2]"}, 16),
        ({"spark.master": "local[2]", "spark.sql.shuffle.partitions": "200"}, 16),
        ({"spark.master": "local[2]", "spark.sql.shuffle.partitions": "64"}, None),
        ({"spark.master": "local[1]", "spark.task.cpus": "2"}, 8),
        ({"spark.master": "yarn", "spark.executor.instances": "10", "spark.executor.cores": "4"}, None),
        ({"spark.master": "k8s://host", "spark.executor.cores": "4"}, None),
    ],
)
def test_partitions_of_a_shuffle(settings: dict[str, str], count: int | None) -> None:
    """Few for few cores; what somebody has set stays."""
    assert shuffle_partitions(cast(SparkSession, Session(settings))) == count


def test_no_connector_is_told_with_what_to_do() -> None:
    """As Spark 4.2 says it of Kafka; anything else is told as it is."""
    text = "Failed to find data source: kafka. Please deploy the application as per the deployment section"
    assert "kafka_jars" in (connector_trouble(cast(SparkSession, Session({}, ValueError(text)))) or "")
    assert connector_trouble(cast(SparkSession, Session({}, ValueError("no session")))) == "no session"


def test_what_java_says_in_one_line() -> None:
    """Without the gateway's objects and the traces, with the cause at the bottom, once."""
    text = "An error occurred while calling o67.load.\n: a.b.Failed: planning\n\tat a.b\nCaused by: a.c.Timeout: nobody"
    assert summary_of(ValueError(text)) == "a.b.Failed: planning, caused by a.c.Timeout: nobody"
    assert summary_of(ValueError("a.c.Timeout\n\nJVM stacktrace:\nCaused by: a.c.Timeout")) == "a.c.Timeout"
    assert summary_of(ValueError()) == "ValueError()"


@pytest.mark.parametrize(
    "text",
    [
        "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: kafka. Make sure the provider name is correct",
        "Failed to find data source: kafka. Please deploy the application as per the deployment section",
    ],
)
def test_reading_and_writing_name_the_jars_too(text: str) -> None:
    """As read_topic and write_topic say it; what is not about the connector is raised as it is."""
    with pytest.raises(CheckFailed, match=r"has no Kafka connector: .*kafka_jars\(\)"), naming_the_jars():
        raise ValueError(text)
    with pytest.raises(ValueError, match="data source: jdbc"), naming_the_jars():
        raise ValueError(text.replace("kafka", "jdbc"))
