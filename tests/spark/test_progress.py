"""The listener beside real queries on Apache Kafka: what it shows, and what it commits to a group."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Partition
from pyspark.sql import DataFrame, SparkSession

from aioparallel.records.record import TopicPartition
from aioparallel.spark.progress import ProgressListener, QueryProgress
from aioparallel.testing import LocalKafka
from tests.support.kafka.filling import fill
from tests.support.kafka.reading import committed
from tests.support.spark.topics import NewTopic, counted
from tests.support.waiting import DEADLINE, until

pytestmark = [pytest.mark.spark, pytest.mark.real]


def offsets(servers: str, group: str) -> dict[int, int]:
    """What lag tools see."""
    return {partition: one.offset for partition, one in asyncio.run(committed(servers, group)).items()}


def wait(condition: Callable[[], object], what: str) -> None:
    asyncio.run(until(condition, DEADLINE, what))


def read(spark: SparkSession, servers: str, topic: str, **options: object) -> DataFrame:
    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    return stream.option("startingOffsets", "earliest").options(**options).load()  # type: ignore[arg-type]


@pytest.fixture
def listening(spark: SparkSession) -> Iterator[Callable[..., ProgressListener]]:
    """A function: a listener that is added, and removed when the test ends. It hears of no query that ended before."""
    context: Any = spark.sparkContext._jsc
    context.sc().listenerBus().waitUntilEmpty(int(DEADLINE * 1_000))
    added: list[ProgressListener] = []

    def listen(**options: Any) -> ProgressListener:
        listener = ProgressListener(**{"show": "nothing", **options})
        spark.streams.addListener(listener)
        added.append(listener)
        return listener

    yield listen
    for listener in added:
        spark.streams.removeListener(listener)
        listener.close()


def check_last(figure: QueryProgress, topic: str, ends: dict[TopicPartition, int]) -> None:
    """1,000 records, 400 a batch, all read."""
    assert (figure.name, figure.state, figure.error) == ("flights", "terminated", None)
    assert (figure.batches, figure.total_rows, figure.lag) == (3, 1_000, 0)
    assert figure.end_offsets == ends
    assert {partition.topic for partition in figure.sources[0].partitions} == {topic}
    assert figure.batch_seconds is not None
    assert figure.batch_seconds * 0.9 <= sum(figure.recent_batch_seconds) / 2
    assert 0 < figure.phase_seconds["addBatch"] <= figure.batch_seconds


def test_figures_and_a_group_of_a_query(
    spark: SparkSession,
    listening: Callable[..., ProgressListener],
    new_topic: NewTopic,
    local_kafka: LocalKafka,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Each batch's rows and lag; when the block ends the group has what the query has read: the next offsets, as a
    consumer would have committed them."""
    servers, topic, group = local_kafka.bootstrap_servers, new_topic(3), f"lag-{uuid.uuid4().hex}"
    fill(servers, topic, counted(1_000))
    with listening(show="lines", every=0, commit_group=group, bootstrap_servers=servers) as listener:
        stream = read(spark, servers, topic, maxOffsetsPerTrigger=400).writeStream.format("noop").queryName("flights")
        query = stream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(int(DEADLINE))
    (figure,) = listener.snapshot()
    ends = offsets(servers, group)
    assert sum(ends.values()) == 1_000
    check_last(figure, topic, {TopicPartition(topic, partition): end for partition, end in ends.items()})
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("flights: ")]
    assert len(lines) == 5
    assert lines[0] == "flights: running, no batch yet"
    assert "lag 600 (most in " in lines[1]
    assert lines[-1] == "flights: ended, 1,000 rows in 3 batches"


def run_to_its_end(spark: SparkSession, servers: str, topic: str, checkpoint: Path) -> None:
    """A query of what the topic has."""
    query = read(spark, servers, topic).writeStream.format("noop").trigger(availableNow=True)
    assert query.option("checkpointLocation", str(checkpoint)).start().awaitTermination(int(DEADLINE))


def test_a_group_with_a_live_member_is_left_alone(
    spark: SparkSession,
    listening: Callable[..., ProgressListener],
    new_topic: NewTopic,
    local_kafka: LocalKafka,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """Its offsets stay where its consumer has committed them, also after that has left; the query is none the worse.
    Of both protocols: the classic one, and the newer one of KIP-848."""
    servers, topic = local_kafka.bootstrap_servers, new_topic(1)
    fill(servers, topic, counted(50))
    for protocol in ("classic", "consumer"):
        group = f"{protocol}-{uuid.uuid4().hex}"
        member = joined(servers, group, topic, protocol)
        try:
            for is_there in (True, False):
                with listening(commit_group=group, bootstrap_servers=servers) as listener:
                    run_to_its_end(spark, servers, topic, tmp_path / group / str(is_there))
                assert listener.snapshot()[0].total_rows == 50
                assert offsets(servers, group) == {0: 7}
                if is_there:
                    member.close()
        finally:
            member.close()
    refused = [record.getMessage() for record in caplog.records if vars(record).get("action") == "group_refused"]
    assert len(refused) == 4
    assert "has live members (tests at " in refused[0]
    assert "belongs to consumers" in refused[1]
    assert "give commit_group a name that no consumer has used" in refused[2]


def test_a_group_whose_consumer_assigns_its_partitions(
    spark: SparkSession,
    listening: Callable[..., ProgressListener],
    new_topic: NewTopic,
    local_kafka: LocalKafka,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """It is no member, and its group has no protocol: its commits are left alone unless they are taken over. A query
    that goes on from its checkpoint knows its own."""
    servers, topic, group = local_kafka.bootstrap_servers, new_topic(1), f"assigned-{uuid.uuid4().hex}"
    fill(servers, topic, counted(50))
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False})
    consumer.commit(offsets=[Partition(topic, 0, 6)], asynchronous=False)
    consumer.close()

    def run(**options: object) -> dict[int, int]:
        with listening(commit_group=group, bootstrap_servers=servers, **options):
            run_to_its_end(spark, servers, topic, tmp_path)
        return offsets(servers, group)

    assert run() == {0: 6}
    assert f"has offset 6 of {topic}-0 committed by another program" in caplog.text
    fill(servers, topic, counted(1))
    assert run(take_over=True) == {0: 51}
    fill(servers, topic, counted(1))
    assert run() == {0: 52}


def joined(servers: str, group: str, topic: str, protocol: str) -> Consumer:
    """A consumer that has the topic's partition, and has committed 7."""
    settings = {"bootstrap.servers": servers, "group.id": group, "group.protocol": protocol, "client.id": "tests"}
    member = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    member.subscribe([topic])
    wait(lambda: member.poll(0.05) is not None, f"a member of group {group} with a record")
    (partition,) = member.assignment()
    partition.offset = 7
    member.commit(offsets=[partition], asynchronous=False)
    return member


def test_a_query_that_waits_and_one_that_fails(
    spark: SparkSession,
    listening: Callable[..., ProgressListener],
    new_topic: NewTopic,
    local_kafka: LocalKafka,
    tmp_path: Path,
) -> None:
    """Idle until there is something new, then running; a handler's own error is the line that is shown."""
    servers, topic = local_kafka.bootstrap_servers, new_topic(1)
    fill(servers, topic, counted(10))
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100")
    listener = listening()

    def latest() -> QueryProgress:
        return listener.snapshot()[-1]

    def refuse(batch: DataFrame, number: int) -> None:
        batch.foreach(lambda _: None)
        if number:
            raise ValueError(f"no tail number\nin batch {number}")

    stream = read(spark, servers, topic).writeStream.foreachBatch(refuse).trigger(processingTime="50 milliseconds")
    query = stream.queryName("waiting").option("checkpointLocation", str(tmp_path)).start()
    try:
        wait(lambda: listener.snapshot() and latest().state == "idle", "idle")
        assert (latest().total_rows, latest().sink_rows) == (10, None)
        fill(servers, topic, counted(1))
        wait(lambda: latest().state == "terminated", "the end")
    finally:
        query.stop()
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
    assert latest().error == "ValueError: no tail number"
