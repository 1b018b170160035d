"""Filling topics: the one way of all tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from confluent_kafka import KafkaException, Producer

from aioparallel.records.record import Record

__all__ = ["Message", "fill", "fill_numbered", "number_of", "numbered"]

_TIMEOUT: Final = 120.0
_CONNECT: Final = 1.0
_SETTINGS: Final = {
    # Without it about one new topic in fifty got a partition with records in another order.
    "enable.idempotence": True,
    "linger.ms": 50,
    "batch.size": 256 * 1024,
    "queue.buffering.max.kbytes": 256 * 1024,
    "partitioner": "murmur2_random",  # as Kafka's own producers do it
    "message.timeout.ms": int(_TIMEOUT * 1000),
    "transaction.timeout.ms": int(_TIMEOUT * 1000),
    "delivery.report.only.error": True,
    "log_level": 3,
}


class Message(NamedTuple):
    """A record to be written; without a partition its key decides. ``timestamp``: milliseconds since the epoch."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()
    timestamp: int = 0
    partition: int = -1


def fill(servers: str, topic: str, messages: Iterable[Message], *, codec: str = "none", aborted: bool = False) -> int:
    """Write them, those of each partition in the order given, and return how many when the broker has them all.

    ``codec``: Kafka's name of the compression. ``aborted``: in a transaction that is aborted. Raises AssertionError
    when some were not acknowledged within two minutes.
    """
    settings = {"bootstrap.servers": servers, "compression.type": codec, **_SETTINGS}
    producer = Producer(settings | ({"transactional.id": f"aborted-{topic}"} if aborted else {}))
    # Without a connection it looks for its producer id only each half second, and nothing is sent before.
    with contextlib.suppress(KafkaException):
        producer.list_topics(topic, _CONNECT)
    failed: list[object] = []

    def delivered(error: object, _: object) -> None:
        failed.append(error)

    if aborted:
        producer.init_transactions(_TIMEOUT)
        producer.begin_transaction()
    count = 0
    for key, value, headers, timestamp, partition in messages:
        count += 1
        while True:
            try:
                producer.produce(topic, value, key, partition, delivered, timestamp=timestamp, headers=list(headers))
            except BufferError:  # the queue is full
                producer.poll(0.1)
            else:
                break
    left = producer.flush(_TIMEOUT)
    assert (left, failed[:1]) == (0, []), f"{left} of {count} records for {topic} were not acknowledged"
    if aborted:
        producer.abort_transaction(_TIMEOUT)
    return count


def numbered(records: int, keys: int, size: int = 0) -> Iterator[Message]:
    """Record ``n`` has key ``k<n % keys>`` and a value of ``size`` bytes at least that begins with ``n``, so that
    a reader can check order and completeness."""
    for n in range(records):
        yield Message(b"k%d" % (n % keys), (b"%d " % n).ljust(size, b"x"))


def fill_numbered(servers: str, topic: str, records: int, keys: int, size: int = 100) -> int:
    """:func:`fill` with :func:`numbered` records."""
    return fill(servers, topic, numbered(records, keys, size))


def number_of(record: Record) -> int:
    """The ``n`` of :func:`numbered`."""
    assert record.value is not None
    return int(record.value.partition(b" ")[0])
