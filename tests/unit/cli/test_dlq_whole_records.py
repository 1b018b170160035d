"""Letters without their value: where the rest is read from, and what is said when it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from aioparallel.cli.dlq.printing import details, json_details, json_summary
from aioparallel.cli.dlq.replaying import PORTION, Destination, Replay
from aioparallel.cli.dlq.selecting import DeadLetter
from aioparallel.cli.dlq.whole_records import Sources
from aioparallel.delivery.first_places import first_place
from aioparallel.delivery.letters import Letter, original_headers, read_letter, write_letter
from aioparallel.delivery.shrinking import SentLetter, smaller
from aioparallel.group.client import Fetched
from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Failure, Headers, Origin, Outgoing, Record, TopicPartition
from aioparallel.testing.memory import Fault, InMemoryBroker, InMemoryClient, Request

from .dead_letters import P0, TOPIC, Group, letter_record, read_of
from .test_dlq_replaying import ORDERS, Acknowledging, planned

OWN: Headers = (("trace", b"abc"),)
VALUE = b'{"order": 7}' * 100


def cut_record(
    key: bytes | None = b"key", value: bytes | None = VALUE, own: Headers = OWN, offset: int = 0, steps: int = 2
) -> Record:
    """A letter of the record of "orders" at offset 0, without its largest part."""
    failure = Failure(1000.0, "app.Refused", "no")
    letter = Letter(Origin("orders", 0, 0, 5), "billing", 3, failure, failure, "Traceback: here")
    sent = SentLetter(TOPIC, value, key, write_letter(own, letter))
    for _ in range(steps):
        less = smaller(sent, "drop_value")
        assert less is not None
        sent = less
    return Record(TOPIC, 0, offset, sent.key, sent.value, tuple(sent.headers), timestamp=7)


def dead(record: Record) -> DeadLetter:
    return DeadLetter(record, read_letter(record), settled=False)


@pytest.fixture
async def broker() -> InMemoryBroker:
    broker = InMemoryBroker()
    broker.create_topic("orders")
    broker.append("orders", VALUE, key=b"key", headers=OWN)
    return broker


@pytest.fixture
async def sources(broker: InMemoryBroker) -> AsyncGenerator[Sources, None]:
    client = InMemoryClient(broker, "dlq")
    await client.start(1)
    yield Sources(client)
    await client.stop(1)


async def test_the_value_is_read_from_where_the_record_stands(sources: Sources) -> None:
    """The letter is the whole record then, with its story; one that holds all is as it was."""
    found = await sources.completed(dead(cut_record()))
    assert (found.record.value, found.record.key, found.is_completed, found.gone) == (VALUE, b"key", True, "")
    assert original_headers(found.record.headers) == OWN
    shown = details(found, 1060)
    assert "  not in it   all of the value's 1,200 bytes, read from its origin" in shown
    assert '{"order": 7}' in shown
    whole = letter_record(1)
    assert await sources.whole(whole) is whole


async def test_a_key_and_headers_are_read_as_well(broker: InMemoryBroker, sources: Sources) -> None:
    """Those that the letter holds not."""
    large = bytes(2_000)
    broker.append("orders", b"v", key=large, headers=(("large", large), *OWN))
    key_cut = await sources.whole(cut_record())
    assert isinstance(key_cut, Record)
    record = cut_record(large, b"v", (("large", large), *OWN), steps=3)
    assert (record.key, original_headers(record.headers)) == (None, OWN)
    moved = tuple((n, b"1" if n == "aioparallel.origin.offset" else v) for n, v in record.headers)
    found = await sources.whole(Record(TOPIC, 0, 3, record.key, record.value, moved))
    assert isinstance(found, Record)
    assert (found.key, original_headers(found.headers)) == (large, (("large", large), *OWN))


Change = Callable[[InMemoryBroker], Any]


def _deleted(broker: InMemoryBroker) -> None:
    broker.append("orders", b"next")
    broker.delete_before(TopicPartition("orders", 0), 1)


def _compacted(broker: InMemoryBroker) -> None:
    broker.append("orders", b"next")
    broker.compact(TopicPartition("orders", 0), {0})


def _made_anew(broker: InMemoryBroker) -> None:
    broker.delete_topic("orders")
    broker.create_topic("orders")
    broker.append("orders", b"another", key=b"key")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_deleted, "the record is gone: orders-0 holds the offsets 1 to 1 only, and its offset was 0"),
        (_compacted, "the record is gone: orders-0 does not hold offset 0 any more; it may be compacted"),
        (_made_anew, "the record is gone: orders-0 offset 0 is another record now; was the topic created anew?"),
        (
            lambda broker: broker.delete_topic("orders"),
            "the record is gone: partition 0 of orders no longer exists",
        ),
    ],
)
async def test_when_it_is_gone_that_is_said(
    broker: InMemoryBroker, sources: Sources, change: Change, said: str
) -> None:
    """And nothing else is taken for it; what the letter holds is shown."""
    change(broker)
    found = await sources.completed(dead(cut_record()))
    assert (found.gone, found.is_completed, found.record.value) == (said, False, b"")
    assert f"all of the value's 1,200 bytes, and cannot be read: {said}" in details(found, 1060)
    told = json_details(found)
    assert (told["completed"], told["gone"], told["value"]) == (False, said, "")
    left_out = json_summary(found)["left_out"]
    assert isinstance(left_out, dict)
    assert (left_out["value"], left_out["kept"]) == (1_200, 0)


async def test_a_broker_that_does_not_answer_is_not_taken_for_a_record_that_is_gone(
    broker: InMemoryBroker, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not known then."""
    monkeypatch.setattr("aioparallel.cli.dlq.whole_records.READ_TIMEOUT", 0.2)
    broker.faults.always(Request.FETCH, Fault(is_request_lost=True))
    found = await sources.whole(cut_record())
    assert found == "orders-0 offset 0 could not be read within 0.2 s; is its broker available?"


async def test_replay_sends_the_whole_record(sources: Sources) -> None:
    """With where it stood first, which is known by the whole record's bytes; it is settled."""
    records = [cut_record(), letter_record(1, value=b"1")]
    marks, chosen = await planned(Group(), records)
    producer = Acknowledging([])
    replay = Replay(producer, marks, ORDERS, whole=sources.whole)
    await replay.run(read_of(Fetched(P0, records, 2)), chosen)
    first, _ = producer.sent
    assert (first.topic, first.key, first.value, first.headers[:1]) == ("orders", b"key", VALUE, OWN)
    sent = Record("orders", 0, 9, first.key, first.value, tuple(first.headers))
    assert first_place(sent) == Origin("orders", 0, 0, 5)
    assert (replay.result.replayed, replay.result.without_origin) == (2, 0)


async def test_replay_sends_nothing_of_a_record_that_is_gone(broker: InMemoryBroker, sources: Sources) -> None:
    """It stays open, and the reason is told; the others are sent."""
    broker.delete_topic("orders")
    records = [cut_record(), letter_record(1, value=b"1")]
    group = Group()
    marks, chosen = await planned(group, records)
    producer = Acknowledging([])
    replay = Replay(producer, marks, ORDERS, whole=sources.whole)
    await replay.run(read_of(Fetched(P0, records, 2)), chosen)
    assert [one.value for one in producer.sent] == [b"1"]
    assert replay.result.failed == {
        "a part of it is not in the letter, and the record is gone: partition 0 of orders no longer exists": 1
    }
    assert not marks[0].is_settled(0)


class Tight(Acknowledging):
    """Its topic takes nothing with the header that says where a record stood first."""

    def _answer(self, outgoing: Outgoing, delivered: Any) -> None:
        if any(name == "aioparallel.replayed.origin" for name, _ in outgoing.headers):
            delivered(ProduceFailed(outgoing.topic, 0, "too large", passing=False, too_large=True))
        else:
            super()._answer(outgoing, delivered)


async def test_a_record_that_fits_its_topic_only_without_our_header_goes_without_it(sources: Sources) -> None:
    """Else it could never go back to where it came from. It is counted."""
    records = [cut_record()]
    marks, chosen = await planned(Group(), records)
    producer = Tight([])
    replay = Replay(producer, marks, ORDERS, whole=sources.whole)
    await replay.run(read_of(Fetched(P0, records, 1)), chosen)
    assert (producer.sent[-1].value, producer.sent[-1].headers) == (VALUE, OWN)
    assert (replay.result.replayed, replay.result.without_origin, replay.result.failed) == (1, 1, {})


async def test_what_is_read_of_sources_is_sent_before_more_is_read() -> None:
    """A topic of small letters may stand for gigabytes."""
    value = bytes(PORTION // 3)
    template = cut_record(value=value)
    records = [
        Record(TOPIC, 0, offset, template.key, template.value, template.headers, timestamp=7) for offset in range(10)
    ]
    marks, chosen = await planned(Group(), records)
    log: list[str] = []

    async def whole(record: Record) -> Record | str:
        log.append("read")
        await asyncio.sleep(0)
        return Record(TOPIC, 0, record.offset, record.key, b"%d" % record.offset, record.headers)

    destination = Destination(None, False, {TopicPartition("orders", 0)})
    await Replay(Acknowledging(log), marks, destination, whole=whole).run(read_of(Fetched(P0, records, 10)), chosen)
    run = longest = 0
    for line in log:
        run = run + 1 if line == "read" else 0
        longest = max(longest, run)
    assert longest == 4
    assert log.count("read") == 10


def brokers_letter(key: bytes | None = None, value: bytes | None = None, **changed: bytes | None) -> Record:
    """A letter that a share group's broker has written of the record of "orders" at offset 0."""
    headers: dict[str, bytes | None] = {
        "__dlq.errors.topic": b"orders",
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"0",
        "__dlq.errors.group": b"workers",
        "__dlq.errors.delivery.count": b"5",
        "__dlq.errors.message": b"Offset rejected by client.",
        **{f"__dlq.errors.{name}": text for name, text in changed.items()},
    }
    return Record(TOPIC, 0, 0, key, value, tuple(headers.items()), timestamp=1_000_000)


async def test_a_brokers_letter_is_completed(sources: Sources) -> None:
    """It has no part of the record; the time of the record comes from the source, too."""
    before = dead(brokers_letter())
    assert before.letter is not None
    assert (before.state, before.letter.attempts, before.letter.is_of_broker) == ("open", 5, True)
    assert before.letter.last == Failure(1000.0, "broker", "Offset rejected by client.")
    found = await sources.completed(before)
    assert (found.record.key, found.record.value, original_headers(found.record.headers)) == (b"key", VALUE, OWN)
    assert found.letter is not None
    assert found.letter.origin == Origin("orders", 0, 0, 0)
    assert "not in it   its key, value and headers, read from its origin" in details(found, 1060)
    assert json_details(found)["completed"] is True
    copied = await sources.completed(dead(brokers_letter(b"key", VALUE)))
    assert "not in it   its headers, read from its origin" in details(copied, 1060)


async def test_a_record_that_is_newer_than_a_brokers_letter_is_another_one(
    broker: InMemoryBroker, sources: Sources
) -> None:
    """There is no checksum; clocks may differ by a minute."""
    for offset, ahead in ((1, 60_000), (2, 60_001)):
        broker.append("orders", VALUE, key=b"key", timestamp=1_000_000 + ahead)
        found = await sources.whole(brokers_letter(offset=b"%d" % offset))
        assert ("is another record now" in str(found)) is (offset == 2)


@pytest.mark.parametrize("changed", [{"topic": None}, {"partition": b"x"}, {"offset": None}, {"delivery.count": b"?"}])
def test_a_damaged_letter_of_a_broker_is_none(changed: dict[str, bytes | None]) -> None:
    """As one of ours."""
    assert read_letter(brokers_letter(**changed)) is None
