"""A state of which more is put away than one record of its topic holds, on Apache Kafka."""

from __future__ import annotations

import random
from typing import Any

import pytest

from aioparallel import FailurePolicy, Record, RetryPolicy, Transactions
from aioparallel.persistence.state.increments import decode_increment, decode_place
from aioparallel.records.record import TopicPartition
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.integration.test_too_large_letters import until_committed
from tests.support.children.keeping_state import sums
from tests.support.kafka.consuming import consume, consumer_of, consuming
from tests.support.kafka.filling import fill_numbered, number_of
from tests.support.kafka.reading import read_all
from tests.support.waiting import until

pytestmark = pytest.mark.real

RECORDS, KEYS, LIMIT = 30_000, 10, 3_000
CHANCE = random.Random(5)
BAD = {number for number in range(RECORDS) if CHANCE.random() < 0.5}


async def put_away(record: Record, error: Exception) -> None:
    """A dead letter."""


async def handle(record: Record) -> None:
    """Half of them fail, without a pattern that would be short to write."""
    if number_of(record) in BAD:
        raise ValueError


@pytest.mark.parametrize("together", [False, True], ids=["at least once", "transactions"])
async def test_commits_go_on_however_many_are_put_away(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, together: bool
) -> None:
    """The topic of the increments takes 3,000 bytes, and the offsets that are not in the state take more. All is
    committed, and a restart has the very state."""
    servers = local_kafka.bootstrap_servers
    topic = await kafka_topic()
    tight = {"cleanup.policy": "compact", "max.message.bytes": str(LIMIT)}
    await local_kafka.create_topic(f"{topic}-state", 1, tight)
    await local_kafka.create_topic(f"{topic}-snapshots", 1, {"cleanup.policy": "compact"})
    fill_numbered(servers, topic, RECORDS, KEYS)
    group, state = f"{topic}-group", sums(topic, snapshot_after=10**9)

    given: dict[str, Any] = {
        "group_id": group,
        "state": state,
        "failures": FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=put_away),
        "commits": Transactions() if together else None,
    }
    stats = await consume(consumer_of(servers, topic, until="end", **given), handle)
    assert (stats.succeeded, stats.dead_lettered) == (RECORDS - len(BAD), len(BAD))
    await until_committed(servers, group, RECORDS)
    increments = await read_all(servers, f"{topic}-state", is_committed=True)
    last = decode_increment([record for record in increments if decode_place(record.key)][-1].value, 0)
    assert last.parts is not None
    assert last.parts.number > 1
    expected: dict[bytes, int] = {}
    for number in set(range(RECORDS)) - BAD:
        key = b"k%d" % (number % KEYS)
        expected[key] = expected.get(key, 0) + number
    consumer = consumer_of(servers, topic, **given)
    async with consuming(consumer, handle):
        await until(lambda: consumer.health().joined)
        assert consumer.states(TopicPartition(topic, 0)) == expected
        assert consumer.stats().state.unapplied == len(BAD)  # type: ignore[union-attr]
