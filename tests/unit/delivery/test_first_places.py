"""Where a record stood first: behind retry topics, and after a replay from a dead-letter topic."""

from __future__ import annotations

import math

import pytest

from aioparallel.delivery.first_places import first_place, replayed_origin
from aioparallel.delivery.letters import Letter, write_letter
from aioparallel.delivery.retry_topics import RetryTopics, origin_topic
from aioparallel.records.record import Failure, Origin, Record

FAILURE = Failure(12.5, "a.B", "no")
LETTER = Letter(Origin("orders", 3, 7, 1_000), "g", 2, FAILURE, FAILURE, "tb", None)


def record(key: bytes | None, value: bytes | None, *headers: tuple[str, bytes | None]) -> Record:
    """That stands in topic "again" now."""
    return Record("again", 0, 99, key, value, headers)


@pytest.mark.parametrize(("key", "value"), [(b"k", b"v"), (None, b"v"), (b"k", None), (b"", b""), (None, None)])
def test_a_record_that_was_sent_back_stood_where_its_letter_says(key: bytes | None, value: bytes | None) -> None:
    """Also when it is sent back a second time, whatever the second letter says."""
    header = replayed_origin(record(key, value), LETTER)
    again = record(key, value, ("h", b"x"), ("other", b"a 1 2 3 4"), header)
    assert first_place(again) == LETTER.origin
    second = LETTER._replace(origin=Origin("again", 0, 99, 5_000))
    assert replayed_origin(again, second) == header


def test_a_record_made_of_another_is_not_that_one() -> None:
    """It has its headers, and other bytes: moved between key and value, too."""
    header = replayed_origin(record(b"k", b"v"), LETTER)
    for key, value in [(b"k", b"w"), (b"l", b"v"), (b"kv", b""), (b"v", b"k"), (None, b"kv"), (b"k", None)]:
        other = record(key, value, header)
        assert first_place(other) == Origin("again", 0, 99, other.timestamp)
        assert replayed_origin(other, LETTER) != header


@pytest.mark.parametrize(
    "value", [None, b"", b"orders 3 7", b"\xff\xfe", b"orders x 7 1000 %d", b"orders 3 7 1000 %d more"]
)
def test_a_header_that_nobody_wrote_counts_for_nothing(value: bytes | None) -> None:
    """Damaged, or of somebody else; a right checksum makes no number of a text."""
    name, written = replayed_origin(record(b"k", b"v"), LETTER)
    assert written is not None
    if value is not None and b"%d" in value:
        value %= int(written.rpartition(b" ")[2])
    odd = record(b"k", b"v", (name, value))
    assert first_place(odd) == odd.origin


def test_a_record_of_a_retry_topic_tells_its_first_topic() -> None:
    """From its headers, or from its history once that was given back; one without either does not say."""
    letter = record(b"k", b"v", *write_letter((("h", b"x"),), LETTER))
    assert origin_topic(letter) == "orders"
    RetryTopics({"again": 1.0}, lambda _: (0.0, -math.inf)).may_attempt(letter)
    assert letter.headers == (("h", b"x"),)
    assert origin_topic(letter) == "orders"
    assert origin_topic(record(b"k", b"v")) is None
