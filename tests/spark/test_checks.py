"""What a pipeline needs, looked at before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from aioparallel.records.errors import CheckFailed
from aioparallel.spark.checkpoints import checkpoint_status
from aioparallel.spark.checks import check
from aioparallel.spark.topics import read_topic, write_topic
from aioparallel.testing import LocalKafka
from tests.support.kafka.filling import Message, fill
from tests.support.spark.settings import STREAM_TIMEOUT
from tests.support.spark.topics import NewTopic, counted

pytestmark = [pytest.mark.spark, pytest.mark.real]


def test_what_is_as_it_must_be(spark: SparkSession, local_kafka: LocalKafka, new_topic: NewTopic) -> None:
    """Topics with as many partitions each, a schema that reads the values, a slot for each partition."""
    servers, raw, work = local_kafka.bootstrap_servers, new_topic(2), new_topic(2)
    fill(servers, raw, [*counted(60), Message(b"tombstone", None)])
    found = check(spark, bootstrap_servers=servers, topics=[raw], outputs=[work], schema="n int", real_time=True)
    assert found.partitions == {raw: 2, work: 2}
    assert found.sampled == {raw: 61}
    assert found.slots == 2
    assert int(found.java.split(".")[0]) >= 17


def test_all_that_is_wrong_is_told_at_once(spark: SparkSession, local_kafka: LocalKafka, new_topic: NewTopic) -> None:
    """A topic that is not there, other partitions, a schema that reads NULL, too few slots: each with what to do, and
    the sample is the last records."""
    servers, raw, work = local_kafka.bootstrap_servers, new_topic(3), new_topic(2)
    fill(servers, raw, [Message(b"k%d" % (n % 30), b'{"n": "%d", "other": 1}' % n) for n in range(90)])
    with pytest.raises(CheckFailed) as failed:
        check(
            spark,
            bootstrap_servers=servers,
            topics=[raw],
            outputs=[work, "no-such-topic", raw],
            schema="n int, carrier string",
            real_time=True,
            sample=9,
        )
    circle, missing, partitions, unread, absent, slots = failed.value.findings
    assert circle.startswith(f"{raw} is both read and written, so each of its records would be read again")
    assert missing.startswith(f"topic no-such-topic does not exist at {servers}: create it")
    assert partitions.startswith(
        f"{work} has 2 partitions and {raw} has 3: the records of a key change their partition"
    )
    assert unread.startswith(f'{raw}: field n is read as NULL from 9 of 9 records that have it, such as "')
    assert absent.startswith(f"{raw}: field carrier is in none of 9 records (they have n, other): fix its name")
    assert slots.startswith(
        f"real-time mode needs a task slot for each partition, 3 in all ({raw} 3), but there are only 2:"
    )
    assert str(failed.value).startswith(f"6 things keep this pipeline from starting:\n  1. {raw} is both")


def test_what_spark_reads_is_right(spark: SparkSession, local_kafka: LocalKafka, new_topic: NewTopic) -> None:
    """Single quotes, and the column for records that it cannot read, which no record has; a broken one is told."""
    servers, raw = local_kafka.bootstrap_servers, new_topic(1)
    fill(servers, raw, [Message(None, b"{'n': 1}"), Message(None, b'{"n": 2}')])
    schema = "n int, _corrupt_record string"
    assert check(spark, bootstrap_servers=servers, topics=raw, schema=schema).sampled == {raw: 2}
    fill(servers, raw, [Message(None, b'{"n": 3, "m"')])
    with pytest.raises(CheckFailed, match="1 of 3 values are no JSON objects"):
        check(spark, bootstrap_servers=servers, topics=raw, schema=schema)


def test_a_cluster_that_does_not_answer(spark: SparkSession) -> None:
    """Within the deadline, and with the topics of which nothing is known; nothing else is found fault with."""
    with pytest.raises(CheckFailed, match=r"no Kafka broker answered at 127\.0\.0\.1:1 .*is known of raw, work"):
        check(spark, bootstrap_servers="127.0.0.1:1", topics=["raw"], outputs=["work"], timeout=0.5)


def test_options_that_only_spark_gets_wrong(spark: SparkSession, local_kafka: LocalKafka, new_topic: NewTopic) -> None:
    """The cluster is asked by another client than Spark's: what Spark itself says comes too, in its first line."""
    servers, raw = local_kafka.bootstrap_servers, new_topic(1)
    fill(servers, raw, counted(1))
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"schema": "n integre"}, "integre"),
        (
            {"options": {"kafka.security.protocol": "TELNET"}},
            "Invalid value TELNET for configuration",
        ),
    )
    for arguments, what in wrong:
        with pytest.raises(CheckFailed) as failed:
            check(spark, bootstrap_servers=servers, topics=[raw], **arguments)
        (finding,) = failed.value.findings
        assert finding.startswith(f"Spark cannot read {raw} with these options")
        assert what in finding
        assert "\n" not in finding


def test_the_status_of_a_stream(
    spark: SparkSession, local_kafka: LocalKafka, new_topic: NewTopic, tmp_path: Path
) -> None:
    """What Spark has just written is read: batches, offsets, lag; and a batch that failed is open."""
    servers, raw, work = local_kafka.bootstrap_servers, new_topic(2), new_topic(2)
    fill(servers, raw, counted(40))

    def run(*, failing: bool = False) -> bool:
        stream = read_topic(spark, raw, bootstrap_servers=servers)
        if failing:
            stream = stream.withColumn("value", F.raise_error(F.lit("no such plane")).cast("string"))
        query = write_topic(
            stream, work, bootstrap_servers=servers, checkpoint=tmp_path, trigger={"availableNow": True}
        )
        return query.awaitTermination(STREAM_TIMEOUT) is True

    assert run()
    fill(servers, raw, counted(10))
    status = checkpoint_status(tmp_path, bootstrap_servers=servers)
    assert (status.batch, status.open_batch) == (0, None)
    assert [one.partition for one in status.partitions] == [0, 1]
    assert sum(one.committed or 0 for one in status.partitions) == 40
    assert sum(one.lag or 0 for one in status.partitions) == 10

    with pytest.raises(Exception, match="no such plane"):
        run(failing=True)
    status = checkpoint_status(tmp_path, bootstrap_servers=servers)
    assert (status.batch, status.open_batch) == (0, 1)
    assert sum(one.planned or 0 for one in status.partitions) == 50
