"""A broker in memory, and what the consumer tests ask of it again and again."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Any, Literal, Unpack

from aioparallel.config.options import OptionFields
from aioparallel.config.policies import FailurePolicy, Producing, RetryPolicy
from aioparallel.consumer import ParallelConsumer
from aioparallel.records.record import Record, TopicPartition
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient, InMemoryProducer

Isolation = Literal["read_uncommitted", "read_committed"]
GROUP = "g"
QUICK = RetryPolicy(first_delay=0.02, multiplier=1, jitter=0)
T0 = TopicPartition("t", 0)


def consumer_of(
    broker: InMemoryBroker,
    topics: str | list[str] | re.Pattern[str] = "t",
    *,
    isolation_level: Isolation = "read_uncommitted",
    cooperative: bool = False,
    protocol: Literal["classic", "consumer"] = "classic",
    **options: Unpack[OptionFields],
) -> ParallelConsumer[Any, Any]:
    """A consumer of group "g" on the broker in memory, with quick heartbeats, commits and retries."""
    client = InMemoryClient(
        broker,
        GROUP,
        isolation_level=isolation_level,
        group_protocol=protocol,
        cooperative=cooperative,
        session_timeout=2,
        heartbeat_interval=0.02,
    )
    fields: OptionFields = {"commit_interval": 0.02, "failures": FailurePolicy(retry=QUICK), "drain_timeout": 1}
    fields.update(options)
    producer = InMemoryProducer(broker, delivery_timeout=fields.get("producing", Producing()).delivery_timeout)
    return ParallelConsumer(topics, group_id=GROUP, client=client, producer=producer, **fields)


def produce(broker: InMemoryBroker, keys: Iterable[bytes | None], partition: int = 0, topic: str = "t") -> None:
    """Append one record for each key; the value is its index."""
    for i, key in enumerate(keys):
        broker.append(topic, str(i).encode(), key=key, partition=partition)


def committed(broker: InMemoryBroker, partition: TopicPartition = T0) -> int | None:
    """The group's committed offset of a partition."""
    found = broker.group(GROUP).offsets.get(partition)
    return None if found is None else found.offset


class Seen:
    """A handler that notes what it was given, and when what ended."""

    def __init__(self, delay: float = 0) -> None:
        self.started: list[Record] = []
        self.ended: list[Record] = []
        self._delay = delay

    async def __call__(self, record: Record) -> None:
        self.started.append(record)
        await asyncio.sleep(self._delay)
        self.ended.append(record)

    @property
    def offsets(self) -> list[int]:
        return [record.offset for record in self.ended]
