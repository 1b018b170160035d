"""``until="end"`` in the new group protocol, in which partitions may come later: the end is that of the group."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack

import pytest

from aioparallel.group.client import Committed
from aioparallel.records.record import Record, TopicPartition
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient
from tests.support.clusters.member import Member
from tests.support.inside import run_of
from tests.support.memory.consuming import GROUP, Seen, committed, consumer_of, produce
from tests.support.waiting import until

COUNT = 12
PLACES = [TopicPartition("m", number) for number in range(4)]


@pytest.fixture
def broker() -> InMemoryBroker:
    """A topic of four partitions, with records in each."""
    broker = InMemoryBroker()
    broker.create_topic("m", len(PLACES))
    for place in PLACES:
        produce(broker, [b"k%d" % n for n in range(COUNT)], place.partition, "m")
    return broker


async def joined(broker: InMemoryBroker) -> Member:
    """A member that has all partitions, and reads nothing."""
    client = InMemoryClient(
        broker, GROUP, group_protocol="consumer", session_timeout=1.0, heartbeat_interval=0.02, rebalance_timeout=60.0
    )
    member = Member(client, 30.0)
    await member.join(["m"])
    await member.holds(set(PLACES))
    return member


def positions(broker: InMemoryBroker) -> Mapping[TopicPartition, int | None]:
    return {place: committed(broker, place) for place in PLACES}


async def test_waits_for_what_a_crashed_member_has(broker: InMemoryBroker) -> None:
    """Its session lasts a second more. A run that ended before would have read nothing, without an error."""
    crashed = await joined(broker)
    crashed.client.crash()  # type: ignore[attr-defined]
    seen = Seen()
    async with consumer_of(broker, "m", protocol="consumer", until="end") as consumer:
        await consumer.run(seen)
    assert sorted((one.partition, one.offset) for one in seen.ended) == [
        (place.partition, offset) for place in PLACES for offset in range(COUNT)
    ]
    assert positions(broker) == dict.fromkeys(PLACES, COUNT)


async def test_two_runs_share_and_end(broker: InMemoryBroker) -> None:
    """Each record runs once. Both end when the group has committed all."""
    seen = Seen(0.01)
    async with (
        consumer_of(broker, "m", protocol="consumer", until="end") as one,
        consumer_of(broker, "m", protocol="consumer", until="end") as other,
    ):
        await asyncio.gather(one.run(seen), other.run(seen))
    assert len(seen.ended) == len(PLACES) * COUNT
    assert positions(broker) == dict.fromkeys(PLACES, COUNT)


async def test_runs_that_commit_rarely_do_not_wait_for_each_other(broker: InMemoryBroker) -> None:
    """Each waits for what the other one has still to commit."""
    began, seen = asyncio.get_running_loop().time(), Seen(0.01)
    async with (
        consumer_of(broker, "m", protocol="consumer", until="end", commit_interval=1000.0) as one,
        consumer_of(broker, "m", protocol="consumer", until="end", commit_interval=1000.0) as other,
    ):
        await asyncio.gather(one.run(seen), other.run(seen))
    assert asyncio.get_running_loop().time() - began < 20.0
    assert len(seen.ended) == len(PLACES) * COUNT


async def test_takes_over_from_one_that_leaves(broker: InMemoryBroker) -> None:
    """A run that is through takes the partitions of another one that ends meanwhile, and reads these to the end."""
    seen = Seen()

    async def hang(_: Record) -> None:
        await asyncio.get_running_loop().create_future()

    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(consumer_of(broker, "m", protocol="consumer"))
        hanging = asyncio.create_task(other.run(hang))
        await until(lambda: other._engine is not None and len(run_of(other).held) == len(PLACES))
        async with consumer_of(broker, "m", protocol="consumer", until="end") as consumer:
            running = asyncio.create_task(consumer.run(seen))
            await until(lambda: len(seen.ended) == 2 * COUNT, what="its half")
            hanging.cancel()
            await asyncio.wait([hanging])
            await stack.aclose()
            await running
    assert {(one.partition, one.offset) for one in seen.ended} == {
        (place.partition, offset) for place in PLACES for offset in range(COUNT)
    }


async def test_does_not_wait_for_ever(broker: InMemoryBroker) -> None:
    """A member that lives and never commits holds up the others until one that has crashed would be gone."""
    began, member = asyncio.get_running_loop().time(), await joined(broker)
    seen = Seen()
    async with consumer_of(broker, "m", protocol="consumer", until="end", rebalance_timeout=30.0) as consumer:
        await consumer.run(seen)
    assert 90.0 <= asyncio.get_running_loop().time() - began < 100.0
    assert len(seen.ended) == 2 * COUNT
    await member.client.stop(5.0)


async def test_does_not_wait_for_what_is_empty() -> None:
    """Other programs commit nothing of a partition without records, and none of its records is left to wait for."""
    broker = InMemoryBroker()
    broker.create_topic("m", len(PLACES))
    began, member = asyncio.get_running_loop().time(), await joined(broker)
    async with consumer_of(broker, "m", protocol="consumer", until="end") as consumer:
        await consumer.run(Seen())
    assert asyncio.get_running_loop().time() - began < 20.0
    await member.client.stop(5.0)


async def test_a_log_that_does_not_answer_is_not_needed(
    broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group has committed all of the others' partitions: that is enough, also if a leader is gone by then."""
    member = await joined(broker)
    seen = Seen()
    async with consumer_of(broker, "m", protocol="consumer", until="end") as consumer:
        running = asyncio.create_task(consumer.run(seen))
        await until(lambda: len(seen.ended) == 2 * COUNT)

        async def no_answer(*_: object) -> Mapping[TopicPartition, int]:
            raise TimeoutError

        monkeypatch.setattr(InMemoryClient, "end_offsets", no_answer)
        began = asyncio.get_running_loop().time()
        for place in member.held:
            broker.group(GROUP).offsets[place] = Committed(COUNT, "")
        await running
    assert asyncio.get_running_loop().time() - began < 20.0
    await member.client.stop(5.0)
