"""From the data of a fetch response to records, many at a time.

aiokafka decodes with a generator that looks at each record twice and makes a dataclass of it; this walk over the same
batches takes half the time. The order of the checks, and what a batch means for transactions, is aiokafka's
(``PartitionRecords._unpack_records``) and Kafka's: control batches hold no records for anyone, and a reader of
committed data skips the batches of producers whose transaction was aborted.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

import aiokafka.errors as kafka

from aioparallel.clients.aiokafka.internals import PartitionRecords, RawBatch, RawRecord
from aioparallel.records import Record, TopicPartition, size_of_headers

__all__ = ["Decoder"]

_READ_COMMITTED: Final = 1
"""aiokafka's ``READ_COMMITTED``."""


class Decoder:
    """Decodes what one response brought of one partition; keeps its ``next_fetch_offset``.

    It stands in the place of the data's own iterator and does not refer back to it: with a cycle the bytes of every
    response would stay until a full garbage collection, which are rare.
    """

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition
        self._batch: RawBatch | None = None
        self._inside: Iterator[RawRecord] = iter(())

    def take(self, data: PartitionRecords, most: int, records: list[Record]) -> bool:
        """Append up to ``most`` records to ``records``; False when there are no more.

        Raises what decoding raises; what came before the error has been appended then, and counts as taken.
        """
        while most > 0:
            batch = self._batch
            if batch is None:
                batch = self._batch = self._next_batch(data)
                if batch is None:
                    return False
                self._inside = chain(batch)  # aiokafka's batch may be asked for an iterator only once
            before = len(records)
            came = self._take_from(data, islice(self._inside, most), records)
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

    def _next_batch(self, data: PartitionRecords) -> RawBatch | None:
        """The next batch with records for us."""
        while data._records.has_next():
            batch = data._records.next_batch()
            if data._check_crcs and not batch.validate_crc():
                raise kafka.CorruptRecordException(f"Invalid CRC - {self._partition}")
            if not (_is_aborted(data, batch) or batch.is_control_batch):
                return batch
            data.next_fetch_offset = batch.next_offset
        return None


def _is_aborted(data: PartitionRecords, batch: RawBatch) -> bool:
    if data._isolation_level != _READ_COMMITTED or batch.producer_id is None:
        return False
    data._consume_aborted_up_to(batch.base_offset)
    if batch.is_control_batch and data._contains_abort_marker(batch):
        data._aborted_producers.discard(batch.producer_id)
    return batch.is_transactional and batch.producer_id in data._aborted_producers
