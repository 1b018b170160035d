"""Ranges of topics that are not there: told at once, with the partition and what to do."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.records.errors import CheckFailed, ConfigurationError
from aioparallel.records.record import TopicPartition
from aioparallel.spark.backfill import FromTopic, ToParquet, ToTopic, backfill
from aioparallel.testing import LocalKafka
from tests.support.kafka.filling import Message, fill
from tests.support.spark.topics import NewTopic

pytestmark = pytest.mark.spark
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOWHERE = "127.0.0.1:9"


def at(second: int) -> datetime:
    return NOON + timedelta(seconds=second)


async def shorten(servers: str, topic: str, offset: int) -> None:
    """Delete the first records of partition 0."""
    async with Admin(servers) as admin:
        await admin.delete_records({TopicPartition(topic, 0): offset})


@pytest.mark.real
def test_what_is_wrong_with_a_range(
    spark: SparkSession, local_kafka: LocalKafka, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Below the log's start, a partition left out or too many, ending before starting; and none of it is read."""
    servers, raw = local_kafka.bootstrap_servers, new_topic(1)
    fill(servers, raw, [Message(b"k", b"v", timestamp=round(at(n).timestamp() * 1000)) for n in range(50)])
    asyncio.run(shorten(servers, raw, 10))
    wide = new_topic(2)
    fill(servers, wide, [Message(b"%d" % n, b"v") for n in range(20)])

    wrong: list[tuple[str, Any, Any, str]] = [
        (
            raw,
            {raw: {0: 3}},
            "latest",
            f'starting of {raw}-0 is offset 3, but the log starts at 10, .*"earliest" reads',
        ),
        (wide, "earliest", {wide: {1: NOON}}, f"ending does not name {wide}-0: name all 2 partitions"),
        (raw, at(90), {raw: {0: 20}}, rf"ending of {raw}-0 is offset 20, before starting, 2026.* \(offset 50\)"),
    ]
    for topic, starting, ending, message in wrong:
        with pytest.raises(CheckFailed, match=message):
            backfill(spark, FromTopic(topic, servers, starting, ending), to=ToParquet(tmp_path / "out"))
    with pytest.raises(ConfigurationError, match=rf"ending=.*of {raw}-0, 20, is before starting, 30"):
        backfill(spark, FromTopic(raw, servers, {raw: {0: 30}}, {raw: {0: 20}}), to=ToParquet(tmp_path / "out"))
    backfill(spark, FromTopic(raw, servers, {raw: {0: 20}}, at(30)), to=ToParquet(tmp_path / "out"))
    assert spark.read.parquet(str(tmp_path / "out")).count() == 10


@pytest.mark.real
def test_a_bound_at_the_microsecond(
    spark: SparkSession, local_kafka: LocalKafka, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Two ranges that meet within a millisecond have each record once."""
    servers, raw = local_kafka.bootstrap_servers, new_topic(1)
    first = round(at(59).timestamp() * 1000) + 998
    fill(servers, raw, [Message(b"k", b"v", timestamp=first + n) for n in range(4)])
    between = at(59) + timedelta(microseconds=999_999)
    backfill(spark, FromTopic(raw, servers, ending=between), to=ToParquet(tmp_path / "before"))
    backfill(spark, FromTopic(raw, servers, starting=between), to=ToParquet(tmp_path / "after"))
    counts = [spark.read.parquet(str(tmp_path / name)).count() for name in ("before", "after")]
    assert counts == [2, 2]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("startingOffsetsByTimestampStrategy", "leave it out: a time after the last record"),
        ("kafka.isolation.level", "leave it out: a backfill reads committed records"),
        ("maxOffsetsPerTrigger", "leave it out: a backfill reads all"),
        ("minPartitions", "leave it out"),
    ],
)
def test_advice_names_what_a_backfill_has(spark: SparkSession, tmp_path: Path, name: str, advice: str) -> None:
    """And no argument of read_topic or write_topic."""
    with pytest.raises(ConfigurationError, match=rf"options {name}=.*{advice}") as raised:
        backfill(spark, FromTopic("raw", NOWHERE, options={name: 1}), to=ToParquet(tmp_path / "out"))
    assert "keep_key_order" not in str(raised.value)
    with pytest.raises(ConfigurationError, match="leave it out: a backfill is a batch"):
        backfill(spark, FromTopic("raw", NOWHERE), to=ToTopic("work", NOWHERE, options={"checkpointLocation": "x"}))
