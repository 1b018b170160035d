"""The in-memory broker's state of producers, which detects repeated batches and refuses outdated ones (KIP-98,
KIP-360)."""

from __future__ import annotations

from collections import defaultdict
from typing import Final, NamedTuple

from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory.refused import Refused

__all__ = ["Numbers", "ProducerLog"]

_DUPLICATES_KNOWN: Final = 5
"""Batches per producer and partition that a broker recognises when they are sent again."""
_SEQUENCES: Final = 2**31
"""Sequence numbers run from 0 to this limit, exclusive, and wrap around."""


class Numbers(NamedTuple):
    """The numbers in a batch's header that identify it."""

    producer_id: int
    epoch: int
    sequence: int
    """Sequence number of the first record; those of the others follow."""


class _Written(NamedTuple):
    epoch: int
    first: int
    last: int
    offset: int


class ProducerLog:
    """Producer ids, and what each has written to each partition. The state moves with the partition's leader."""

    def __init__(self) -> None:
        self._last_id = 0
        # All batches, although only the last ones count: after a truncation the earlier ones do.
        self._written: defaultdict[TopicPartition, dict[int, list[_Written]]] = defaultdict(dict)

    def new_id(self) -> int:
        """An unused producer id."""
        self._last_id += 1
        return self._last_id

    def forget(self) -> None:
        """Forget all producers, as a broker does ``producer.id.expiration.ms`` after their last batch."""
        self._written.clear()

    def truncate(self, partition: TopicPartition, end: int) -> None:
        """The log was truncated at ``end``: batches from there on were never written."""
        producers = self._written[partition]
        for producer_id, written in list(producers.items()):
            producers[producer_id] = [batch for batch in written if batch.offset < end]
            if not producers[producer_id]:
                del producers[producer_id]

    def find(self, partition: TopicPartition, numbers: Numbers, count: int) -> int | None:
        """The offset of this batch of ``count`` records if it was written before; None if it is the next one.

        Raises Refused for any other batch. For an unknown producer, any batch is the next one.
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
        """The batch was written."""
        written = self._written[partition].setdefault(numbers.producer_id, [])
        written.append(_Written(numbers.epoch, numbers.sequence, _last_of(numbers, count), offset))


def _last_of(numbers: Numbers, count: int) -> int:
    return (numbers.sequence + count - 1) % _SEQUENCES
