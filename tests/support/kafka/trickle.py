"""A steady trickle of records, each with the moment of its sending in it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from confluent_kafka import Producer

__all__ = ["trickle"]


def trickle(servers: str, topic: str, partitions: Sequence[int], *, per_second: float, seconds: float) -> int:
    """Send ``per_second`` records a second in all, round these partitions, each at once; returns how many.

    Blocks for ``seconds``. The value is CLOCK_MONOTONIC in nanoseconds just before the record is handed over.
    Raises AssertionError when the broker did not acknowledge all of them.
    """
    producer = Producer({"bootstrap.servers": servers, "acks": "1", "linger.ms": 0})
    began = time.monotonic()
    for number, partition in zip(itertools.count(), itertools.cycle(partitions), strict=False):
        at = began + number / per_second
        if at - began >= seconds:
            break
        while (left := at - time.monotonic()) > 0:
            producer.poll(left)
        producer.produce(topic, str(time.monotonic_ns()).encode(), b"trickle", partition)
    left_over = producer.flush(30)
    assert left_over == 0, f"{left_over} of {number} records for {topic} were not acknowledged within 30 s"
    return number
