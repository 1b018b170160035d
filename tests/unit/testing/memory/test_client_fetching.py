"""Fetching from a broker that is slow, damaged, or down. What every client does is in tests/contract."""

from __future__ import annotations

import asyncio

import pytest

from aioparallel.records.errors import (
    FetchFailed,
    NotAuthorized,
    OffsetOutOfRange,
)
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import ErrorCode, Fault, InMemoryBroker, Request
from tests.support.memory.listener import P0, P1, joined, now, read


async def test_a_tail_that_was_lost(broker: InMemoryBroker) -> None:
    """After an unclean leader election a position past the new end is OffsetOutOfRange; one inside goes on."""
    client, _ = await joined(broker)
    for number in range(5):
        broker.append("t", str(number).encode(), partition=0)
    client.seek(P0, 0)
    await read(client, P0, 5)
    broker.truncate_tail(P0, 3)
    with pytest.raises(OffsetOutOfRange) as raised:
        await client.fetch({P0: 1})
    assert raised.value.offset == 5
    broker.append("t", b"other 3", partition=0)
    client.seek(P0, 2)
    assert [record.value for record in await read(client, P0, 2)] == [b"2", b"other 3"]
    await client.stop(1)


async def test_gaps_of_compaction(broker: InMemoryBroker) -> None:
    """Compacted offsets are passed: next_offset reaches the end although the last records are gone."""
    client, _ = await joined(broker)
    for _ in range(6):
        broker.append("t", b"", partition=0)
    broker.compact(P0, [0, 3, 4, 5])
    client.seek(P0, 0)
    [fetched] = await client.fetch({P0: 10})
    assert [record.offset for record in fetched.records] == [1, 2]
    assert fetched.next_offset == 6
    await client.stop(1)


async def test_corrupt_data_stops_its_partition_only(broker: InMemoryBroker) -> None:
    """Records before the damage are delivered, then FetchFailed names the offset, again and again; the other
    partition, full of records, neither hides it nor is held up; when mended it goes on, and nothing is lost."""
    client, _ = await joined(broker)
    for number in range(40):
        broker.append("t", b"", partition=number % 2)
    broker.corrupt(P0, 5)
    client.seek(P0, 0)
    client.seek(P1, 0)
    seen: dict[TopicPartition, list[int]] = {P0: [], P1: []}
    failures: list[FetchFailed] = []
    while len(seen[P1]) < 20:
        try:
            for fetched in await client.fetch({P0: 2, P1: 2}):
                seen[fetched.partition] += [record.offset for record in fetched.records]
        except FetchFailed as failed:
            failures.append(failed)
    assert seen == {P0: list(range(5)), P1: list(range(20))}
    assert len(failures) >= 3
    assert all(failed.partition == P0 and "offset 5" in str(failed) for failed in failures)
    broker.corrupt(P0, None)
    assert [record.offset for record in await read(client, P0, 15)] == list(range(5, 20))
    await client.stop(1)


async def test_a_denied_topic_and_a_denied_group_are_told(broker: InMemoryBroker) -> None:
    """fetch() raises NotAuthorized, naming topic or group, also when it is waiting."""
    client, _ = await joined(broker)
    client.seek(P0, 0)
    waiting = asyncio.create_task(client.fetch({P0: 1}))
    await asyncio.sleep(0.5)
    broker.deny_topic("t")
    with pytest.raises(NotAuthorized, match="topic 't'"):
        await waiting
    broker.deny_topic("t", denied=False)
    broker.deny_group("g")
    with pytest.raises(NotAuthorized, match="group 'g'"):
        await client.fetch({P0: 1})
    with pytest.raises(NotAuthorized, match="group 'g'"):
        await client.committed([P0], 1)
    await client.stop(1)


async def test_slow_and_failing_fetches(broker: InMemoryBroker) -> None:
    """A slow answer is waited for, one that passes by itself is asked for again, and wake() need not wait."""
    client, _ = await joined(broker)
    broker.append("t", b"x", partition=0)
    client.seek(P0, 0)
    leaderless = Fault(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    broker.faults.script(Request.FETCH, Fault(response_delay=60))
    waiting = asyncio.create_task(client.fetch({P0: 1}))
    await asyncio.sleep(1)
    client.wake()
    assert await waiting == []
    assert now() < 5
    broker.faults.script(Request.FETCH, leaderless, leaderless, Fault(is_response_lost=True), Fault(request_delay=5))
    began = now()
    [fetched] = await client.fetch({P0: 1})
    assert len(fetched.records) == 1
    assert 5 <= now() - began < 6
    await client.stop(1)


async def test_fetching_goes_on_when_the_broker_is_back(broker: InMemoryBroker) -> None:
    """While the broker is down nothing is fetched; when it is back, what has come meanwhile is."""
    client, listener = await joined(broker)
    client.seek(P0, 0)
    broker.go_down()
    broker.append("t", b"x", partition=0)
    waiting = asyncio.create_task(client.fetch({P0: 1}))
    await asyncio.sleep(100)
    assert not waiting.done()
    broker.come_back()
    [fetched] = await waiting
    assert fetched.next_offset == 1
    await asyncio.sleep(100)
    assert listener.kinds() == ["assigned"]
    await client.stop(1)


async def test_a_quota_of_nothing_asks_for_nothing(broker: InMemoryBroker) -> None:
    """A partition with a quota of 0 is left alone: neither its records nor its troubles come up."""
    client, _ = await joined(broker)
    broker.append("t", b"", partition=1)
    client.seek(P0, 99)
    client.seek(P1, 0)
    [fetched] = await client.fetch({P0: 0, P1: 1})
    assert fetched.partition == P1
    client.wake()
    assert await client.fetch({P0: 0}) == []
    with pytest.raises(OffsetOutOfRange):
        await client.fetch({P0: 1})
    await client.stop(1)
