"""What the in-memory broker remembers of its producers, so that a repeated batch is not written twice, and one that
was given up not after newer ones (KIP-98, KIP-360)."""

from __future__ import annotations

from collections import defaultdict
from typing import Final, NamedTuple

from aioparallel.codes import ErrorCode
from aioparallel.records import TopicPartition
from aioparallel.testing.memory.refused import Refused

__all__ = ["Numbers", "ProducerLog"]

_DUPLICATES_KNOWN: Final = 5
"""Batches that a broker recognises when they come again, for each producer and partition."""
_SEQUENCES: Final = 2**31
"""Sequence numbers go from 0 up to this, and begin again."""


class Numbers(NamedTuple):
    """What stands in a batch's header for the broker to recognise it by."""

    producer_id: int
    epoch: int
    sequence: int
    """Of the first record; each one after it has the next."""


class _Written(NamedTuple):
    epoch: int
    first: int
    last: int
    offset: int


class ProducerLog:
    """Producer ids, and what each has written to each partition. It belongs to the partition, whoever leads it."""

    def __init__(self) -> None:
        self._last_id = 0
        # All of them, though only the last ones count: when the log loses its tail, those before count again.
        self._written: defaultdict[TopicPartition, dict[int, list[_Written]]] = defaultdict(dict)

    def new_id(self) -> int:
        """A producer id that nobody has."""
        self._last_id += 1
        return self._last_id

    def forget(self) -> None:
        """Forget all producers, as a broker does ``producer.id.expiration.ms`` after their last batch."""
        self._written.clear()

    def truncate(self, partition: TopicPartition, end: int) -> None:
        """The log lost its records from ``end`` on: what was written there was never written."""
        producers = self._written[partition]
        for producer_id, written in list(producers.items()):
            producers[producer_id] = [batch for batch in written if batch.offset < end]
            if not producers[producer_id]:
                del producers[producer_id]

    def find(self, partition: TopicPartition, numbers: Numbers, count: int) -> int | None:
        """The offset of this batch of ``count`` records when it was written before, None when it is the next one.

        Raises Refused for a batch that is neither. Any batch is the next one of a producer that is not known.
        """
        written = self._written[partition].get(numbers.producer_id)
        if not written:
            return None
        latest = written[-1]
        if numbers.epoch < latest.epoch:
            raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH)
        if numbers.epoch > latest.epoch:
            if numbers.sequence != 0:
                raise Refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            return None
        asked = (numbers.epoch, numbers.sequence, _last_of(numbers, count))
        for batch in written[-_DUPLICATES_KNOWN:]:
            if batch[:3] == asked:
                return batch.offset
        if numbers.sequence != (latest.last + 1) % _SEQUENCES:
            raise Refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        return None

    def add(self, partition: TopicPartition, numbers: Numbers, count: int, offset: int) -> None:
        """This batch has been written."""
        written = self._written[partition].setdefault(numbers.producer_id, [])
        written.append(_Written(numbers.epoch, numbers.sequence, _last_of(numbers, count), offset))


def _last_of(numbers: Numbers, count: int) -> int:
    return (numbers.sequence + count - 1) % _SEQUENCES
