"""Records that cannot be decoded, and batches that cannot be read, on Apache Kafka."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

import pytest

from aioparallel import FailurePolicy, Record
from aioparallel.clients import AiokafkaClient
from aioparallel.delivery.letters import original_headers, read_letter
from aioparallel.group.client import Span
from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.records.errors import UnreadableBatch
from aioparallel.records.record import TopicPartition
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.command_line import invoke
from tests.support.kafka.consuming import consume, consumer_of, consuming
from tests.support.kafka.raw_batches import RAW_NAME, damage, with_raw_names, write
from tests.support.kafka.reading import committed, read_all
from tests.support.waiting import until

pytestmark = pytest.mark.real

NAME = RAW_NAME.decode("utf-8", "surrogateescape")


async def records_of(servers: str, topic: str, start: int, end: int) -> list[Record]:
    """Read beside all groups."""
    client = AiokafkaClient(servers, "nobody")
    await client.start(30)
    try:
        async with aclosing(client.read({TopicPartition(topic, 0): Span(start, end)})) as reads:
            return [record async for fetched in reads for record in fetched.records]
    finally:
        await client.stop(5)


async def test_a_name_that_is_no_utf_8_from_the_log_to_the_dead_letters_and_back(
    local_kafka: LocalKafka, kafka_topic: TopicMaker
) -> None:
    """The record becomes a dead letter, at once; its neighbours in the same batch are handled, and all offsets are
    committed. The letter is readable for everybody, and a replay writes the record as it was, byte by byte."""
    servers = local_kafka.bootstrap_servers
    topic, letters = await kafka_topic(), await kafka_topic()
    values = [b"%d" % number for number in range(6)]
    await write(servers, topic, 0, with_raw_names(values[:4], [1, 2]), with_raw_names(values[4:], []))
    handled: list[bytes | None] = []

    async def handle(record: Record) -> None:
        handled.append(record.value)

    consumer = consumer_of(servers, topic, failures=FailurePolicy(dead_letter=letters), until="end")
    stats = await consume(consumer, handle)
    assert sorted(value or b"" for value in handled) == [b"0", b"3", b"4", b"5"]
    assert (stats.succeeded, stats.dead_lettered, stats.failed_attempts) == (4, 2, 2)
    put_away = await read_all(servers, letters)
    assert [record.value for record in put_away] == [b"1", b"2"]
    assert original_headers(put_away[0].headers) == (("trace", b"1"), (NAME, b"2"))
    letter = read_letter(put_away[0])
    assert letter is not None
    assert (letter.origin.offset, letter.last.type) == (1, "aioparallel.errors.UndecodableRecord")

    def run(command: str, *arguments: str) -> str:
        where = {"AIOPARALLEL_BOOTSTRAP_SERVERS": servers}
        result = invoke("dlq", command, letters, "--group", f"{letters}-marks", *arguments, environment=where)
        assert result.exit_code == 0, result.output
        return result.stdout

    shown = await asyncio.to_thread(run, "show", "--json", "--partition", "0", "--offset", "0")
    assert json.loads(shown)["headers"][0] == ["trace", "1"]
    assert "base64" in json.loads(shown)["headers"][1][0]
    await asyncio.to_thread(run, "replay", "--yes")
    first, *_, again, _ = await records_of(servers, topic, 1, 8)
    assert again.offset == 6
    assert (again.key, again.value) == (first.key, first.value) == (b"key", b"1")
    assert again.headers[:2] == first.headers == (("trace", b"1"), (NAME, b"2"))


async def test_a_batch_that_is_damaged_on_the_disk(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> None:
    """Its partition is held there, and the problem names it; the other partition goes on. A consumer that is told to
    skips just that batch, and counts it."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(2)
    for partition in (0, 1):
        batches = [with_raw_names([b"%d" % (3 * number + i) for i in range(3)], []) for number in range(3)]
        await write(servers, topic, partition, *batches)
    damage(local_kafka, topic, 0, 3)
    group = f"{topic}-group"
    handled: list[tuple[int, int]] = []

    async def handle(record: Record) -> None:
        handled.append((record.partition, record.offset))

    consumer = consumer_of(servers, topic, group_id=group, commit_interval=0.1)

    def problems() -> list[Problem]:
        """Without those of a busy machine, such as a blocked event loop."""
        return [one for one in consumer.health().problems if one.kind is ProblemKind.UNREADABLE]

    async with consuming(consumer, handle):
        await until(lambda: len(handled) == 12 and problems())
        (problem,) = problems()
        assert f"{topic}-0: cannot read at offset 3" in problem.message
        assert "its checksum is wrong" in problem.message
        assert f'skip_unreadable=[("{topic}", 0, 3)]' in problem.message
        assert "offsets 3 to 5" in problem.message
        await write(servers, topic, 1, with_raw_names([b"more"], []))
        await until(lambda: (1, 9) in handled)
        assert consumer.health().ready
    assert {place: found.offset for place, found in (await committed(servers, group)).items()} == {0: 3, 1: 10}
    with pytest.raises(UnreadableBatch, match=f"{topic}-0: cannot read at offset 3"):
        await consume(consumer_of(servers, topic, group_id=group, until="end"), handle)
    told = consumer_of(servers, topic, group_id=group, until="end", skip_unreadable=[(topic, 0, 3)])
    stats = await consume(told, handle)
    assert stats.skipped_batches == 1
    assert sorted(handled) == [*((0, offset) for offset in (0, 1, 2, 6, 7, 8)), *((1, offset) for offset in range(10))]
    assert {place: found.offset for place, found in (await committed(servers, group)).items()} == {0: 9, 1: 10}
