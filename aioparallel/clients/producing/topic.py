"""One topic that is produced to: chooses the partition of each output."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from aioparallel.clients.producing.partition_queue import PartitionQueue
from aioparallel.clients.producing.partitioning import KeyHashes
from aioparallel.clients.producing.pending import Outstanding
from aioparallel.records.record import Outgoing

__all__ = ["Partitioner", "Topic", "is_topic_name"]

Partitioner = Callable[[bytes | None, list[int], list[int]], int]
"""aiokafka's interface: takes the key, all partitions and those with a leader; returns one of the partitions."""

_MAX_CACHED_KEYS: Final = 1_024
"""Keys that each topic remembers itself, in 150 KB at most. For these, finding the queue takes half the time."""
_MAX_EXAMINED: Final = 32
"""Most partitions to examine when looking for one without a current batch."""
_LONGEST_CACHED_KEY: Final = 64
"""Longest key to remember, in bytes."""
_OVERHEAD: Final = 10
"""Approximate bytes of a record in a batch, apart from its key, value and headers."""


_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    """Whether ``name`` is a valid topic name in Kafka."""
    return _NAME.fullmatch(name) is not None and name not in (".", "..")


@dataclass(eq=False, repr=False, slots=True)
class Topic:
    """The queues of a topic's partitions. Until the topic is known, all outputs wait in ``unresolved``, in order.

    A key's partition is chosen by murmur2, as in all of Kafka's producers. Outputs without a key go to one partition
    until its batch is full or sent, and then to the next one: a few large batches instead of many small ones.
    """

    name: str
    _limit: int
    _partitioner: Partitioner | None
    _hashes: KeyHashes
    _all_outstanding: Outstanding
    unresolved: PartitionQueue = field(init=False)
    partitions: list[int] = field(default_factory=list)
    """All partitions, ascending; empty while the topic is unknown."""
    queues: dict[int, PartitionQueue] = field(default_factory=dict)
    _available: list[int] = field(default_factory=list)
    _cached: dict[bytes, PartitionQueue] = field(default_factory=dict)
    _index: int = 0
    _sticky: int = 0
    _bytes_left: int = 0

    def __post_init__(self) -> None:
        self.unresolved = PartitionQueue(self.name, -1, self._limit, self._all_outstanding)

    def queue_for(self, output: Outgoing) -> PartitionQueue:
        """The queue for this output.

        Raises ValueError for a negative partition, and if the partitioner returns a partition that does not exist."""
        if not self.partitions:
            return self.unresolved
        if output.partition is not None:
            if output.partition < 0:
                raise ValueError(f"there is no partition {output.partition}: they begin with 0")
            return self._queue(output.partition)
        if self._partitioner is not None:
            return self._queue(self._ask(self._partitioner, output.key))
        if output.key is not None:
            return self.queue_of_key(output.key)
        if self._bytes_left <= 0:
            self._move_on()
        self._bytes_left -= _OVERHEAD + len(output.value or b"")
        return self._queue(self._sticky)

    def queue_of_key(self, key: bytes) -> PartitionQueue:
        """The queue of a key, in a known topic without a partitioner."""
        queue = self._cached.get(key)
        return self._look_up(key) if queue is None else queue

    def _look_up(self, key: bytes) -> PartitionQueue:
        hashes = self._hashes
        python_hash = hash(key)
        slot = python_hash & hashes.MASK
        found = hashes.hashes[slot] if hashes.keys[slot] == python_hash else hashes.learn(key)
        number = self.partitions[found % len(self.partitions)]
        queue = self.queues.get(number) or self._queue(number)
        if len(self._cached) < _MAX_CACHED_KEYS and len(key) <= _LONGEST_CACHED_KEY:
            self._cached[key] = queue
        return queue

    def update(self, partitions: Sequence[int], available: Sequence[int]) -> None:
        self._cached.clear()
        self.partitions = sorted(partitions)
        self._available = sorted(available)

    def batch_taken(self, queue: PartitionQueue) -> None:
        """A batch of this queue was made: outputs without a key move on to the next partition."""
        if queue.partition == self._sticky:
            self._bytes_left = 0

    @property
    def was_never_found(self) -> bool:
        """Whether the topic was never in the metadata, so that no partition state would be lost with it."""
        return not self.partitions and not self.queues

    @property
    def all_queues(self) -> Iterator[PartitionQueue]:
        yield from self.queues.values()
        yield self.unresolved

    def _ask(self, partitioner: Partitioner, key: bytes | None) -> int:
        number = partitioner(key, self.partitions.copy(), self._available.copy())
        if number not in self.partitions:
            raise ValueError(f"the partitioner chose partition {number!r}, the topic has {len(self.partitions)}")
        return number

    def _move_on(self) -> None:
        """Move to the next partition without a current batch, or to the next one if all have a batch.

        So a broker that does not answer gets no outputs beyond those that were already on their way to it."""
        candidates = self._available or self.partitions
        for _ in range(min(len(candidates), _MAX_EXAMINED)):
            self._index += 1
            self._sticky = candidates[self._index % len(candidates)]
            queue = self.queues.get(self._sticky)
            if queue is None or queue.batch is None:
                break
        self._bytes_left = self._limit

    def _queue(self, number: int) -> PartitionQueue:
        queue = self.queues.get(number)
        if queue is None:
            queue = self.queues[number] = PartitionQueue(self.name, number, self._limit, self._all_outstanding)
        return queue
