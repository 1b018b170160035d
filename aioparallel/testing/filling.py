"""Fills topics fast, so that the offsets are those of a plan: needs the wheel ``confluent-kafka``."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypedDict

from confluent_kafka import Producer

from aioparallel.errors import AioparallelError

__all__ = ["Message", "fill"]

_CHUNK: Final = 20_000
"""Records handed over at once."""
_QUEUE: Final = 10 * _CHUNK
"""Records waiting in the producer, at most."""
_QUEUE_BYTES: Final = 512 * 1024 * 1024
"""Bytes of them, about; the producer itself refuses records at twice that."""
_FLUSH_TIMEOUT: Final = 120.0

_SETTINGS: Final = {
    # Without it about one new topic in fifty got a partition whose records stood in another order, even with one
    # request in flight at a time. Why was not found; hence also the benchmark's reading back.
    "enable.idempotence": True,
    "linger.ms": 50,
    # The embedded broker answers a fetch with one batch of each partition; Apache Kafka does with any size.
    "batch.size": 256 * 1024,
    "queue.buffering.max.messages": _QUEUE + _CHUNK,
    "queue.buffering.max.kbytes": 2 * _QUEUE_BYTES // 1024,
    "message.timeout.ms": int(_FLUSH_TIMEOUT * 1000),
    "log_level": 3,  # errors: its warnings would go into the middle of the progress
}


class Message(TypedDict):
    """One record to be produced, as ``Producer.produce_batch`` takes it."""

    key: bytes | None
    value: bytes | None


def fill(bootstrap_servers: str, topic: str, messages: Iterable[tuple[int, Message]]) -> int:
    """Produce these records, each to its partition and there in the order given, and wait until the broker has them
    all; returns how many. About 350,000 small ones a second; blocks meanwhile.

    Raises AioparallelError when some were refused, or not acknowledged within two minutes.
    """
    filler = _Filler(bootstrap_servers, topic)
    source, count = iter(messages), 0
    while chunk := list(itertools.islice(source, _CHUNK)):
        count += len(chunk)
        parts: dict[int, list[dict[str, Any]]] = {}
        for partition, message in chunk:
            parts.setdefault(partition, []).append({**message})
        for partition, part in parts.items():
            filler.add(partition, part)
    filler.finish()
    return count


class _Filler:
    """Hands records to librdkafka so that each partition has them in the order in which they are given."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, **_SETTINGS})

    def add(self, partition: int, chunk: Sequence[dict[str, Any]]) -> None:
        """At most a chunk of records, and less than the queue's bytes. Raises AioparallelError."""
        # Never into a full queue: it would refuse some in the middle, and their order would be lost. What cannot be
        # delivered is dropped from the queue after a while, so this ends.
        size = sum(len(message["value"] or b"") for message in chunk)
        most = min(_QUEUE, _QUEUE_BYTES * len(chunk) // (size + 1))
        while len(self._producer) > most:
            self._producer.poll(0.01)
        # The partition of a record itself is ignored (confluent-kafka 2.16).
        if self._producer.produce_batch(self._topic, chunk, partition) != len(chunk):
            refused = next(message["_error"] for message in chunk if "_error" in message)
            raise AioparallelError(f"records for partition {partition} of {self._topic} cannot be produced: {refused}")

    def finish(self) -> None:
        """Wait until the broker has acknowledged them all. Raises AioparallelError."""
        if left := self._producer.flush(_FLUSH_TIMEOUT):
            raise AioparallelError(
                f"{left} records for {self._topic} were not acknowledged within {_FLUSH_TIMEOUT:g} s"
            )
