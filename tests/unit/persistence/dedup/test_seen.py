"""One session's records looked at."""

from __future__ import annotations

from itertools import product
from typing import Literal

import pytest

from aioparallel.persistence.dedup.identities import identify_by
from aioparallel.persistence.dedup.remembered import Memory
from aioparallel.persistence.dedup.seen import Looked, Seen
from aioparallel.records.record import Record

by_record, by_key = identify_by("record", "ours"), identify_by("key", "ours")


def copy_of(source: int, offset: int, key: bytes = b"k") -> Record:
    """A record at ``offset`` made of the one at ``source``."""
    place = (("src-topic", b"raw"), ("src-partition", b"0"), ("src-offset", b"%d" % source))
    return Record("work", 0, offset, key, b"v", place)


class Told:
    """What was found."""

    def __init__(self) -> None:
        self.copies = self.unknown = 0

    def __call__(self, looked: Looked) -> None:
        self.copies += looked.copies
        self.unknown += looked.unknown


def test_a_copy_of_what_runs_is_left_out_before_it_ends() -> None:
    """In one fetch and in the next; it is remembered when it is complete, and not before."""
    memory, told = Memory(10), Told()
    seen = Seen(by_record, lambda: memory, told)
    assert [one.offset for one in seen.select([copy_of(1, 10), copy_of(1, 11), copy_of(2, 12)])] == [10, 12]
    assert seen.select([copy_of(2, 13)]) == []
    assert len(memory) == 0
    seen.completed_all([10, 12])
    assert len(memory) == 2
    assert seen.select([copy_of(1, 14), copy_of(2, 15)]) == []
    assert told.copies == 4


def test_what_a_session_let_through_goes_with_it() -> None:
    """The next session of the partition runs it: it was not complete."""
    memory = Memory(10)
    Seen(by_record, lambda: memory, Told()).select([copy_of(1, 10)])
    fresh = Seen(by_record, lambda: memory, Told()).select([copy_of(1, 10), copy_of(1, 11)])
    assert [one.offset for one in fresh] == [10]


def test_what_was_put_away_may_come_again() -> None:
    """A dead letter is no record that was handled."""
    memory = Memory(10)
    seen = Seen(by_record, lambda: memory, Told())
    seen.select([copy_of(1, 10)])
    seen.dead_lettered(10)
    seen.completed(10)
    assert len(seen.select([copy_of(1, 11)])) == 1


def test_a_copy_of_what_was_sent_back_and_handled_is_left_out() -> None:
    """A letter that is replayed is handled as itself, and the record is handled with it."""
    memory = Memory(10)
    seen = Seen(by_record, lambda: memory, Told())
    letter = copy_of(1, 10)
    letter.headers = (*letter.headers, ("aioparallel.replayed", b"work.dlq-0 offset 0"))
    assert len(seen.select([letter])) == 1
    seen.completed(10)
    assert seen.select([copy_of(1, 11)]) == []


def test_marks_let_a_keys_records_through_in_order_and_their_replay_not() -> None:
    """Also while the first of them still run, and each key by itself."""
    memory, told = Memory(10), Told()
    seen = Seen(by_key, lambda: memory, told)
    first = [copy_of(1, 10), copy_of(2, 11, b"other"), copy_of(4, 12)]
    again = [copy_of(1, 13), copy_of(2, 14, b"other"), copy_of(4, 15), copy_of(5, 16, b"other"), copy_of(6, 17)]
    assert list(seen.select(first)) == first
    assert [one.offset for one in seen.select(again)] == [16, 17]
    seen.completed(10)
    assert seen.select([copy_of(4, 18)]) == []
    seen.completed_all([12, 17, 11, 16])
    assert seen.select([copy_of(4, 19), copy_of(6, 20), copy_of(5, 21, b"other")]) == []
    assert len(memory) == 2
    assert len(seen._begun) == len(seen._by_offset) == 0


def test_what_says_nothing_of_its_source_runs_each_time() -> None:
    """And is counted."""
    memory, told = Memory(10), Told()
    seen = Seen(by_record, lambda: memory, told)
    strangers = [Record("work", 0, offset, b"k", b"v") for offset in range(3)]
    assert list(seen.select(strangers)) == strangers
    seen.completed_all([0, 1, 2])
    assert (len(memory), told.unknown) == (0, 3)


def part_of(source: int, digest: str, offset: int) -> Record:
    """A record at ``offset``, one of several that were made of the one at ``source``."""
    record = copy_of(source, offset)
    record.headers = (*record.headers, ("src-digest", digest.encode()))
    return record


@pytest.mark.parametrize("by", ["record", "key"])
@pytest.mark.parametrize("is_complete", [True, False])
def test_several_of_one_source_are_all_let_through_and_their_copies_are_not(
    by: Literal["record", "key"], is_complete: bool
) -> None:
    """Of what a first attempt wrote, the copies: while they run, and when they are complete. The second attempt brings
    the rest of the source that it was cut off in."""
    memory, told = Memory(10), Told()
    seen = Seen(identify_by(by, "ours"), lambda: memory, told)
    first = [part_of(1, "a", 10), part_of(1, "b", 11), part_of(2, "a", 12), part_of(2, "b", 13)]
    assert list(seen.select(first)) == first
    if is_complete:
        seen.completed_all([10, 11, 12, 13])
    again = [part_of(source, digest, 14 + at) for at, (source, digest) in enumerate(product((1, 2, 3), "abc"))]
    if by == "key":
        again.remove(next(one for one in again if one.offset == 16))  # an attempt writes a prefix: it had written that
    found = [one.offset for one in seen.select(again)]
    assert found == [16, 19, 20, 21, 22] if by == "record" else [19, 20, 21, 22]
    seen.completed_all([10, 11, 12, 13, *found])
    assert seen.select([part_of(3, "c", 30), part_of(3, "a", 31)]) == []
    assert [one.offset for one in seen.select([part_of(3, "d", 32)])] == [32]
