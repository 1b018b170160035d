"""Decodes the records that a member of a share group has acquired (KIP-932).

A response has whole batches of the log, and ranges of offsets that are locked for the member. Only records in these
ranges are its own: others are locked for other members, have ended, or belong to aborted transactions, which the broker
leaves out. A range may contain offsets without a record, of control batches or after compaction. The member must
acknowledge these as ``GAP``, which ends them for the whole group. So an offset behind the last batch of the response is
not one of them: the broker locked it and did not send it (as in KAFKA-19808), and it may well have a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, cast

from aiokafka import TopicPartition as Place  # required by aiokafka
from aiokafka.consumer.fetcher import READ_UNCOMMITTED
from aiokafka.consumer.fetcher import PartitionRecords as AiokafkaPartitionRecords
from aiokafka.record.memory_records import MemoryRecords

from aioparallel.clients.aiokafka.decoding import Decoder
from aioparallel.clients.aiokafka.internals import PartitionRecords
from aioparallel.clients.aiokafka.raw_batches import Damaged, head_at
from aioparallel.clients.messages.share_records import AcquiredRange
from aioparallel.records.record import Record, TopicPartition

__all__ = ["AcquiredRecords", "decode_acquired"]

_ALL = 1 << 62
_NOT_SENT: Final = "the response ends before them"


class AcquiredRecords(NamedTuple):
    """What a member has acquired of a partition with one response, in the order of offsets."""

    records: list[tuple[Record, int]]
    """Records with their delivery counts. Some may be undecodable, as marked in their history."""
    gaps: list[tuple[int, int]]
    """First and last offsets that have no record."""
    unreadable: list[tuple[int, int, str]]
    """First and last offsets in batches that cannot be read, or behind the response, and why."""


def decode_acquired(partition: TopicPartition, data: bytes, acquired: Iterable[AcquiredRange]) -> AcquiredRecords:
    """The records of ``data``, the batches of one partition in a response, in the acquired ranges. Never raises because
    of the data."""
    ranges = sorted(acquired, key=lambda one: one.first_offset)
    found = AcquiredRecords([], [], [])
    if not ranges:
        return found
    records, damages = _decode(partition, data, ranges[0].first_offset)
    at = 0
    for first, last, delivery_count in [(one.first_offset, one.last_offset, one.delivery_count) for one in ranges]:
        following = first
        while at < len(records) and (offset := records[at].offset) <= last:
            if offset >= following:
                if offset > following:
                    _add_missing(found, following, offset - 1, damages)
                found.records.append((records[at], delivery_count))
                following = offset + 1
            at += 1
        _add_missing(found, following, last, damages)
    return found


class _Damage(NamedTuple):
    first: int
    end: int | None
    """The offset after it; None if unknown."""
    reason: str


def _decode(partition: TopicPartition, data: bytes, position: int) -> tuple[list[Record], list[_Damage]]:
    """All records from ``position`` on, and the parts that cannot be read. The last of these has no end."""
    records: list[Record] = []
    read = _partition_records(partition, data, position)
    try:
        Decoder(partition, data).take(read, _ALL, records)
    except Damaged:
        return _decode_by_batch(partition, data, position)
    return records, [_Damage(max(position, read.next_fetch_offset), None, _NOT_SENT)]


def _decode_by_batch(partition: TopicPartition, data: bytes, position: int) -> tuple[list[Record], list[_Damage]]:
    """The same, one batch at a time. What cannot be read extends to the next batch that can: the header of a damaged
    one may say anything."""
    records: list[Record] = []
    damages: list[_Damage] = []
    reason: str | None = None
    at = 0
    while (head := head_at(data, at)) is not None:
        batch, at = data[at : head.end], head.end
        read, failure = _partition_records(partition, batch, position), None
        try:
            Decoder(partition, batch).take(read, _ALL, records)
        except Damaged as damage:
            failure = damage.reason
        if read.next_fetch_offset > position:
            if reason is not None:
                damages.append(_Damage(position, head.offset, reason))
                reason = None
            position = read.next_fetch_offset
        reason = reason or failure
    damages.append(_Damage(position, None, reason or _NOT_SENT))
    return records, damages


def _partition_records(partition: TopicPartition, data: bytes, position: int) -> PartitionRecords:
    found = AiokafkaPartitionRecords(
        Place(*partition), MemoryRecords(data), [], position, None, None, True, READ_UNCOMMITTED
    )
    found._records_iterator = None  # it refers back to its object
    return cast("PartitionRecords", found)


def _add_missing(found: AcquiredRecords, first: int, last: int, damages: list[_Damage]) -> None:
    """Report acquired offsets without a record, as unreadable where a batch is damaged or missing, else as gaps."""
    for start, end, reason in _split(first, last, damages):
        if reason is None:
            found.gaps.append((start, end))
        else:
            found.unreadable.append((start, end, reason))


def _split(first: int, last: int, damages: list[_Damage]) -> Iterator[tuple[int, int, str | None]]:
    for damage in damages:
        start = max(first, damage.first)
        end = last if damage.end is None else min(last, damage.end - 1)
        if start <= end:
            if first < start:
                yield first, start - 1, None
            yield start, end, damage.reason
            first = end + 1
    if first <= last:
        yield first, last, None
