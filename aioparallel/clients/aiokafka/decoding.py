"""Decodes the data of a fetch response, many records at a time.

aiokafka decodes with a generator that visits each record twice and makes a dataclass of it. This walk over the same
batches takes half the time. It makes the same checks in the same order as ``PartitionRecords._unpack_records``: control
batches contain no records for users, and a read_committed reader skips the batches of aborted transactions.

If aiokafka's decoder raises, the rest of that batch is decoded from its bytes (:mod:`raw_batches
<aioparallel.clients.aiokafka.raw_batches>`). A record that cannot be decoded is marked as such, and the other records
of the batch are not affected. Data that cannot be read at all raises Damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

from aioparallel.clients.aiokafka.internals import PartitionRecords, RawBatch, RawRecord
from aioparallel.clients.aiokafka.raw_batches import (
    Damaged,
    Frame,
    Place,
    SalvagedRecord,
    frame_at,
    head_at,
    place_of,
    records_in,
)
from aioparallel.records.history import make_undecodable
from aioparallel.records.record import Record, TopicPartition, size_of_headers

__all__ = ["Decoder"]

_READ_COMMITTED: Final = 1
"""aiokafka's ``READ_COMMITTED``."""


class Decoder:
    """Decodes the data of one partition in one response, and advances the data's ``next_fetch_offset``.

    It replaces the data's own iterator and holds no reference back to the data. With a reference cycle, the bytes of
    every response would stay in memory until a full garbage collection, which is rare.

    ``response``: the bytes of the data, for leader epochs and for what aiokafka cannot decode.
    """

    def __init__(self, partition: TopicPartition, response: bytes) -> None:
        self._partition = partition
        self._response = response
        self._at = self._next_at = 0  # where the current batch and the next one begin in the response
        self._epochs: list[tuple[int, int]] = []
        self._batch: RawBatch | None = None
        self._raw_records: Iterator[RawRecord] = iter(())
        self._salvaged: Iterator[SalvagedRecord] | None = None

    def take(self, data: PartitionRecords, most: int, records: list[Record]) -> bool:
        """Append up to ``most`` records to ``records``. Returns False when there are no more.

        Raises Damaged. Records before the damage are appended and count as taken.
        """
        while most > 0:
            batch = self._batch
            if batch is None:
                batch = self._batch = self._next_batch(data)
                if batch is None:
                    return False
                self._raw_records = chain(batch)  # aiokafka's batch can be iterated only once
                self._salvaged = None
            before = len(records)
            try:
                if self._salvaged is None:
                    any_read = self._take_from(data, islice(self._raw_records, most), records)
                else:
                    any_read = self._take_salvaged(data, islice(self._salvaged, most), records)
            except Damaged:
                raise
            except Exception as error:
                frame = self._frame()
                if frame is None:
                    raise Damaged(None, repr(error)) from error
                self._salvaged = records_in(frame, data.next_fetch_offset)
                any_read = True
            most -= len(records) - before
            if not any_read:
                # The batch's last offset counts even if compaction has removed that record. Otherwise the same batch
                # might be fetched again and again.
                data.next_fetch_offset = batch.next_offset
                self._batch = None
        return True

    def epochs_taken(self, end: int) -> tuple[tuple[int, int], ...]:
        """The leader epochs of the records taken since the last call, up to ``end``, as pairs of first offset and
        epoch."""
        found = tuple([pair for pair in self._epochs if pair[0] < end])
        del self._epochs[: max(0, len(found) - 1)]
        return found

    def _take_from(self, data: PartitionRecords, raws: Iterator[RawRecord], records: list[Record]) -> bool:
        """Return whether a record was read; it may be skipped as below the position."""
        topic, partition = self._partition
        position = data.next_fetch_offset
        offset = -1
        new, append = Record.__new__, records.append
        try:
            for raw in raws:
                offset = raw.offset
                if offset < position:
                    continue  # a batch may begin before the position
                # Record.__init__ inlined: the call would take as long as the rest of the loop.
                record: Record = new(Record)
                record.topic = topic
                record.partition = partition
                record.offset = offset
                record.key = key = raw.key
                record.value = value = raw.value
                record._size = (len(key) if key else 0) + (len(value) if value else 0)
                if headers := raw.headers:
                    record.headers = tuple(headers)
                    record._size += size_of_headers(record.headers)
                else:
                    record.headers = ()
                record.timestamp = -1 if (timestamp := raw.timestamp) is None else timestamp
                record._parks = 0
                record._history = None
                append(record)
        finally:
            if records and offset >= position:
                data.next_fetch_offset = records[-1].offset + 1
        return offset >= 0

    def _take_salvaged(self, data: PartitionRecords, raws: Iterator[SalvagedRecord], records: list[Record]) -> bool:
        """The same for records decoded from their bytes."""
        any_read = False
        for offset, timestamp, key, value, headers, fault in raws:
            record: Record = Record(*self._partition, offset, key, value, headers, timestamp)
            if fault is not None:
                make_undecodable(record, fault)
            records.append(record)
            data.next_fetch_offset = offset + 1
            any_read = True
        return any_read

    def _next_batch(self, data: PartitionRecords) -> RawBatch | None:
        """The next batch that contains records for this reader. Raises Damaged."""
        while data._records.has_next():
            self._at, head = self._next_at, head_at(self._response, self._next_at)
            if head is not None:
                self._next_at = head.end
            try:
                batch = data._records.next_batch()
                is_whole = not data._check_crcs or batch.validate_crc()
                is_for_us = is_whole and not (_is_aborted(data, batch) or batch.is_control_batch)
            except Exception as error:
                raise Damaged(self._place(data), repr(error)) from error
            if not is_whole:
                raise Damaged(self._place(data), "its checksum is wrong")
            if head is not None and head.epoch is not None and (not self._epochs or self._epochs[-1][1] != head.epoch):
                self._epochs.append((head.offset, head.epoch))
            if is_for_us:
                return batch
            data.next_fetch_offset = batch.next_offset
        return None

    def _frame(self) -> Frame | None:
        return frame_at(self._response, self._at)

    def _place(self, data: PartitionRecords) -> Place | None:
        frame = self._frame()
        return None if frame is None else place_of(frame, data.next_fetch_offset)


def _is_aborted(data: PartitionRecords, batch: RawBatch) -> bool:
    if data._isolation_level != _READ_COMMITTED or batch.producer_id is None:
        return False
    data._consume_aborted_up_to(batch.base_offset)
    if batch.is_control_batch and data._contains_abort_marker(batch):
        data._aborted_producers.discard(batch.producer_id)
    return batch.is_transactional and batch.producer_id in data._aborted_producers
