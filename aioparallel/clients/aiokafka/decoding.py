"""From the data of a fetch response to records, many at a time.

aiokafka decodes with a generator that looks at each record twice and makes a dataclass of it; this walk over the same
batches takes half the time. The order of the checks, and what a batch means for transactions, is aiokafka's
(``PartitionRecords._unpack_records``) and Kafka's: control batches hold no records for anyone, and a reader of
committed data skips the batches of producers whose transaction was aborted.

Where aiokafka's decoder raises, the rest of that batch is read from its bytes (:mod:`raw_batches
<aioparallel.clients.aiokafka.raw_batches>`): a record that cannot be decoded comes marked as such, and costs its
neighbours nothing. What cannot be read at all raises Damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

from aioparallel.clients.aiokafka.internals import PartitionRecords, RawBatch, RawRecord
from aioparallel.clients.aiokafka.raw_batches import CloseRecord, Damaged, Frame, Place, frame_at, place_of, records_in
from aioparallel.history import make_undecodable
from aioparallel.records import Record, TopicPartition, size_of_headers

__all__ = ["Decoder"]

_READ_COMMITTED: Final = 1
"""aiokafka's ``READ_COMMITTED``."""


class Decoder:
    """Decodes what one response brought of one partition; keeps its ``next_fetch_offset``.

    It stands in the place of the data's own iterator and does not refer back to it: with a cycle the bytes of every
    response would stay until a full garbage collection, which are rare.

    ``response``: the bytes that are decoded, for what is not decodable; the data holds them as well.
    """

    def __init__(self, partition: TopicPartition, response: bytes) -> None:
        self._partition = partition
        self._response = response
        self._batches = 0  # taken out of the data so far
        self._batch: RawBatch | None = None
        self._inside: Iterator[RawRecord] = iter(())
        self._closely: Iterator[CloseRecord] | None = None

    def take(self, data: PartitionRecords, most: int, records: list[Record]) -> bool:
        """Append up to ``most`` records to ``records``; False when there are no more.

        Raises Damaged; what came before has been appended then, and counts as taken.
        """
        while most > 0:
            batch = self._batch
            if batch is None:
                batch = self._batch = self._next_batch(data)
                if batch is None:
                    return False
                self._inside = chain(batch)  # aiokafka's batch may be asked for an iterator only once
                self._closely = None
            before = len(records)
            try:
                if self._closely is None:
                    came = self._take_from(data, islice(self._inside, most), records)
                else:
                    came = self._take_closely(data, islice(self._closely, most), records)
            except Damaged:
                raise
            except Exception as error:
                frame = self._frame()
                if frame is None:
                    raise Damaged(None, repr(error)) from error
                self._closely = records_in(frame, data.next_fetch_offset)
                came = True
            most -= len(records) - before
            if not came:
                # The batch knows its last offset even if compaction has removed that record. Else the same batch might
                # be fetched again and again.
                data.next_fetch_offset = batch.next_offset
                self._batch = None
        return True

    def _take_from(self, data: PartitionRecords, raws: Iterator[RawRecord], records: list[Record]) -> bool:
        """Whether anything came at all; it may lie below the position and be left out."""
        topic, partition = self._partition
        position = data.next_fetch_offset
        offset = -1
        new, append = Record.__new__, records.append
        try:
            for raw in raws:
                offset = raw.offset
                if offset < position:
                    continue  # a batch begins where its producer began it, not at the position
                # Record.__init__ in place: called, it would take as long as all the rest.
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

    def _take_closely(self, data: PartitionRecords, raws: Iterator[CloseRecord], records: list[Record]) -> bool:
        """The same for those that are read from their bytes."""
        came = False
        for offset, timestamp, key, value, headers, fault in raws:
            record: Record = Record(*self._partition, offset, key, value, headers, timestamp)
            if fault is not None:
                make_undecodable(record, fault)
            records.append(record)
            data.next_fetch_offset = offset + 1
            came = True
        return came

    def _next_batch(self, data: PartitionRecords) -> RawBatch | None:
        """The next batch with records for us. Raises Damaged."""
        while data._records.has_next():
            self._batches += 1
            try:
                batch = data._records.next_batch()
                is_whole = not data._check_crcs or batch.validate_crc()
                is_for_us = is_whole and not (_is_aborted(data, batch) or batch.is_control_batch)
            except Exception as error:
                raise Damaged(self._place(data), repr(error)) from error
            if not is_whole:
                raise Damaged(self._place(data), "its checksum is wrong")
            if is_for_us:
                return batch
            data.next_fetch_offset = batch.next_offset
        return None

    def _frame(self) -> Frame | None:
        """The batch that was taken last, as bytes."""
        return frame_at(self._response, self._batches - 1)

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
