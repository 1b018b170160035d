"""Records put away by the hundred thousand: an increment is never too large for its topic, and is read whole."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from aioparallel import FailurePolicy, Record, RetryPolicy
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Committed, Generation
from aioparallel.offsets import OffsetMap
from aioparallel.persistence.state import unapplied
from aioparallel.persistence.state.increments import (
    Increment,
    Parts,
    Place,
    begins_of_increment,
    decode_increment,
    decode_part,
    decode_part_key,
    decode_place,
    encode_increment,
    encode_part,
    encode_part_key,
    encode_place,
)
from aioparallel.persistence.state.table import Table
from aioparallel.persistence.state.topics import StateTopics
from aioparallel.persistence.state.unapplied import LARGEST_PIECE, NONE, UnappliedOffsets, pieces_of, read_unapplied
from aioparallel.persistence.state.view import Restored, StateView
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient
from tests.support.memory.keeping_state import GROUP, P0, broker_of, keeping, sums, totals, write
from tests.support.waiting import until
from tests.unit.persistence.state.test_restores import NAMES
from tests.unit.persistence.state.test_trouble import both_slowly, committed, running

LIMIT = 2_000
"""Bytes that the topics take. In so many there is place for some thousand offsets."""


async def put_away(record: Record, error: Exception) -> None:
    """A dead letter."""


def member(broker: InMemoryBroker, together: bool, **given: Any) -> Any:
    """It has no full snapshot that would let go of anything, unless ``given`` says otherwise."""
    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=put_away)
    state = sums(**{"snapshot_after": 10**9, **given})
    return keeping(broker, state, together=together, failures=policy, max_concurrency=500, max_buffered=20_000)


async def refuse_odd(record: Record) -> None:
    """Every other one, as by chance."""
    if is_bad(int(record.value or b"")):
        raise ValueError


def is_bad(number: int) -> bool:
    """Without a pattern that would be short to write."""
    return random.Random(number).random() < 0.5


@both_slowly
async def test_offsets_that_one_record_does_not_hold_are_written_in_several(together: bool) -> None:
    """A commit goes on being taken, by a topic of whatever size, and a restart has the very state: what was put away is
    not in it."""
    broker = broker_of()
    broker.max_message_bytes = LIMIT
    numbers = range(20_000)
    write(broker, *numbers)
    good = totals(*[number for number in numbers if not is_bad(number)])
    async with running(member(broker, together), refuse_odd):
        await until(lambda: committed(broker) == len(numbers))
    last = [record for record in broker.records(NAMES.increments) if decode_place(record.key)][-1]
    parts = decode_increment(last.value, 0).parts
    assert parts is not None
    assert parts.number > 1
    assert max(len(record.value or b"") for record in broker.records(NAMES.increments)) < LIMIT
    consumer = member(broker, together)
    async with running(consumer, refuse_odd):
        assert consumer.states(P0) == good
        stats = consumer.stats().state
        assert stats is not None
        assert stats.unapplied == sum(map(is_bad, numbers))
        # And the other way round: what is let go of takes one record again.
        write(broker, 20_000)
        await until(lambda: committed(broker) == 20_001)


@both_slowly
async def test_full_snapshots_let_go_of_what_was_put_away_before(
    together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many keys there are, one is due when many were put away; the parts that are not needed any more are
    deleted."""
    monkeypatch.setattr("aioparallel.persistence.state.view._MANY", 2_000)
    broker = broker_of()
    broker.max_message_bytes = LIMIT
    consumer = member(broker, together)
    async with running(consumer, refuse_odd):
        for begin in range(0, 16_000, 4_000):
            write(broker, *range(begin, begin + 4_000))
            await until(partial(is_committed, broker, begin + 4_000))
            # In virtual time: it is looked each half second whether one is due.
            await until(partial(has_snapshots, consumer, begin // 8_000 + 1))
        assert snapshots_of(consumer) >= 2
        await until(lambda: consumer.stats().state.unapplied < 4_500)
    newest: dict[bytes, bytes | None] = {}
    for record in broker.records(NAMES.increments):
        newest[record.key or b""] = record.value
    last = decode_increment([v for k, v in newest.items() if decode_place(k)][-1], 0)
    left = [k for k, v in newest.items() if decode_part_key(k) and v is not None]
    assert len(left) <= (last.parts.number if last.parts else 0) + 4


def is_committed(broker: InMemoryBroker, offset: int) -> bool:
    """Whether the group stands there."""
    return committed(broker) == offset


def has_snapshots(consumer: Any, count: int) -> bool:
    """Whether it has written so many."""
    return snapshots_of(consumer) >= count


def snapshots_of(consumer: Any) -> int:
    """Full snapshots that it has written."""
    return int(consumer.stats().state.snapshots)


@both_slowly
async def test_a_full_snapshot_is_written_in_pieces_that_its_topic_takes(together: bool) -> None:
    """Also the value of one key that is larger than any record may be."""
    broker = broker_of()
    broker.max_message_bytes = LIMIT
    large = random.Random(1).randbytes(20_000)
    state: dict[str, Any] = {
        "initial": b"",
        "apply": lambda before, record: before + large[: int(record.value)],
        "dump": bytes,
        "load": bytes,
        "snapshot_after": 5,
    }
    broker.append("in", b"20000", key=b"large", partition=0)
    for _ in range(9):
        broker.append("in", b"1", key=b"small", partition=0)
    consumer = keeping(broker, sums(**state), together=together)
    async with running(consumer):
        await until(lambda: snapshots_of(consumer) == 1)
    consumer = keeping(broker, sums(**state), together=together)
    async with running(consumer):
        assert consumer.states(P0) == {b"large": large, b"small": large[:1] * 9}


async def test_a_value_that_no_full_snapshot_holds_is_told_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its size. Commits go on."""
    monkeypatch.setattr("aioparallel.persistence.state.writing.LARGEST_VALUE", 3)
    broker = broker_of()
    consumer = keeping(broker, sums(snapshot_after=1))
    async with running(consumer):
        broker.append("in", b"1000", key=b"large", partition=0)
        await until(lambda: consumer.health().problems)
        (problem,) = consumer.health().problems
        assert "returned 4 bytes for the value of key b'large'; a full snapshot allows 3 at most" in problem.message
        assert committed(broker) == 1


# -- what is written ------------------------------------------------------------------------------------


def test_few_are_written_as_ever() -> None:
    """Byte by byte: a reader of version 1 reads on."""
    increment = Increment(Committed(12, "map"), 17, 0, 5, NONE, [])
    assert encode_increment(increment) == (
        b'{"v":1,"base":12,"map":"map","generation":17,"origin":0,"at":5,"unapplied":[0,""],"snapshots":[]}'
    )
    view = StateView(sums(), Assignment(P0, generation=Generation(5, "m")), lambda: 0.0)
    view.restore(Restored(Table(), 0, range(0, 900_000, 3), (), 0))
    made, parts = view.increment(Committed(0, ""), LARGEST_PIECE)
    assert (made.parts, parts) == (None, ())
    assert b'{"v":1,' in encode_increment(made)[:10]


def test_an_increment_with_parts_is_none_of_version_1() -> None:
    """Who knows that one alone must not take it for one in which nothing was put away: it reads another version, and no
    key of an increment in those of its parts."""
    parts = Parts("9f", 3)
    value = encode_increment(Increment(Committed(12, "map"), 17, 0, 5, NONE, [], parts=parts))
    assert json.loads(value)["v"] == 2
    assert decode_increment(value, 4) == Increment(Committed(12, "map"), 17, 0, 5, NONE, [], 4, parts=parts)
    assert value.startswith(begins_of_increment(Committed(12, "map")))
    place = Place(GROUP, P0, 7)
    key = encode_part_key(place, 33, 2)
    assert decode_place(key) is None
    assert decode_part_key(key) == (place, 2)
    assert decode_part_key(encode_place(place, 33)) is None
    (text,) = pieces_of([1, 5, 9], 100)
    assert decode_part(encode_part(parts, text), parts) == (1, 5, 9)
    assert decode_part(encode_part(Parts("9e", 3), text), parts) is None


def test_pieces_hold_all_offsets_whatever_their_number() -> None:
    """Each within its bytes. More than a map may list are several."""
    chance = random.Random(1)
    offsets = sorted(chance.sample(range(10**9), 30_000))
    pieces = [*pieces_of(offsets, 5_000)]
    assert [offset for piece in pieces for offset in read_unapplied(piece)] == offsets
    assert all(len(piece.text.encode()) <= 5_000 for piece in pieces)
    assert len(pieces) < 60
    many = range(1_500_000)
    assert sum(len(read_unapplied(piece)) for piece in pieces_of(many, LARGEST_PIECE)) == len(many)
    assert [*pieces_of([], 5)] == []


def test_what_is_written_of_many_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """To write them all anew with each commit would hold the event loop; what is read is the same."""
    monkeypatch.setattr(unapplied, "_SEALED", 100)
    written: list[int] = []
    write_one = unapplied.write_unapplied

    def counted(offsets: Any) -> Any:
        written.append(len(offsets))
        return write_one(offsets)

    monkeypatch.setattr(unapplied, "write_unapplied", counted)
    offsets = UnappliedOffsets()
    expected: set[int] = set()
    chance = random.Random(2)

    def read() -> set[int]:
        return {offset for text in offsets.texts(1_000) for offset in read_unapplied(text)}

    for _ in range(60):
        for _ in range(10):
            offset = chance.randrange(10**6)
            expected.add(offset)
            offsets.add(offset)
        assert read() == expected
    assert max(written) <= 110
    offsets.keep(lambda offset: offset % 2 == 0)
    expected = {offset for offset in expected if offset % 2 == 0}
    assert read() == expected
    assert len(offsets) == len(expected)


# -- what is read ---------------------------------------------------------------------------------------


async def test_parts_are_found_far_before_their_increment() -> None:
    """Others write between them. Where one is not there, that is said, and not taken for none."""
    broker = broker_of()
    topics = StateTopics(NAMES, GROUP, InMemoryClient(broker, GROUP))
    parts, place = Parts("9f", 3), Place(GROUP, P0, 0)
    texts = [*pieces_of(sorted(random.Random(3).sample(range(3_000), 400)), 100)][:3]
    assert len(texts) == 3

    def wrote(key: bytes, value: bytes | None) -> None:
        broker.append(NAMES.increments, value, key=key, partition=0)

    for number, text in enumerate(texts):
        wrote(encode_part_key(place, 1, number), encode_part(parts, text))
        for other in range(500):
            wrote(encode_part_key(Place("other", P0, 0), 1, number), encode_part(parts, text))
            wrote(encode_part_key(place, 2, number), encode_part(Parts(f"{other}", 3), text))
    wrote(encode_place(place, 1), encode_increment(Increment(Committed(3_000, ""), 1, 0, 0, NONE, [], parts=parts)))
    found = (await topics.last_increments({P0: Committed(3_000, "")}, 1, 1))[P0]
    assert isinstance(found, Increment)
    expected = {offset for text in texts for offset in read_unapplied(text)}
    assert set(await topics.unapplied_of(P0, found, 5)) == expected
    broker.compact(topics.place_of(P0), {0})
    with pytest.raises(ValueError, match="it has 2 of 3 parts"):
        await topics.unapplied_of(P0, found, 5)


@both_slowly
async def test_a_part_that_is_gone_ends_nothing(together: bool, caplog: pytest.LogCaptureFixture) -> None:
    """As an increment that cannot be read: what it would have said is not known, and the log says so."""
    broker = broker_of()
    broker.max_message_bytes = LIMIT
    write(broker, *range(20_000))
    async with running(member(broker, together), refuse_odd):
        await until(lambda: committed(broker) == 20_000)
    log = broker.records(NAMES.increments)
    broker.compact(topics_place(), {record.offset for record in log if decode_part_key(record.key)})
    consumer = member(broker, together)
    async with running(consumer, refuse_odd):
        assert consumer.states(P0) == totals(*range(20_000))
        assert "records that were dead-lettered or skipped since its full snapshot are in the state" in caplog.text


def topics_place() -> Any:
    """Where the increments of the partition stand."""
    return type(P0)(NAMES.increments, 0)


Look = Callable[[int], bool]


def test_a_position_lets_go_of_nothing_that_it_does_not_cover() -> None:
    """What is let go of is in the older of two full snapshots."""
    looker: Look = OffsetMap(5, 8, (6,)).looker()
    offsets = UnappliedOffsets(range(12))
    offsets.keep(lambda offset: not looker(offset))
    assert [offset for text in offsets.texts(1_000) for offset in read_unapplied(text)] == [6, 9, 10, 11]
