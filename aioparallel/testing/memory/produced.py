"""What the in-memory broker remembers of its producers, so that a repeated batch is not written twice (KIP-98)."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from aioparallel.records import TopicPartition
from aioparallel.testing.memory.codes import ErrorCode, Refused

__all__ = ["ProducerLog"]

_BATCHES_REMEMBERED: Final = 5
"""As a real broker, for each producer and partition."""


class _Written(NamedTuple):
    sequence: int
    length: int
    offset: int


class ProducerLog:
    """Producer ids, and the last batches of each in each partition."""

    def __init__(self) -> None:
        self._last_id = 0
        self._written: dict[tuple[int, TopicPartition], deque[_Written]] = {}

    def new_id(self) -> int:
        """A producer id that nobody has."""
        self._last_id += 1
        return self._last_id

    def forget(self) -> None:
        """Forget the batches of all producers, as a broker does after ``producer.id.expiration.ms``."""
        self._written.clear()

    def find(self, producer_id: int, partition: TopicPartition, sequence: int, count: int) -> int | None:
        """The offset of this batch when it was written before, None when it is the next one.

        Raises Refused for a batch that is neither.
        """
        written = self._written.get((producer_id, partition))
        if not written:
            return None
        for batch in written:
            if (batch.sequence, batch.length) == (sequence, count):
                return batch.offset
        if sequence != written[-1].sequence + written[-1].length:
            raise Refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        return None

    def add(self, producer_id: int, partition: TopicPartition, sequence: int, count: int, offset: int) -> None:
        """This batch has been written."""
        written = self._written.setdefault((producer_id, partition), deque(maxlen=_BATCHES_REMEMBERED))
        written.append(_Written(sequence, count, offset))
