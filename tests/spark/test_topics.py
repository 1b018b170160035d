"""Topics read and written by Spark, on Apache Kafka."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import Record
from aioparallel.spark.headers import outgoing
from aioparallel.spark.topics import read_topic, write_topic
from aioparallel.testing import LocalKafka
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.reading import read_all
from tests.support.spark.settings import STREAM_TIMEOUT
from tests.support.spark.topics import NewTopic, counted

pytestmark = [pytest.mark.spark, pytest.mark.real]


def number(record: Record) -> int:
    """The ``n`` of a value."""
    assert record.value is not None
    found: int = json.loads(record.value)["n"]
    return found


def numbers(frame: DataFrame) -> list[int]:
    """The ``n`` of each row."""
    return sorted(json.loads(bytes(row.value))["n"] for row in frame.select("value").collect())


def written(kafka: LocalKafka, topic: str) -> list[Record]:
    """What stands in a topic now."""
    return asyncio.run(read_all(kafka.bootstrap_servers, topic))


def test_a_batch_from_topic_to_topic(spark: SparkSession, local_kafka: LocalKafka, new_topic: NewTopic) -> None:
    """Records of an aborted transaction are not read; each of the others arrives once, in the partition of its number,
    in the order of its key, with its own headers and where it stood."""
    servers, raw, work = local_kafka.bootstrap_servers, new_topic(4), new_topic(4)
    fill(servers, raw, counted(100)[:50])
    fill(servers, raw, [Message(b"key-1", b'{"n": 1000}')], aborted=True)
    fill(servers, raw, counted(100)[50:])

    write_topic(read_topic(spark, raw, bootstrap_servers=servers, streaming=False), work, bootstrap_servers=servers)

    before = {(record.partition, record.offset): record for record in written(local_kafka, raw)}
    after = written(local_kafka, work)
    assert sorted(map(number, after)) == list(range(100))
    by_key: dict[bytes | None, list[int]] = {}
    for record in after:
        headers = dict(record.headers)
        assert len(headers.pop("src-digest") or b"") == 16
        assert headers.pop("src-topic") == raw.encode()
        place = int(headers.pop("src-partition") or b""), int(headers.pop("src-offset") or b"")
        assert (before[place].value, before[place].key) == (record.value, record.key)
        assert place[0] == record.partition
        assert headers == dict(before[place].headers)
        by_key.setdefault(record.key, []).append(number(record))
    assert all(found == sorted(found) for found in by_key.values())


def test_a_stream_goes_on_where_it_was(
    spark: SparkSession, local_kafka: LocalKafka, new_topic: NewTopic, tmp_path: Path
) -> None:
    """So many offsets a micro-batch; the same checkpoint the second time brings only what is new. The frame's own
    columns topic and partition do not lead the records anywhere else."""
    servers, raw, work = local_kafka.bootstrap_servers, new_topic(2), new_topic(2)
    fill(servers, raw, counted(50))

    def run() -> int:
        stream = read_topic(spark, raw, bootstrap_servers=servers, per_trigger=20)
        query = write_topic(
            stream,
            work,
            bootstrap_servers=servers,
            checkpoint=tmp_path / "checkpoint",
            trigger={"availableNow": True},
            query_name="raw-to-work",
        )
        assert query.name == "raw-to-work"
        assert query.awaitTermination(STREAM_TIMEOUT)
        return len([progress for progress in query.recentProgress if progress.numInputRows])

    assert run() == 3
    fill(servers, raw, [Message(b"key-1", b'{"n": 50}')])
    assert run() == 1
    assert sorted(map(number, written(local_kafka, work))) == list(range(51))


def test_where_a_batch_begins_and_ends(spark: SparkSession, local_kafka: LocalKafka, new_topic: NewTopic) -> None:
    """Offsets and times say exactly which records; the end is not among them."""
    servers, raw = local_kafka.bootstrap_servers, new_topic(1)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    at = [round((noon + timedelta(minutes=n)).timestamp() * 1000) for n in range(10)]
    fill(servers, raw, [Message(b"k", b'{"n": %d}' % n, timestamp=at[n]) for n in range(10)])

    def read(**where: object) -> list[int]:
        return numbers(read_topic(spark, raw, bootstrap_servers=servers, streaming=False, **where))  # type: ignore[arg-type]

    assert read(starting={raw: {0: 2}}, ending={raw: {0: 5}}) == [2, 3, 4]
    assert read(starting={raw: {0: 8}}, ending={raw: {0: "latest"}}) == [8, 9]
    assert read(starting=noon + timedelta(minutes=3), ending=noon + timedelta(minutes=5)) == [3, 4]
    assert read(starting={raw: {0: noon + timedelta(minutes=8, seconds=1)}}) == [9]
    late = noon + timedelta(days=1)
    assert read(starting=late, past_the_end="latest") == []
    with pytest.raises(Exception, match="No offset matched"):
        read(starting=late, options={"fetchOffset.numRetries": 1})  # Spark asks three times, with a second between


def test_frames_that_cannot_be_written_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """With the column, what it is, and what to do; nothing was sent."""
    row = spark.range(1)

    def write(frame: DataFrame, **arguments: object) -> None:
        write_topic(frame, "work", bootstrap_servers="127.0.0.1:1", **arguments)  # type: ignore[call-overload]

    with pytest.raises(ConfigurationError, match=r"df=\['id'\]: must have a column value; see outgoing"):
        write(row)
    with pytest.raises(ConfigurationError, match=r"df\.value='bigint': must be string or binary; .*to_json"):
        write(row.withColumnRenamed("id", "value"))
    with pytest.raises(ConfigurationError, match=r"df\.key='bigint'"):
        write(row.select(F.col("id").alias("key"), F.lit("x").alias("value")))
    with pytest.raises(ConfigurationError, match=r"df\.headers='map<string,string>': must be array<struct"):
        write(row.select(F.lit("x").alias("value"), F.create_map(F.lit("a"), F.lit("b")).alias("headers")))
    good = row.select(F.lit("x").alias("value"))
    with pytest.raises(ConfigurationError, match="must be None, for a batch"):
        write(good, checkpoint=tmp_path)
    with pytest.raises(ConfigurationError, match=r"trigger=.*is for streams"):
        write(good, trigger={"availableNow": True})
    stream = spark.readStream.format("rate").load().select(F.lit("x").alias("value"))
    with pytest.raises(ConfigurationError, match="checkpoint=None: must be a directory"):
        write(stream)


def test_records_with_columns_of_their_own(spark: SparkSession, local_kafka: LocalKafka, new_topic: NewTopic) -> None:
    """Keys and values made of columns, strings as UTF-8; a record without a key and without headers."""
    servers, work = local_kafka.bootstrap_servers, new_topic(1)
    frame = spark.sql("SELECT 'zürich' AS city, 1 AS n")
    as_json = F.to_json(F.struct("city", "n"))
    for key in ("city", None):
        records = frame.transform(outgoing(key=key, value=as_json, headers=None, source=False))
        write_topic(records, work, bootstrap_servers=servers)
    assert [(record.key, record.value, record.headers) for record in written(local_kafka, work)] == [
        ("zürich".encode(), '{"city":"zürich","n":1}'.encode(), ()),
        (None, '{"city":"zürich","n":1}'.encode(), ()),
    ]
