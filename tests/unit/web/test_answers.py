"""The JSON of the routes."""

from __future__ import annotations

import asyncio
import hashlib
from typing import cast

from aioparallel import Paused, Record, TopicPartition
from aioparallel.testing.memory import InMemoryBroker
from aioparallel.web.answers import _plain
from tests.support.memory.consuming import consumer_of, produce
from tests.support.waiting import until


def test_paused_keys_are_hashed() -> None:
    """As the key of the longest lane: they may be personal data."""
    found = _plain(Paused(topics=("t",), partitions=(TopicPartition("u", 1),), keys={"v": (b"anna",)}))
    assert found == {
        "everything": False,
        "topics": ["t"],
        "partitions": [{"topic": "u", "partition": 1}],
        "keys": {"v": [hashlib.blake2b(b"anna").hexdigest()[:16]]},
    }


async def test_what_a_member_gives_away_is_told() -> None:
    """It is no field of Stats."""
    broker = InMemoryBroker()
    broker.create_topic("t")
    produce(broker, [b"key"])
    consumer, release = consumer_of(broker, drain_timeout=20), asyncio.Event()

    async def handle(record: Record) -> None:
        await release.wait()

    def giving_away() -> object:
        return cast("dict[str, object]", _plain(consumer.stats()))["giving_away"]

    async with consumer:
        run = asyncio.create_task(consumer.run(handle))
        await until(lambda: consumer.stats().in_flight)
        assert giving_away() == []
        consumer.stop()
        await until(lambda: giving_away() == [{"topic": "t", "partition": 0}])
        release.set()
        await run
