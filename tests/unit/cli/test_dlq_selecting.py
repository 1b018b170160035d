from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from aioparallel.cli.dlq.selecting import (
    DeadLetter,
    Kept,
    OriginFilter,
    Selection,
    parse_offsets,
    parse_origin,
)
from aioparallel.cli.parsing import parse_time
from aioparallel.delivery.letters import read_letter
from aioparallel.group.client import Span
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import Record

from .dead_letters import letter_record, stranger


def dead(record: Record) -> DeadLetter:
    return DeadLetter(record, read_letter(record), settled=False)


LETTER = dead(
    letter_record(7, partition=2, at=500.0, origin=("orders", 3, 9), error="app.errors.Refused", key=b"\xc3\xb6")
)


@pytest.mark.parametrize(
    ("selection", "matches"),
    [
        (Selection(), True),
        (Selection(partition=(2,)), True),
        (Selection(partition=(0, 1)), False),
        (Selection(partition=(2,), offsets=Span(7, 8)), True),
        (Selection(partition=(2,), offsets=Span(8, 9)), False),
        (Selection(origin=OriginFilter("orders")), True),
        (Selection(origin=OriginFilter("orders", 3)), True),
        (Selection(origin=OriginFilter("orders", 3, 9)), True),
        (Selection(origin=OriginFilter("orders", 0)), False),
        (Selection(origin=OriginFilter("order")), False),
        (Selection(error="Refused"), True),
        (Selection(error="app.errors.Refused"), True),
        (Selection(error="errors.Refused"), False),
        (Selection(since=500.0, until=500.0), True),
        (Selection(since=500.1), False),
        (Selection(until=499.9), False),
        (Selection(key="ö".encode()), True),
        (Selection(key=b"o"), False),
        (Selection(error="Refused", key=b"o"), False),
    ],
)
def test_matches(selection: Selection, matches: bool) -> None:
    """A letter must meet each criterion that is given."""
    assert selection.matches(LETTER) is matches


@pytest.mark.parametrize(
    ("error", "matches"),
    [
        ("Reject", True),
        ("aioparallel.errors.Reject", True),
        ("aioparallel.records.errors.Reject", True),
        ("aioparallel.records.errors.Other", False),
        ("records.errors.Reject", False),
        ("elsewhere.Reject", False),
        ("app.Before", False),
    ],
)
@pytest.mark.parametrize("message", ["", ": no"])
def test_a_class_that_is_seen_in_two_modules(error: str, matches: bool, message: str) -> None:
    """The letter names one, and its traceback the other: both are found, but no other class of the traceback."""
    record = letter_record(0, error="aioparallel.errors.Reject")
    before = "app.Before: first\n\nDuring handling of the above exception, another exception occurred:\n\n"
    text = f"{before}Traceback (most recent call last):\n  in handle\naioparallel.records.errors.Reject{message}\n"
    letter = read_letter(record)
    assert letter is not None
    one = DeadLetter(record, letter._replace(traceback=text), settled=False)
    assert Selection(error=error).matches(one) is matches


def test_records_that_are_no_letters() -> None:
    """They have a place and a key, and can meet nothing else."""
    record = dead(stranger(3))
    assert Selection(partition=(0,), offsets=Span(3, 4), key=b"key").matches(record)
    for selection in (Selection(since=0.0), Selection(error="X"), Selection(origin=OriginFilter("orders"))):
        assert not selection.matches(record)


@pytest.mark.parametrize("partitions", [(), (0, 1)])
def test_offsets_need_one_partition(partitions: tuple[int, ...]) -> None:
    """Offsets without a partition, or with two, are refused with what to do."""
    with pytest.raises(ConfigurationError, match="exactly one --partition"):
        Selection(partition=partitions, offsets=Span(1, 2))


def test_not_oldest_and_newest() -> None:
    """--limit and --newest together are refused."""
    with pytest.raises(ConfigurationError, match="--limit"):
        Selection(limit=1, newest=1)


@pytest.mark.parametrize("count", [1, 5, 200])
def test_oldest_and_newest(count: int) -> None:
    """Whatever the order they come in, the oldest or the newest are kept, and given back by age."""
    ages = [(float(n // 3), n % 3, n) for n in range(100)]
    shuffled = random.Random(count).sample(ages, len(ages))
    for oldest, newest, expected in ((count, None, ages[:count]), (None, count, ages[-count:]), (None, None, ages)):
        kept: Kept[object] = Kept(Selection(limit=oldest, newest=newest))
        for age in shuffled:
            kept.take(age, age)
        assert kept.items() == expected


def test_offsets() -> None:
    """One offset, or two with both included; anything else is refused, and so are both ways at once."""
    assert Selection(partition=(0,), offset=5).span == Span(5, 6)
    assert Selection(partition=(0,), offsets=Span(10, 20)).span == Span(10, 20)
    assert Selection().span is None
    assert parse_offsets("10-19") == Span(10, 20)
    for text in ("5", "9-3", "-4", "a-b"):
        with pytest.raises(ConfigurationError, match="offsets="):
            parse_offsets(text)
    with pytest.raises(ConfigurationError, match="--offsets"):
        Selection(partition=(0,), offset=1, offsets=Span(2, 4))


def test_origins() -> None:
    """A topic, with partition and offset where they are given; anything else is refused."""
    assert parse_origin("orders.v2") == OriginFilter("orders.v2")
    assert parse_origin("orders:3:17") == OriginFilter("orders", 3, 17)
    for text in ("", ":3", "orders:x", "orders:1:2:3", "orders:"):
        with pytest.raises(ConfigurationError, match="origin="):
            parse_origin(text)


def test_times() -> None:
    """How long ago, or an ISO time; without a zone it is this machine's."""
    now = 1_000_000.0
    assert parse_time("2h", now) == now - 7200
    assert parse_time("1.5d", now) == now - 129_600
    assert parse_time("2026-03-01T14:30:00+00:00", now) == datetime(2026, 3, 1, 14, 30, tzinfo=UTC).timestamp()
    assert parse_time("2026-03-01", now) == datetime(2026, 3, 1).astimezone().timestamp()
    for text in ("yesterday", "2", "h", "-2h", "2 h"):
        with pytest.raises(ConfigurationError, match="time="):
            parse_time(text, now)
