"""The log of a partition: what each reader sees of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioparallel.testing.memory.log import PartitionLog, Transaction


def filled(count: int) -> PartitionLog:
    """A log with records of the values b"0", b"1", ... and timestamps 0, 10, 20, ..."""
    log = PartitionLog()
    for number in range(count):
        log.append(None, str(number).encode(), timestamp=number * 10)
    return log


def offsets(log: PartitionLog, position: int = 0, max_records: int = 100, *, read_committed: bool = False) -> list[int]:
    """The offsets that a read brings."""
    return [stored.offset for stored in log.read(position, max_records, read_committed=read_committed).records]


def test_reading_is_bounded_and_tells_where_to_go_on() -> None:
    """A read stops at the quota; its next_offset is the next record, and the end when there is none."""
    log = filled(5)
    assert log.read(1, 2, read_committed=False).next_offset == 3
    assert offsets(log, 1, 2) == [1, 2]
    assert log.read(4, 2, read_committed=False).next_offset == 5
    assert log.read(5, 2, read_committed=False) == ([], 5)


def test_gaps_are_stepped_over() -> None:
    """Compacted offsets are not delivered, next_offset passes them, and the end does not move."""
    log = filled(6)
    log.compact([0, 2, 3, 5])
    assert offsets(log) == [1, 4]
    assert log.read(2, 1, read_committed=False).next_offset == 6
    assert log.read(5, 1, read_committed=False) == ([], 6)
    assert log.append(None, b"") == 6
    assert offsets(log, 2) == [4, 6]


def test_the_start_moves() -> None:
    """After deletion the log holds no position before the new start, and says so."""
    log = filled(6)
    log.delete_before(4)
    assert (log.start_offset, log.end_offset) == (4, 6)
    assert [log.holds(position) for position in (3, 4, 6, 7)] == [False, True, True, False]
    assert offsets(log, 4) == [4, 5]
    log.delete_before(2)
    assert log.start_offset == 4
    log.delete_before(99)
    assert (log.start_offset, log.end_offset) == (6, 6)


def test_a_lost_tail_is_written_again() -> None:
    """After truncation the offsets of the lost records are given to others."""
    log = filled(6)
    log.truncate_tail(3)
    assert not log.holds(5)
    assert log.append(None, b"again") == 3
    assert log.read(3, 9, read_committed=False).records[0].value == b"again"


def test_undecided_records_bound_read_committed() -> None:
    """read_committed ends at the first record of any open transaction, whatever follows."""
    log = filled(2)
    first, second = Transaction(), Transaction()
    log.append(None, b"first", transaction=first)
    log.append(None, b"second", transaction=second)
    log.append(None, b"plain")
    assert log.readable_end(read_committed=True) == 2
    assert offsets(log, read_committed=True) == [0, 1]
    assert offsets(log) == [0, 1, 2, 3, 4]
    first.is_committed = False
    log.end_transaction(first)
    assert log.readable_end(read_committed=True) == 3
    second.is_committed = True
    log.end_transaction(second)
    assert log.readable_end(read_committed=True) == log.end_offset == 7
    assert log.read(2, 9, read_committed=True).next_offset == 7
    assert offsets(log, read_committed=True) == [0, 1, 3, 4]
    assert offsets(log) == [0, 1, 2, 3, 4]


def test_a_truncated_transaction_holds_nobody_up() -> None:
    """An open transaction whose records were lost does not bound read_committed any more."""
    log = filled(2)
    log.append(None, b"open", transaction=Transaction())
    assert log.readable_end(read_committed=True) == 2
    log.truncate_tail(2)
    log.append(None, b"plain")
    assert log.readable_end(read_committed=True) == 3


def test_offsets_for_times() -> None:
    """The first record at or after the time that this reader may see; markers do not count."""
    log = filled(3)
    open_ = Transaction()
    log.append(None, b"open", timestamp=30, transaction=open_)
    assert [log.offset_for_time(t, read_committed=False) for t in (-1, 10, 11, 30, 31)] == [0, 1, 2, 3, None]
    assert log.offset_for_time(30, read_committed=True) is None
    open_.is_committed = True
    log.end_transaction(open_, timestamp=99)
    assert log.offset_for_time(30, read_committed=True) == 3
    assert log.offset_for_time(40, read_committed=True) is None


@given(
    records=st.integers(0, 30),
    gone=st.sets(st.integers(0, 29)),
    start=st.integers(0, 30),
    quota=st.integers(1, 5),
)
def test_reading_on_finds_each_record_once(records: int, gone: set[int], start: int, quota: int) -> None:
    """Reading from next_offset to next_offset finds exactly what is in the log, and reaches its end."""
    log = filled(records)
    log.compact(gone)
    log.delete_before(start)
    found: list[int] = []
    position = log.start_offset
    while position != log.end_offset:
        found += offsets(log, position, quota)
        after = log.read(position, quota, read_committed=False).next_offset
        assert after > position
        position = after
    assert found == [number for number in range(records) if number >= start and number not in gone]
