"""Reads topics and committed offsets back with other clients than ours: the one way of all tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.group.client import Committed
from aioparallel.records.record import Record
from aioparallel.testing import DeliveryChecker, OrderChecker
from tests.support.kafka.filling import number_of
from tests.support.waiting import DEADLINE

__all__ = ["check_numbers", "committed", "judge", "read_all"]

_ASK: Final = 3.0
"""Seconds for one broker; another one is asked then."""
_SETTINGS: Final = {
    "group.id": "read",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 10,
    "socket.timeout.ms": int(_ASK * 1000),
    "topic.metadata.refresh.interval.ms": 2_000,
    "log_level": 0,
}


async def read_all(servers: str, topic: str, *, is_committed: bool = False) -> list[Record]:
    """Every record of the topic, each partition in its order; ``is_committed``: under ``read_committed``. Raises
    AssertionError when that takes too long."""
    level = "read_committed" if is_committed else "read_uncommitted"
    return await asyncio.to_thread(_read_all, servers, topic, level)


def _read_all(servers: str, topic: str, level: str) -> list[Record]:
    consumer = Consumer({"bootstrap.servers": servers, **_SETTINGS, "isolation.level": level})
    deadline = time.monotonic() + DEADLINE
    found: list[Record] = []
    try:
        left = _ends(consumer, topic, deadline)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in left])
        while left:
            assert time.monotonic() < deadline, f"{topic}: the ends {left} were not reached within {DEADLINE:g} s"
            for one in consumer.consume(10_000, 0.02):  # it waits so long whatever has come
                partition, offset, error = one.partition(), one.offset(), one.error()
                assert partition is not None
                if error is None:
                    headers = tuple((name, bytes(value)) for name, value in one.headers() or ())
                    found.append(
                        Record(topic, partition, offset or 0, one.key(), one.value(), headers, one.timestamp()[1])
                    )
                elif error.code() == KafkaError._PARTITION_EOF and (offset or 0) >= left.get(partition, 0):
                    left.pop(partition, None)
    finally:
        consumer.close()
    return found


def _ends(consumer: Consumer, topic: str, deadline: float) -> dict[int, int]:
    """The end offset of each partition.

    Where a fetch finds nothing more is not the end: a leader that has just become it gives out what it knows to be
    replicated, and for a moment that is less than what was acknowledged. Asked for its end it refuses to answer then.
    """
    while True:
        try:
            if found := consumer.list_topics(topic, _ASK).topics[topic].partitions:
                return {one: consumer.get_watermark_offsets(TopicPartition(topic, one), _ASK)[1] for one in found}
        except KafkaException:
            pass  # that broker hangs, or has just become the leader
        assert time.monotonic() < deadline, f"no broker reports the ends of the partitions of {topic}"


async def committed(servers: str, group: str) -> dict[int, Committed]:
    """What the group has committed, by partition; the group reads one topic."""
    async with Admin(servers) as admin:
        return {partition.partition: one for partition, one in (await admin.committed(group)).items()}


def judge(outputs: Iterable[Record], numbers: Iterable[int]) -> tuple[OrderChecker, DeliveryChecker[int]]:
    """What the checkers say of a topic that is to hold each of these :func:`number_of` once, those of a key in their
    order. Of a number that is there twice the first one has its place in the order."""
    order, delivery = OrderChecker(), DeliveryChecker[int]()
    for number in numbers:
        delivery.produced(number)
    seen: set[int] = set()
    for output in outputs:
        number = number_of(output)
        delivery.handled(number)
        if number not in seen:
            seen.add(number)
            order.started(output.key, output.partition, number)
            order.ended(output.key, output.partition, number)
    return order, delivery


def check_numbers(outputs: Iterable[Record], numbers: Iterable[int], max_duplicates: int | None = 0) -> int:
    """Raises AssertionError where :func:`judge` finds something; how many are there twice."""
    order, delivery = judge(outputs, numbers)
    order.check()
    delivery.check(max_duplicates)
    return delivery.statistics().duplicates
