"""What travels: the record a handler sees, and the partition it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from aioparallel.engine.lanes import Lane

__all__ = ["Headers", "Record", "TopicPartition"]

Headers = tuple[tuple[str, bytes | None], ...]


class TopicPartition(NamedTuple):
    """One partition of a topic. Compares and hashes like the plain tuple ``(topic, partition)``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Record:
    """One Kafka record, as the handler sees it.

    ``topic``, ``partition``, ``offset``: where it stands in the log.
    ``key``, ``value``: raw bytes, or None where the record has none.
    ``timestamp``: milliseconds since the epoch, as the log holds it.
    ``headers``: pairs of name and raw bytes, in the log's order.
    ``attempt``: 1 at the first call of the handler, one more at each retry.

    A record compares by identity; its place in the log, ``(topic, partition, offset)``, names it for good.
    The underscored slots belong to the scheduler: the lane it waits in, the record behind it there, its
    size in bytes.
    """

    __slots__ = (
        "_lane",
        "_next",
        "_size",
        "attempt",
        "headers",
        "key",
        "offset",
        "partition",
        "timestamp",
        "topic",
        "value",
    )

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int
    attempt: int
    _lane: Lane
    _next: Record | None
    _size: int

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Headers = (),
        timestamp: int = 0,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.key = key
        self.value = value
        self.headers = headers
        self.timestamp = timestamp
        self.attempt = 1

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition this record came from."""
        return TopicPartition(self.topic, self.partition)

    def __repr__(self) -> str:
        # No value and no key: they may be large, or secret.
        return f"<Record {self.topic}-{self.partition} offset {self.offset} attempt {self.attempt}>"
