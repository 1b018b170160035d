"""A handler that blocks, on Apache Kafka: the member stays in its group, and is told what holds it."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter

import pytest

from aioparallel import Ordering, Record
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.consuming import consumer_of, consuming
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.reading import committed
from tests.support.waiting import until

pytestmark = pytest.mark.real

RECORDS, BLOCKED = 40, 0.3
LOST = {"lost", "partitions_lost", "group_failure", "settle_uncommitted"}


async def test_a_handler_that_blocks_keeps_its_session(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, caplog: pytest.LogCaptureFixture
) -> None:
    """Forty records in a row that block 0.3 s each, with a session of 3 s: the session is kept, each record runs once,
    all is committed, and within a second of the first one the log and ``health()`` say what holds the loop."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(partitions=1)
    fill(servers, topic, [Message(b"%d" % (i % 20), b"value") for i in range(RECORDS)])
    ran: Counter[int] = Counter()
    began: list[float] = []

    async def handle(record: Record) -> None:
        began.append(time.time())
        ran[record.offset] += 1
        time.sleep(BLOCKED)  # noqa: ASYNC251 - that is what is tested

    consumer = consumer_of(
        servers, topic, group_id=f"{topic}-held", ordering=Ordering.KEY, session_timeout=3, heartbeat_interval=0.5,
        commit_interval=0.5,
    )  # fmt: skip
    with caplog.at_level(logging.INFO):
        async with consuming(consumer, handle):
            await until(lambda: len(ran) == RECORDS)
            (problem,) = (one for one in consumer.health().problems if one.kind == "loop_held")
            assert (found := re.search(r"handle blocked the event loop for ([\d.]+) s", problem.message))
            assert BLOCKED - 0.06 < float(found[1]) < 2 * BLOCKED
            await until(lambda: consumer.stats().partitions[0].committed == RECORDS)
            epoch = consumer.stats().partitions[0].epoch
    assert (await committed(servers, f"{topic}-held"))[0][0] == RECORDS
    assert set(ran.values()) == {1}
    assert epoch == 1
    actions = Counter(str(getattr(line, "action", "")) for line in caplog.records)
    assert not LOST & actions.keys(), actions
    first = next(line for line in caplog.records if getattr(line, "action", "") == "loop_held")
    assert first.created - began[0] < 1.0
    assert "time.sleep(BLOCKED)" in first.getMessage()
