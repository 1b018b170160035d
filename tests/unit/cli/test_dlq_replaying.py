from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from typing import cast

import pytest

from aioparallel import BrokerOutputs
from aioparallel.cli.dlq.marks import Marks, MarksRefused
from aioparallel.cli.dlq.planning import make_plan
from aioparallel.cli.dlq.replaying import Destination, Replay
from aioparallel.cli.dlq.selecting import Selection
from aioparallel.delivery.producer import OnDelivered, PendingOutput
from aioparallel.group.client import Client, CommitFault, Committed, Fetched
from aioparallel.observe.health import Problem
from aioparallel.records.errors import ClientError, ProduceFailed
from aioparallel.records.record import Outgoing, Produced, Record, TopicPartition

from .dead_letters import P0, Group, Place, letter_record, read_of, stranger

ORDERS = Destination(None, False, {TopicPartition("orders", 0), TopicPartition("orders", 1)})


async def itself(record: Record) -> Record | str:
    """All of the record is in its letter."""
    return record


class Acknowledging:
    """A producer that acknowledges what ``refuses`` lets through; the values in ``holds`` it answers at ``stop``."""

    def __init__(
        self,
        log: list[str],
        refuses: Callable[[Outgoing], bool] = lambda _: False,
        holds: Collection[bytes] = (),
        *,
        passing: bool = False,
    ) -> None:
        self.log = log
        self.sent: list[Outgoing] = []
        self.held: list[tuple[Outgoing, OnDelivered]] = []
        self._refuses = refuses
        self._holds = holds
        self._passing = passing

    async def start(self, timeout: float) -> None: ...

    def outputs(self) -> Sequence[BrokerOutputs]:
        return ()

    def problems(self) -> Sequence[Problem]:
        return ()

    async def stop(self, timeout: float) -> None:
        self.log.append("stop")
        for outgoing, delivered in self.held:
            self._answer(outgoing, delivered)

    async def partitions(self, topics: Collection[str], timeout: float) -> set[TopicPartition]:
        raise NotImplementedError

    def send(self, outputs: Sequence[Outgoing], delivered: OnDelivered) -> None:
        (outgoing,) = outputs
        self.sent.append(outgoing)
        if outgoing.value in self._holds:
            self.held.append((outgoing, delivered))
        else:
            asyncio.get_running_loop().call_soon(self._answer, outgoing, delivered)

    def send_one(self, delivery: PendingOutput) -> None:
        raise NotImplementedError

    def _answer(self, outgoing: Outgoing, delivered: OnDelivered) -> None:
        if self._refuses(outgoing):
            delivered(ProduceFailed(outgoing.topic, 0, "too large", passing=self._passing))
        else:
            self.log.append(f"ack {(outgoing.value or b'').decode()}")
            delivered([Produced(outgoing.topic, 0, 1, 1)])


def letters(count: int) -> list[Record]:
    return [letter_record(offset, value=b"%d" % offset) for offset in range(count)]


async def planned(group: Group, records: Sequence[Record]) -> tuple[Marks, dict[int, set[int]]]:
    marks = Marks(cast("Client", group), "g", dict(group.committed_now), {P0: 0}, Place())
    plan = await make_plan(read_of(Fetched(P0, list(records), len(records))), marks, Selection())
    return marks, plan.by_partition()


async def test_marked_after_the_acknowledgement() -> None:
    """Once the place in the group is sure, each portion is sent, acknowledged, and only then committed; before the next
    one is sent."""
    log: list[str] = []
    group, records = Group(log=log), letters(4)
    marks, chosen = await planned(group, records)
    replay = Replay(Acknowledging(log), marks, ORDERS, whole=itself)
    await replay.run(read_of(Fetched(P0, records[:2], 2), Fetched(P0, records[2:], 4)), chosen)
    assert log == ["commit 0", "ack 0", "ack 1", "commit 2", "ack 2", "ack 3", "commit 4"]
    assert replay.result.replayed == 4
    assert not marks.unsaved


async def test_records_are_what_they_were() -> None:
    """Key, value and own headers as they were, the letter's headers gone, no partition, no timestamp; and one header
    that says where it stood first, whose checksum is that of key and value."""
    records = [letter_record(0, value=None, origin=("orders", 1, 0))]
    producer = Acknowledging([])
    marks, chosen = await planned(Group(), records)
    await Replay(producer, marks, ORDERS, whole=itself).run(read_of(Fetched(P0, records, 1)), chosen)
    origin = ("aioparallel.replayed.origin", b"orders 1 0 5 182456092")
    assert producer.sent == [Outgoing("orders", None, b"key", (("trace", b"abc"), origin), None, None)]


def test_destinations() -> None:
    """Another topic, the same partition; what cannot be is a reason."""
    record = letter_record(0, origin=("orders", 1, 0))
    there = {TopicPartition("orders", 0), TopicPartition("other", 0), TopicPartition("other", 1)}
    assert cast("Outgoing", Destination("other", True, there).outgoing(record)).partition == 1
    assert "has no partition 1" in cast("str", Destination(None, True, there).outgoing(record))
    assert "does not exist" in cast("str", Destination("gone", False, there).outgoing(record))
    assert Destination(None, False, there).outgoing(stranger(0)) == "no letter of ours"


async def test_refused_letters_stay_open() -> None:
    """What the broker refuses is counted with its reason and stays open between settled ones."""
    group, records = Group(), letters(3)
    marks, chosen = await planned(group, records)
    replay = Replay(Acknowledging([], lambda outgoing: outgoing.value == b"1"), marks, ORDERS, whole=itself)
    await replay.run(read_of(Fetched(P0, records, 3)), chosen)
    assert replay.result.replayed == 2
    assert sum(replay.result.failed.values()) == 1
    assert "too large" in next(iter(replay.result.failed))
    found = Marks(cast("Client", group), "g", group.committed_now, {P0: 0}, Place())
    assert [found[0].is_settled(offset) for offset in range(3)] == [True, False, True]


async def test_cancelled_between_sending_and_acknowledgement() -> None:
    """Cancelled while an acknowledgement is out: the producer is given time, and what arrived is marked."""
    log: list[str] = []
    group, records = Group(log=log), letters(3)
    marks, chosen = await planned(group, records)
    producer = Acknowledging(log, holds=[b"2"])
    task = asyncio.create_task(
        Replay(producer, marks, ORDERS, whole=itself).run(read_of(Fetched(P0, records, 3)), chosen)
    )
    async with asyncio.timeout(120):
        while len(log) < 2:
            await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["commit 0", "ack 0", "ack 1", "stop", "ack 2", "commit 3"]


async def test_reading_that_fails_marks_what_was_sent() -> None:
    """When reading breaks off, the error comes through and what was sent is marked."""
    group, records = Group(), letters(2)
    marks, chosen = await planned(group, records)

    async def breaking() -> AsyncGenerator[Fetched, None]:
        yield Fetched(P0, records[:1], 1)
        raise OSError("broken off")

    with pytest.raises(OSError, match="broken off"):
        await Replay(Acknowledging([]), marks, ORDERS, whole=itself).run(breaking(), chosen)
    assert group.committed_now[P0] == Committed(1, "")


async def test_refused_commit_stops_it() -> None:
    """When marks are refused nothing more is sent, and it is known what was sent without a mark."""
    group, records = Group(), letters(2)
    marks, chosen = await planned(group, records)
    await marks.confirm(0)
    group.faults = [CommitFault.REFUSED, CommitFault.REFUSED]
    producer = Acknowledging([])
    with pytest.raises(MarksRefused):
        await Replay(producer, marks, ORDERS, whole=itself).run(
            read_of(Fetched(P0, records[:1], 1), Fetched(P0, records[1:], 2)), chosen
        )
    assert len(producer.sent) == 1
    assert marks.unsaved == {0: [0]}


async def test_cluster_in_trouble() -> None:
    """A failure that may pass stops the replay after its portion; what was acknowledged in it is marked."""
    group, records = Group(), letters(4)
    marks, chosen = await planned(group, records)
    producer = Acknowledging([], lambda outgoing: outgoing.value == b"1", passing=True)
    replay = Replay(producer, marks, ORDERS, whole=itself)
    with pytest.raises(ClientError, match="does not accept letters now"):
        await replay.run(read_of(Fetched(P0, records[:2], 2), Fetched(P0, records[2:], 4)), chosen)
    assert len(producer.sent) == 2
    assert group.committed_now[P0] == Committed(1, "")


async def test_no_word_from_the_producer() -> None:
    """A producer that says nothing in time ends the replay; what it did acknowledge is marked."""
    group, records = Group(), letters(2)
    marks, chosen = await planned(group, records)
    producer = Acknowledging([], holds=[b"1"])
    replay = Replay(producer, marks, ORDERS, ack_timeout=0.05, whole=itself)
    with pytest.raises(ClientError, match="no acknowledgement for 1 letter"):
        await replay.run(read_of(Fetched(P0, records, 2)), chosen)
    assert group.committed_now[P0] == Committed(2, "")  # it answered when it was stopped


async def test_without_marks() -> None:
    """With no marks nothing is committed."""
    group, records = Group(), letters(2)
    _, chosen = await planned(group, records)
    replay = Replay(Acknowledging([]), None, ORDERS, whole=itself)
    await replay.run(read_of(Fetched(P0, records, 2)), chosen)
    assert replay.result.replayed == 2
    assert group.committed_now == {}


async def test_letters_deleted_meanwhile() -> None:
    """A chosen letter that is no longer there is a failure, not a silence."""
    records = letters(2)
    marks, chosen = await planned(Group(), records)
    replay = Replay(Acknowledging([]), marks, ORDERS, whole=itself)
    await replay.run(read_of(Fetched(P0, records[1:], 2)), chosen)
    assert replay.result.replayed == 1
    assert sum(replay.result.failed.values()) == 1


@pytest.mark.slow
async def test_failures_that_make_the_marks_too_large() -> None:
    """Letters that cannot be sent leave gaps. Where further marks would not fit, nothing more is sent there."""
    rng = random.Random(3)
    records = [letter_record(offset, value=rng.choice([b"0", b"1"])) for offset in range(90_000)]
    group = Group()
    marks, chosen = await planned(group, records)
    producer = Acknowledging([], lambda outgoing: outgoing.value == b"1")
    replay = Replay(producer, marks, ORDERS, whole=itself)
    size = 500
    reads = [Fetched(P0, records[at : at + size], at + size) for at in range(0, 90_000, size)]
    await replay.run(read_of(*reads), chosen)
    result = replay.result
    assert 61_000 < len(producer.sent) < 70_000
    assert result.full
    # At most the portion at which it was found out.
    assert len(marks.unsaved.get(0, [])) <= size
    assert result.replayed + sum(result.failed.values()) + sum(count for _, count in result.full.values()) == 90_000
