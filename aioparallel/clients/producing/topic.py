"""One topic that is produced to: which partition each output goes to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from aioparallel.clients.producing.partition_queue import PartitionQueue
from aioparallel.clients.producing.partitioning import KeyHashes
from aioparallel.clients.producing.pending import Outstanding
from aioparallel.records import Outgoing

__all__ = ["Partitioner", "Topic", "is_topic_name"]

Partitioner = Callable[[bytes | None, list[int], list[int]], int]
"""aiokafka's interface: the key, all partitions, those with a leader; returns one of them."""

_FEW: Final = 1_024
"""Keys that each topic remembers itself, 150 KB at most: with so few, half of the time for finding a queue goes."""
_LOOKED_AT: Final = 32
"""Partitions, at most, until one is found that has nothing under way."""
_SHORT: Final = 64
"""Bytes; longer keys are not kept."""
_OVERHEAD: Final = 10
"""About what a record takes in a batch besides its key, value and headers, in bytes."""


_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    """Whether Kafka can have a topic of that name."""
    return _NAME.fullmatch(name) is not None and name not in (".", "..")


class Topic:
    """The queues of a topic's partitions. Until the topic is known everything waits in ``unresolved``, in order.

    A key decides by murmur2, as with all of Kafka's producers. Outputs without a key stay with one partition until a
    batch of it is full or has gone, and then go on to the next one: few large batches instead of many small ones.
    """

    __slots__ = (
        "_among",
        "_available",
        "_few",
        "_hashes",
        "_limit",
        "_partitioner",
        "_room",
        "_sticky",
        "_turn",
        "name",
        "partitions",
        "queues",
        "unresolved",
    )

    def __init__(
        self, name: str, limit: int, partitioner: Partitioner | None, hashes: KeyHashes, among: Outstanding
    ) -> None:
        self.name = name
        self.partitions: list[int] = []
        """All of them, ascending; empty while the topic is not known."""
        self.queues: dict[int, PartitionQueue] = {}
        self._among = among
        self.unresolved = PartitionQueue(name, -1, limit, among)
        self._available: list[int] = []
        self._limit = limit
        self._partitioner = partitioner
        self._turn = 0
        self._sticky = 0
        self._room = 0
        self._hashes = hashes
        self._few: dict[bytes, PartitionQueue] = {}

    def queue_for(self, output: Outgoing) -> PartitionQueue:
        """Where this output waits. Raises ValueError for a partition that cannot exist, and when the
        partitioner names one that does not."""
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
        if self._room <= 0:
            self._move_on()
        self._room -= _OVERHEAD + len(output.value or b"")
        return self._queue(self._sticky)

    def queue_of_key(self, key: bytes) -> PartitionQueue:
        """For a key, where the topic is known and no partitioner given. As :func:`partition_of_key` decides."""
        queue = self._few.get(key)
        return self._look_up(key) if queue is None else queue

    def _look_up(self, key: bytes) -> PartitionQueue:
        hashes = self._hashes
        python_hash = hash(key)
        slot = python_hash & hashes.MASK
        found = hashes.hashes[slot] if hashes.keys[slot] == python_hash else hashes.learn(key)
        number = self.partitions[found % len(self.partitions)]
        queue = self.queues.get(number) or self._queue(number)
        if len(self._few) < _FEW and len(key) <= _SHORT:
            self._few[key] = queue
        return queue

    def update(self, partitions: Sequence[int], available: Sequence[int]) -> None:
        """The metadata is new."""
        self._few.clear()
        self.partitions = sorted(partitions)
        self._available = sorted(available)

    def has_gone(self, queue: PartitionQueue) -> None:
        """A batch of this queue was made: outputs without a key go on to the next partition."""
        if queue.partition == self._sticky:
            self._room = 0

    @property
    def was_never_found(self) -> bool:
        """Whether no metadata knew it: what is known of producers in its partitions is none of ours then."""
        return not self.partitions and not self.queues

    @property
    def all_queues(self) -> Iterator[PartitionQueue]:
        """Those of the partitions, and the one for what has none yet."""
        yield from self.queues.values()
        yield self.unresolved

    def _ask(self, partitioner: Partitioner, key: bytes | None) -> int:
        number = partitioner(key, self.partitions.copy(), self._available.copy())
        if number not in self.partitions:
            raise ValueError(f"the partitioner chose partition {number!r}, the topic has {len(self.partitions)}")
        return number

    def _move_on(self) -> None:
        """The next partition with nothing under way; so a broker that does not answer gathers no more outputs than
        were on their way to it. Where all have something under way, the next one."""
        able = self._available or self.partitions
        for _ in range(min(len(able), _LOOKED_AT)):
            self._turn += 1
            self._sticky = able[self._turn % len(able)]
            queue = self.queues.get(self._sticky)
            if queue is None or queue.batch is None:
                break
        self._room = self._limit

    def _queue(self, number: int) -> PartitionQueue:
        queue = self.queues.get(number)
        if queue is None:
            queue = self.queues[number] = PartitionQueue(self.name, number, self._limit, self._among)
        return queue
