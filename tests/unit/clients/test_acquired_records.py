"""Records of a share group: those of the acquired ranges, gaps, and what cannot be read."""

from __future__ import annotations

import gc
import weakref
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from aioparallel.clients.aiokafka import acquired_records
from aioparallel.clients.aiokafka.acquired_records import AcquiredRecords, decode_acquired
from aioparallel.clients.aiokafka.raw_batches import frame_at, head_at, place_of
from aioparallel.clients.messages.share_records import AcquiredRange
from tests.unit.clients.test_decoding import CONTROL, PARTITION, TRANSACTIONAL, batch, logs, response
from tests.unit.clients.test_undecodable import RAW, STAND_IN, built, sealed


def acquire(data: bytes, *ranges: tuple[int, int] | tuple[int, int, int]) -> AcquiredRecords:
    return decode_acquired(
        PARTITION, data, [AcquiredRange(first, last, *(rest or (1,))) for first, last, *rest in ranges]
    )


def shown(found: AcquiredRecords) -> list[tuple[int, int]]:
    return [(record.offset, count) for record, count in found.records]


def whole(log: bytes) -> bytes:
    """The batches with correct checksums, which those of ``batch`` lack."""
    found, at = b"", 0
    while (head := head_at(log, at)) is not None:
        found += sealed(bytearray(log[at : head.end]))
        at = head.end
    return found


def end_of(log: bytes) -> int:
    """The offset after the last batch; 0 without one."""
    end: int | None = 0
    at = 0
    while (frame := frame_at(log, at)) is not None:
        end = place_of(frame, 0).next_offset
        at += len(frame.data)
    assert end is not None
    return end


def full(first: int, count: int, codec: int = 0) -> bytes:
    return whole(batch(first, [True] * count, None, codec))


def broken(data: bytes) -> bytes:
    """With a wrong checksum."""
    return data[:-1] + bytes([data[-1] ^ 0xFF])


def test_only_acquired_records_are_taken() -> None:
    """With the delivery count of their range; the others of the batch are left out."""
    data = full(10, 5) + full(15, 5, codec=4)
    found = acquire(data, (11, 12, 1), (14, 15, 3), (19, 19, 2))
    assert shown(found) == [(11, 1), (12, 1), (14, 3), (15, 3), (19, 2)]
    assert (found.gaps, found.unreadable) == ([], [])
    assert {record.topic for record, _ in found.records} == {PARTITION.topic}
    assert found.records[0][0].value == b"v1"


def test_ranges_in_any_order() -> None:
    """Brokers send them in order; nothing depends on it."""
    assert shown(acquire(full(0, 9), (6, 7, 2), (1, 2, 1))) == [(1, 1), (2, 1), (6, 2), (7, 2)]


def test_gaps_are_what_is_acquired_without_a_record() -> None:
    """Compacted offsets, also those before and between batches, and control batches, also the last one."""
    data = batch(1, [True, False, False, True], None, 0) + full(7, 1) + batch(8, [True], 7, 0, TRANSACTIONAL | CONTROL)
    found = acquire(whole(data), (0, 8))
    assert shown(found) == [(1, 1), (4, 1), (7, 1)]
    assert (found.gaps, found.unreadable) == ([(0, 0), (2, 3), (5, 6), (8, 8)], [])


def test_the_last_batch_may_have_lost_records_to_compaction() -> None:
    """It still says where it ends. It may have none at all."""
    for kept in ([True, False, False], [False, False, False]):
        found = acquire(full(0, 2) + whole(batch(2, kept, None, 0)), (0, 4))
        assert shown(found) == [(offset, 1) for offset in range(5) if offset < 2 or kept[offset - 2]]
        assert found.gaps[-1][1] == 4
        assert found.unreadable == []


def test_what_the_broker_did_not_send_is_not_ended() -> None:
    """An offset that is acknowledged as a gap is never delivered again, and these may have records."""
    for data in (full(0, 3) + full(3, 2), full(0, 5) + full(5, 3)[:-1], full(0, 5, codec=4)):
        found = acquire(data, (1, 9, 2))
        assert shown(found) == [(1, 2), (2, 2), (3, 2), (4, 2)]
        assert (found.gaps, found.unreadable) == ([], [(5, 9, "the response ends before them")])


def test_nothing_is_acquired() -> None:
    """Whatever the response contains; and something may be acquired without data."""
    assert acquire(full(0, 3)) == ([], [], [])
    for data in (b"", full(0, 3)):
        found = acquire(data, (7, 2**62))
        assert (found.records, found.gaps) == ([], [])
        assert [(first, last) for first, last, _ in found.unreadable] == [(7, 2**62)]


def test_an_aborted_record_is_not_acquired() -> None:
    """The broker leaves it out of the ranges; it is not looked at otherwise."""
    data = whole(batch(0, [True, True], 7, 0, TRANSACTIONAL)) + full(2, 1)
    assert shown(acquire(data, (2, 2))) == [(2, 1)]
    assert shown(acquire(data, (0, 2))) == [(0, 1), (1, 1), (2, 1)]


def test_a_record_that_cannot_be_decoded_is_marked() -> None:
    """The others of its batch are whole."""
    found = acquire(built(4, [[], [(STAND_IN, b"x")], []]), (4, 6))
    assert RAW in built(4, [[], [(STAND_IN, b"x")], []])
    assert shown(found) == [(4, 1), (5, 1), (6, 1)]
    faults = [None if record._history is None else record._history.undecodable for record, _ in found.records]
    assert [bool(fault) for fault in faults] == [False, True, False]


def test_a_broken_batch_is_named_and_the_others_are_read() -> None:
    """Only what was acquired of it."""
    data = full(0, 3) + broken(full(3, 3)) + full(6, 3) + broken(full(9, 2)) + full(11, 1)
    found = acquire(data, (1, 3, 2), (5, 7, 1), (10, 11, 1))
    assert shown(found) == [(1, 2), (2, 2), (6, 1), (7, 1), (11, 1)]
    assert found.gaps == []
    assert [(first, last) for first, last, _ in found.unreadable] == [(3, 3), (5, 5), (10, 10)]
    assert "checksum" in found.unreadable[0][2]


def test_a_broken_batch_at_the_end() -> None:
    """All that is acquired from there on cannot be read, as the batch does not say where it ends."""
    data = full(0, 2) + broken(full(2, 3))
    found = acquire(data, (0, 4))
    assert shown(found) == [(0, 1), (1, 1)]
    assert [(first, last) for first, last, _ in found.unreadable] == [(2, 4)]


def test_a_batch_that_is_cut_off() -> None:
    """A response may end within a batch. Its offsets are reported in some way, and none of them twice."""
    first = full(0, 2)
    for size in range(len(first)):
        found = acquire(first + full(2, 3)[:size], (0, 4))
        assert covered(found) == list(range(5))
        assert shown(found)[:2] == [(0, 1), (1, 1)]


def covered(found: AcquiredRecords) -> list[int]:
    """All offsets that are reported, in order; each must be there once."""
    missing = [*found.gaps, *((first, last) for first, last, _ in found.unreadable)]
    return sorted(
        [record.offset for record, _ in found.records]
        + [offset for first, last in missing for offset in range(first, last + 1)]
    )


@given(
    logs(),
    st.lists(st.integers(95, 170), min_size=2, max_size=12, unique=True),
    st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 255)), max_size=3),
)
def test_each_acquired_offset_is_reported_once(
    log: tuple[bytes, list[tuple[int, int]], int], bounds: list[int], damage: list[tuple[int, int]]
) -> None:
    """Also where the data is damaged, which never raises. Without damage the records are those of a fetch."""
    intact = whole(log[0])
    data = bytearray(intact)
    for place, value in damage:
        if data:
            data[place % len(data)] = value
    edges = sorted(bounds)
    ranges = [AcquiredRange(first, end - 1, number) for number, (first, end) in enumerate(pairwise(edges))][::2]
    expected = [offset for one in ranges for offset in range(one.first_offset, one.last_offset + 1)]
    found = decode_acquired(PARTITION, bytes(data), ranges)
    assert covered(found) == expected
    counts = {offset: one.delivery_count for one in ranges for offset in range(one.first_offset, one.last_offset + 1)}
    assert all(count == counts[record.offset] for record, count in found.records)
    if bytes(data) == intact:
        read = [record.offset for record in response(intact, [], 0) if record.offset in counts]
        assert [offset for offset, _ in shown(found)] == read
        end = end_of(intact)
        assert all(last < end for _, last in found.gaps)
        assert all(first >= end for first, _, _ in found.unreadable)


def test_the_response_is_freed_at_once() -> None:
    """No cycle keeps it until a garbage collection."""

    gc.disable()
    try:
        read = acquired_records._partition_records(PARTITION, full(0, 3), 0)
        ended = weakref.ref(read)
        del read
        assert ended() is None
    finally:
        gc.enable()
