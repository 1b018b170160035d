"""Rows made of one record, by a sink and by topic, on Apache Kafka: none is taken for a copy of another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from aioparallel import Deduplicate, Record
from aioparallel.records.errors import ConfigurationError
from aioparallel.spark import read_topic, register_sink, write_topic
from aioparallel.spark.backfill import FromTopic, ToTopic, backfill
from aioparallel.testing import LocalKafka
from tests.support.kafka.consuming import consume, consumer_of
from tests.support.kafka.filling import fill
from tests.support.kafka.reading import read_all
from tests.support.spark.topics import NewTopic, counted

pytestmark = [pytest.mark.spark, pytest.mark.real]

RECORDS, EACH = 100, 3


def parts(frame: DataFrame) -> DataFrame:
    """Of each record three, the values ending in 0, 1 and 2, all of its key."""
    numbered = frame.select("*", F.posexplode(F.array([F.lit(n) for n in range(EACH)])).alias("place", "part"))
    return numbered.withColumn("value", F.concat(F.col("value").cast("string"), F.lit(" "), F.col("part")))


def equal(frame: DataFrame) -> DataFrame:
    """Three, equal but for the column ``place``."""
    return frame.select("*", F.posexplode(F.array([F.lit(0)] * EACH)).alias("place", "part"))


def handled(servers: str, topic: str, seen: str, by: Literal["record", "key"]) -> tuple[list[bytes], int]:
    """Values that a consumer without copies handles, and how many it leaves out."""
    values: list[bytes] = []

    async def handle(record: Record) -> None:
        values.append(record.value or b"")

    consumer = consumer_of(servers, topic, deduplicate=Deduplicate(seen, by=by), until="end")
    stats = asyncio.run(consume(consumer, handle))
    return sorted(values), stats.copies


@pytest.mark.slow
def test_by_topic(spark: SparkSession, local_kafka: LocalKafka, new_topic: NewTopic, tmp_path: Path) -> None:
    """A stream writes them, and a backfill all of them again: each is handled once, by record and by key."""
    servers, raw, work, seen = local_kafka.bootstrap_servers, new_topic(2), new_topic(2), f"{new_topic(2)}-seen"
    asyncio.run(local_kafka.create_topic(seen, 2, {"cleanup.policy": "compact"}))
    fill(servers, raw, counted(RECORDS))
    stream = read_topic(spark, raw, bootstrap_servers=servers).transform(parts)
    write_topic(
        stream, work, bootstrap_servers=servers, checkpoint=tmp_path / "checkpoint", trigger={"availableNow": True}
    ).awaitTermination()
    backfill(spark, FromTopic(raw, servers), parts, to=ToTopic(work, servers))
    values = sorted(b'{"n": %d} %d' % (n, part) for n in range(RECORDS) for part in range(EACH))
    assert len(asyncio.run(read_all(servers, work))) == 2 * len(values)
    for by in ("record", "key"):
        assert handled(servers, work, seen, by) == (values, len(values))


def test_equal_ones_by_topic(spark: SparkSession, local_kafka: LocalKafka, new_topic: NewTopic) -> None:
    """Records of one that are equal in all that is written are told apart, by their places and by a column that numbers
    them, and known when they come again. A number is refused where nothing says of which record they were made."""
    servers, raw, work, seen = local_kafka.bootstrap_servers, new_topic(), new_topic(), f"{new_topic()}-seen"
    asyncio.run(local_kafka.create_topic(seen, 1, {"cleanup.policy": "compact"}))
    fill(servers, raw, counted(RECORDS))
    frame = read_topic(spark, raw, bootstrap_servers=servers, streaming=False).transform(equal)
    for _ in range(2):
        write_topic(frame, work, bootstrap_servers=servers)
    numbered = new_topic()
    backfill(spark, FromTopic(raw, servers), equal, to=ToTopic(numbered, servers, index="place"))
    for by in ("record", "key"):
        assert handled(servers, work, seen, by)[1] == RECORDS * EACH
        assert handled(servers, numbered, seen, by)[1] == 0
    with pytest.raises(ConfigurationError, match=r"numbers the records derived from one.*keep these columns"):
        write_topic(frame.drop("offset"), work, bootstrap_servers=servers, index="place")
    with pytest.raises(ConfigurationError, match=r"index=.*is double, but must be whole numbers"):
        write_topic(frame, work, bootstrap_servers=servers, index=F.col("place") / 2)


@pytest.mark.slow
def test_by_a_sink(spark: SparkSession, local_kafka: LocalKafka, new_topic: NewTopic, tmp_path: Path) -> None:
    """Each row has a key of its own, equal ones too, and the same in a second run, behind a shuffle that brings them
    in another order and with other partitions."""
    servers, raw = local_kafka.bootstrap_servers, new_topic(2)
    fill(servers, raw, counted(RECORDS))
    register_sink(spark)
    frame = read_topic(spark, raw, bootstrap_servers=servers, streaming=False)
    rows = parts(frame).drop("place").union(equal(frame).drop("place"))
    written = tmp_path / "written"
    named = rows.selectExpr(
        "topic", "partition", "offset", "CAST(value AS STRING) AS seq", "part AS k", f"'{written}' AS file"
    )
    options = {
        "handler": "tests.support.spark.handlers:note",
        "resources": "tests.support.spark.handlers:RESOURCES",
    }
    found = []
    for partitions in (1, 2):
        named.repartition(partitions, "seq").write.format("aioparallel").options(**options).mode("append").save()
        found.append([line.split("|")[2] for line in written.read_text().splitlines()])
        written.unlink()
    assert len(set(found[0])) == len(found[0]) == 2 * EACH * RECORDS
    assert sorted(found[0]) == sorted(found[1])
