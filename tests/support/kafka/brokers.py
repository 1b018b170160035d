"""Three brokers in tests: made whole again, and what became of records on them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import psutil
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as Place

from aioparallel.testing import LocalKafka

__all__ = ["DEADLINE", "Output", "coordinator", "read_outputs", "restore", "until", "until_whole"]

DEADLINE: Final = 90.0
"""Seconds in which a cluster comes to rest; a few on a quiet machine."""
_OFFSETS_PARTITIONS: Final = 4
"""Of ``__consumer_offsets``; see aioparallel/testing/server_properties.py."""


class Output(NamedTuple):
    """A record as it stands in the log."""

    partition: int
    offset: int
    key: bytes
    number: int


def restore(kafka: LocalKafka) -> None:
    """Let paused brokers go on and killed ones come back."""
    for number, pid in kafka.pids.items():
        kafka.resume(number)
        if not psutil.pid_exists(pid):
            kafka.restart(number)


async def until(condition: Callable[[], Awaitable[bool]], kafka: LocalKafka) -> float:
    """Wait for it; the seconds it took. Raises AssertionError, with what the brokers say, at the deadline."""
    began = time.monotonic()
    while not await condition():
        assert time.monotonic() < began + DEADLINE, f"not within {DEADLINE:g} s. {kafka.log_tail(10)}"
        await asyncio.sleep(0.05)
    return time.monotonic() - began


async def until_whole(kafka: LocalKafka, *topics: str) -> float:
    """Wait until all replicas of the topics are in sync."""
    everyone = frozenset(kafka.numbers)

    async def whole() -> bool:
        return all([set((await kafka.in_sync(topic)).values()) == {everyone} for topic in topics])

    return await until(whole, kafka)


async def coordinator(kafka: LocalKafka, group: str) -> int:
    """The number of the broker that coordinates a group; 0 where there is none now.

    It leads the partition of ``__consumer_offsets`` that Java's hash of the group's name falls on.
    """
    code = 0
    for letter in group:
        code = (31 * code + ord(letter)) & 0xFFFFFFFF
    code = min(code, (1 << 32) - code)  # the absolute value of a signed number
    return (await kafka.leaders("__consumer_offsets")).get(code % _OFFSETS_PARTITIONS, 0)


def read_outputs(servers: str, topic: str, partitions: int) -> list[Output]:
    """All of a topic of ``fill_numbered``, each partition in its order; by librdkafka, which asks who answers.

    Raises AssertionError when it cannot be read within the deadline.
    """
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "read", "enable.auto.commit": False, "log_level": 0}
        | {"socket.timeout.ms": 3000, "topic.metadata.refresh.interval.ms": 2000}
    )
    deadline = time.monotonic() + DEADLINE
    found: list[Output] = []
    try:
        left = sum(_end(consumer, Place(topic, partition), deadline) for partition in range(partitions))
        consumer.assign([Place(topic, partition, 0) for partition in range(partitions)])
        while len(found) < left:
            assert time.monotonic() < deadline, f"{left - len(found)} of {left} records of {topic} not read in time"
            for one in consumer.consume(10_000, 1.0):
                key, value = one.key(), one.value()
                partition, offset = one.partition(), one.offset()
                if one.error() is None:
                    assert None not in (key, value, partition, offset)
                    found.append(Output(partition or 0, offset or 0, key or b"", int((value or b"").split(b" ")[0])))
    finally:
        consumer.close()
    return found


def _end(consumer: Consumer, place: Place, deadline: float) -> int:
    while True:
        try:
            return int(consumer.get_watermark_offsets(place, 3.0)[1])
        except KafkaException:
            assert time.monotonic() < deadline, f"{place} has no end offset"
