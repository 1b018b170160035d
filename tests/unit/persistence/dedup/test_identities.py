"""By what copies are known."""

from __future__ import annotations

import random

import pytest

from aioparallel.persistence.dedup.chunks import encode_chunk
from aioparallel.persistence.dedup.identities import (
    ONCE,
    Mark,
    Position,
    RecordIdentity,
    covers,
    identify_by,
    is_latest,
    joined,
)
from aioparallel.persistence.dedup.remembered import Memory
from aioparallel.records.record import Headers, Record
from aioparallel.records.source_headers import Coordinates, coordinates_of, source_headers, why_no_coordinates

by_record, by_key = identify_by("record", "ours"), identify_by("key", "ours")

PLACE: Headers = (("src-topic", b"flights"), ("src-partition", b"3"), ("src-offset", b"1024"))


def record_of(headers: Headers, key: bytes | None = b"k") -> Record:
    """A record with these headers."""
    return Record("work", 0, 7, key, b"v", headers)


def test_coordinates_are_read_from_the_headers() -> None:
    """Text in decimal; the number among several is 0 where none is told; of two of one name the last counts."""
    assert coordinates_of(PLACE) == Coordinates("flights", 3, 1024, 0)
    assert coordinates_of((*PLACE, ("src-index", b"2"), ("trace", b"x"))) == Coordinates("flights", 3, 1024, 2)
    assert coordinates_of((("src-offset", b"1"), *PLACE)) == Coordinates("flights", 3, 1024, 0)


def test_a_stage_says_where_its_records_come_from() -> None:
    """Its own headers stay, those of an earlier stage with these names go; what it says is read again."""
    record = Record("work", 2, 77, b"k", b"v", (("trace", b"1"), *PLACE, ("src-index", b"4")))
    assert source_headers(record)[0] == ("trace", b"1")
    assert coordinates_of(source_headers(record)) == Coordinates("work", 2, 77, 0)
    assert coordinates_of(source_headers(record, 3)) == Coordinates("work", 2, 77, 3)


@pytest.mark.parametrize(
    "headers",
    [
        (),
        PLACE[1:],
        PLACE[:2],
        (*PLACE[:2], ("src-offset", None)),
        (*PLACE[:2], ("src-offset", b"")),
        (*PLACE[:2], ("src-offset", b"many")),
        (("src-topic", b"\xff"), *PLACE[1:]),
        (*PLACE, ("src-index", b"first")),
        (*PLACE, ("src-index", None)),
        (*PLACE, ("src-offset", b"-1")),
        (("src-topic", b"t" * 250), *PLACE[1:]),
        (*PLACE, ("src-index", b"1" * 250)),
    ],
)
def test_what_does_not_say_where_it_comes_from_has_no_identity(headers: Headers) -> None:
    """Missing, null, no number, no UTF-8."""
    assert coordinates_of(headers) is None
    assert by_record(record_of(headers)) is None
    assert by_key(record_of(headers)) is None


def test_a_mark_is_of_a_key_and_a_record_without_one_is_known_by_itself() -> None:
    """Records without a key have no order."""
    assert by_key(record_of(PLACE)) == (Mark("flights", 3, b"k"), Position(1024))
    assert by_key(record_of(PLACE, None)) == (RecordIdentity("flights", 3, 1024, 0, ""), ONCE)
    assert by_key(record_of(PLACE, b"")) == (Mark("flights", 3, b""), Position(1024))


def test_however_long_keys_and_headers_are_a_chunk_of_them_fits_a_record() -> None:
    """A megabyte, as brokers take it: else nothing of the partition would ever be saved, or committed. Keys that differ
    stay apart."""
    rng = random.Random(0)
    keys = [
        rng.randbytes(rng.choice((255, 256, 257, 900_000 if number % 100 == 0 else 300))) for number in range(1_000)
    ]
    keys += [keys[0] + b"a", keys[0] + b"b"]
    found = [by_key(record_of((*PLACE[:2], ("src-offset", b"%d" % 10**240)), key)) for key in keys]
    assert len(set(found)) == len(keys)
    assert len(encode_chunk(dict(one for one in found if one is not None))) < 900_000
    tag = by_record(record_of((*PLACE, ("aioparallel.attempts", rng.randbytes(900_000)))))
    assert tag is not None
    assert len(encode_chunk(dict([tag]))) < 2_000


def test_what_was_sent_again_is_another_record() -> None:
    """A letter that was replayed, each time anew; one in a retry topic, by its attempts; a letter that somebody sent
    back with all its headers."""
    plain, _ = by_record(record_of(PLACE)) or (None, None)
    replayed = [by_record(record_of((*PLACE, ("aioparallel.replayed", at)))) for at in (b"dlq-0 offset 1", b"dlq-0 2")]
    attempts = [by_record(record_of((*PLACE, ("aioparallel.attempts", count)))) for count in (b"3", b"6")]
    found = {plain, *(one[0] for one in (*replayed, *attempts) if one is not None)}
    assert len(found) == 5
    both = by_record(record_of((*PLACE, ("aioparallel.replayed", b"dlq-0 2"), ("aioparallel.attempts", b"3"))))
    assert both == replayed[1]


def test_what_another_group_had_not_handled_is_a_copy_here() -> None:
    """A letter is sent back for the group that gave up on it."""
    replayed: Headers = (*PLACE, ("aioparallel.replayed", b"dlq-0 offset 1"))
    ours = by_record(record_of((*replayed, ("aioparallel.replayed.group", b"ours"))))
    theirs = by_record(record_of((*replayed, ("aioparallel.replayed.group", b"theirs"))))
    assert theirs == by_record(record_of(PLACE))
    assert ours == by_record(record_of(replayed)) != theirs


def digested(digest: bytes) -> Headers:
    """Of one among several that were made of one record."""
    return (*PLACE, ("src-digest", digest))


def test_several_of_one_source_are_told_apart_by_their_digest() -> None:
    """By record each is known by itself; by key the mark knows which of them it has seen."""
    first, second = by_record(record_of(digested(b"a1"))), by_record(record_of(digested(b"b2")))
    assert first == (RecordIdentity("flights", 3, 1024, 0, "", "a1"), ONCE)
    assert second != first != by_record(record_of(PLACE))
    assert by_key(record_of(digested(b"a1"))) == (Mark("flights", 3, b"k"), Position(1024, 0, ("a1",)))
    assert by_key(record_of(digested(b"a1"), None)) == first
    assert by_record(record_of(digested(b"\xff"))) is None
    assert by_record(record_of(digested(b"a" * 250))) is None


def test_a_mark_covers_the_digests_that_it_has_seen() -> None:
    """All that is before it, of what is at it these; and of what was seen without digests none that has one: it may
    be another of several, so it is repeated and not lost."""
    mark = joined(joined(Position(7), Position(8, 0, ("a",))), Position(8, 0, ("b",)))
    assert mark == Position(8, 0, ("a", "b"))
    seen = [Position(7, 5, ("x",)), Position(8, 0, ("a",)), Position(8, 0, ("b",)), Position(8), Position(0)]
    fresh = [Position(8, 0, ("c",)), Position(8, 1, ("a",)), Position(9)]
    assert all(covers(mark, one) for one in seen)
    assert not any(covers(mark, one) for one in fresh)
    assert not covers(Position(8), Position(8, 0, ("a",)))
    assert is_latest(mark, Position(8, 0, ("b",)))
    assert not is_latest(mark, Position(8, 0, ("a",)))
    assert joined(mark, Position(7, 0, ("z",))) == joined(mark, Position(8)) == mark
    assert joined(mark, Position(8, 1)) == Position(8, 1)


def test_a_mark_of_many_digests_stays_small() -> None:
    """A record that becomes thousands of one key: the oldest are forgotten, and chunks of such marks fit a record."""
    mark = ONCE
    for number in range(1_000):
        mark = joined(mark, Position(1, 0, (f"{number:0249}",)))
    assert [int(digest) for digest in mark.digests] == list(range(744, 1_000))
    memory = Memory(10_000)
    for number in range(100):
        memory.remember(Mark("t", 0, b"%d" % number), mark._replace(digests=tuple(map(rest_of, mark.digests))))
    assert all(len(encode_chunk(entries or {})) < 900_000 for _, _, entries in memory.changes().changes)


def rest_of(digest: str) -> str:
    """One of the same length that compresses less."""
    return random.Random(digest).randbytes(124).hex() + "a"


def test_letters_of_several_groups_and_topics_are_several() -> None:
    """One source behind records of two topics, handled by two groups that share their dead letters, or one group with
    one retry topic for both."""
    told = [("3", "ours", "work"), ("3", "theirs", "work"), ("3", "ours", "other"), ("4", "ours", "work")]
    found = set()
    for attempts, group, topic in told:
        letter: Headers = (
            ("aioparallel.attempts", attempts.encode()),
            ("aioparallel.group", group.encode()),
            ("aioparallel.origin.topic", topic.encode()),
        )
        found.add(by_record(record_of((*PLACE, *letter))))
        assert by_record(record_of((*PLACE, *letter))) in found
    assert len(found) == len(told)


def test_long_tags_that_differ_at_their_end_stay_apart() -> None:
    """A topic may have a name of 249 characters, and an offset stands behind it."""
    places = [b"t" * 249 + b"-%d offset %d" % (number % 7, number) for number in range(100)]
    found = {by_record(record_of((*PLACE, ("aioparallel.replayed", place)))) for place in places}
    assert len(found) == 100


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ((), "no header src-topic, src-partition, src-offset"),
        (PLACE[:2], "no header src-offset"),
        ((*PLACE[:2], ("src-offset", b"12.5")), "header src-offset is b'12.5', not a whole number from 0"),
        ((*PLACE[:2], ("src-offset", None)), "header src-offset is b'', not a whole number from 0"),
        ((*PLACE, ("src-index", b"-1")), "header src-index is b'-1', not a whole number from 0"),
        ((*PLACE, ("src-index", None)), "header src-index is b'', not a whole number from 0"),
        ((*PLACE, ("src-digest", b"\xff")), "header src-digest is b'\\xff', not UTF-8 text"),
        ((*PLACE, ("src-digest", b"a" * 250)), "header src-digest has 250 bytes, more than 249"),
    ],
)
def test_the_header_that_is_wrong_is_named(headers: Headers, says: str) -> None:
    """With what it holds: of an index that is NULL nobody would look at the topic, the partition and the offset."""
    assert coordinates_of(headers) is None
    assert why_no_coordinates(headers) == says
