"""The package's decoder against aiokafka's iterator, over the same bytes."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from aioparallel.clients.aiokafka.decoding import Decoder
from aioparallel.records.record import Record, TopicPartition

PARTITION = TopicPartition("topic", 3)
ATTRIBUTES = 22  # the lower byte of a batch's attributes
TRANSACTIONAL, CONTROL = 0x10, 0x20
ABORT = b"\0\0\0\0"  # version 0, type 0


def batch(first: int, keeps: list[bool], producer: int | None, codec: int, kind: int = 0) -> bytes:
    """A batch with one offset for each entry of ``keeps``; those that are False were compacted away."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=int(bool(kind)),
        producer_id=-1 if producer is None else producer,
        producer_epoch=0,
        base_sequence=0,
        batch_size=1 << 20,
    )
    for offset, kept in enumerate(keeps):
        if kept:
            headers = [("name", b"x"), ("none", None)] if offset % 3 == 0 else []
            key = ABORT if kind & CONTROL else (b"key" if offset % 2 else None)
            builder.append(offset, 1_000 + offset, key, None if offset % 5 == 4 else b"v%d" % offset, headers)
    data = builder.build()
    data[0:8] = first.to_bytes(8, "big")
    data[23:27] = (len(keeps) - 1).to_bytes(4, "big")
    data[ATTRIBUTES] |= kind
    return bytes(data)


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int]], int]:
    """Batches, the aborted transactions, and a position."""
    data, offset = b"", 100
    aborted: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(1, 5))):
        keeps = draw(st.lists(st.booleans(), min_size=1, max_size=12))
        producer = draw(st.sampled_from([None, 7, 8]))
        kind = draw(st.sampled_from([0, TRANSACTIONAL])) if producer else 0
        if producer and kind and draw(st.booleans()):
            aborted.append((producer, offset))
        if any(keeps):
            data += batch(offset, keeps, producer, draw(st.sampled_from([0, 1, 4])), kind)
        offset += len(keeps)
        if kind:
            data += batch(offset, [True], producer, 0, TRANSACTIONAL | CONTROL)
            offset += 1
    return data, aborted, draw(st.integers(100, 110))


def response(data: bytes, aborted: list[tuple[int, int]], position: int, *, crcs: bool = False) -> Any:
    return PartitionRecords(PARTITION, MemoryRecords(data), aborted, position, None, None, crcs, 1)


def shown(record: Any) -> tuple[object, ...]:
    return record.offset, record.key, record.value, record.headers, record.timestamp


@given(logs(), st.lists(st.integers(1, 7), min_size=1, max_size=8))
def test_the_decoder_reads_what_aiokafka_reads(
    log: tuple[bytes, list[tuple[int, int]], int], portions: list[int]
) -> None:
    """It returns the same records and next position, for any portion size, with transactions, gaps and compression."""
    theirs = response(*log)
    expected = [shown(record) for record in theirs]
    data = response(*log)
    decoder, records, more, turn = Decoder(PARTITION, b""), list[Record](), True, 0
    while more:
        before, most = len(records), portions[turn % len(portions)]
        more = decoder.take(data, most, records)
        assert len(records) - before <= most
        assert not more or len(records) - before == most
        turn += 1
    assert [shown(record) for record in records] == expected
    assert data.next_fetch_offset == theirs.next_fetch_offset


def test_leader_epochs_are_those_of_the_records_taken() -> None:
    """Each with the first offset of its batch. The current epoch is repeated; that of a batch that was not begun is not
    included."""
    data = b""
    for first, epoch in ((0, 4), (2, 4), (4, 6), (6, 7)):
        changed = bytearray(batch(first, [True, True], None, 0))
        changed[12:16] = epoch.to_bytes(4, "big")
        data += changed
    read, decoder, records = response(data, [], 1, crcs=True), Decoder(PARTITION, data), list[Record]()
    taken = []
    for most in (2, 2, 1, 100):
        decoder.take(read, most, records)
        taken.append(decoder.epochs_taken(read.next_fetch_offset))
    assert [record.offset for record in records] == list(range(1, 8))
    assert taken == [((0, 4),), ((0, 4), (4, 6)), ((4, 6),), ((4, 6), (6, 7))]


def test_the_old_formats_are_read() -> None:
    """Message sets from before Kafka 0.11."""
    builder = LegacyRecordBatchBuilder(magic=1, compression_type=1, batch_size=1 << 20)
    for offset in range(5):
        builder.append(offset, 1_000 + offset, b"k", b"v%d" % offset)
    built = bytes(builder.build())
    theirs = response(built, [], 2)
    expected = [shown(record) for record in theirs]
    data, records = response(built, [], 2), list[Record]()
    assert not Decoder(PARTITION, b"").take(data, 100, records)
    assert [shown(record) for record in records] == expected
    assert [record.offset for record in records] == [2, 3, 4]
    assert data.next_fetch_offset == theirs.next_fetch_offset


def test_a_record_is_as_its_constructor_makes_it() -> None:
    """The decoder sets the attributes itself, and misses none."""
    records: list[Record] = []
    Decoder(PARTITION, b"").take(response(batch(5, [True], None, 0), [], 0), 1, records)
    (decoded,) = records
    made: Record = Record("topic", 3, 5, None, b"v0", (("name", b"x"), ("none", None)), 1_000)
    missing = object()
    for name in Record.__slots__:
        assert getattr(decoded, name, missing) == getattr(made, name, missing), name


def test_the_bytes_of_a_response_go_with_it() -> None:
    """There is no reference cycle, so no garbage collection is needed, even if it was not read to its end."""
    data, records = response(batch(0, [True] * 5, None, 0), [], 0), list[Record]()
    data._records_iterator = Decoder(PARTITION, b"")
    data._records_iterator.take(data, 2, records)
    gone = weakref.ref(data)
    gc.disable()
    try:
        del data
        assert gone() is None
    finally:
        gc.enable()


def test_records_of_the_first_format_have_no_timestamp() -> None:
    """They get Kafka's -1, so a timestamp is always a number."""
    builder = LegacyRecordBatchBuilder(magic=0, compression_type=0, batch_size=1 << 20)
    builder.append(0, timestamp=None, key=b"key", value=b"value", headers=[])
    records: list[Record] = []
    Decoder(PARTITION, b"").take(response(bytes(builder.build()), [], 0), 10, records)
    assert [record.timestamp for record in records] == [-1]
