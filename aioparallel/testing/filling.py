"""Fills topics fast, with planned offsets. Needs the ``confluent-kafka`` wheel."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypedDict

from confluent_kafka import Producer

from aioparallel.records.errors import AioparallelError

__all__ = ["Message", "fill"]

_CHUNK: Final = 20_000
"""Records to hand over at a time."""
_QUEUE: Final = 10 * _CHUNK
"""Most records waiting in the producer."""
_QUEUE_BYTES: Final = 512 * 1024 * 1024
"""Approximate limit of their bytes; the producer refuses records at twice that."""
_FLUSH_TIMEOUT: Final = 120.0

_SETTINGS: Final = {
    # Without it, about one new topic in fifty had a partition with records in another order, even with one request in
    # flight at a time. The cause is unknown, so the benchmark also reads the records back.
    "enable.idempotence": True,
    "linger.ms": 50,
    # The embedded broker returns one batch per partition in a fetch; for Apache Kafka the size does not matter.
    "batch.size": 256 * 1024,
    "queue.buffering.max.messages": _QUEUE + _CHUNK,
    "queue.buffering.max.kbytes": 2 * _QUEUE_BYTES // 1024,
    "message.timeout.ms": int(_FLUSH_TIMEOUT * 1000),
    "log_level": 3,  # errors only: warnings would interrupt the progress display
}


class Message(TypedDict):
    """A record to produce, in the form of ``Producer.produce_batch``."""

    key: bytes | None
    value: bytes | None


def fill(bootstrap_servers: str, topic: str, messages: Iterable[tuple[int, Message]]) -> int:
    """Produce these records to their partitions in the given order, and wait until the broker has acknowledged them.

    Returns the number of records. Produces about 350,000 small records a second; blocks meanwhile. Raises
    AioparallelError if some were refused, or not acknowledged within two minutes.
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
    """Hands records to librdkafka so that each partition gets them in the given order."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, **_SETTINGS})

    def add(self, partition: int, chunk: Sequence[dict[str, Any]]) -> None:
        """Produce a chunk, which must fit the queue. Raises AioparallelError."""
        # Never into a full queue, which would refuse some records in the middle and break their order. Undeliverable
        # records are dropped from the queue after a while, so this loop ends.
        size = sum(len(message["value"] or b"") for message in chunk)
        most = min(_QUEUE, _QUEUE_BYTES * len(chunk) // (size + 1))
        while len(self._producer) > most:
            self._producer.poll(0.01)
        # The partition in a record is ignored (confluent-kafka 2.16).
        if self._producer.produce_batch(self._topic, chunk, partition) != len(chunk):
            refused = next(message["_error"] for message in chunk if "_error" in message)
            raise AioparallelError(f"records for partition {partition} of {self._topic} cannot be produced: {refused}")

    def finish(self) -> None:
        """Wait until the broker has acknowledged all records. Raises AioparallelError."""
        if left := self._producer.flush(_FLUSH_TIMEOUT):
            raise AioparallelError(
                f"{left} records for {self._topic} were not acknowledged within {_FLUSH_TIMEOUT:g} s"
            )
