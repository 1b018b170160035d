"""Membership when requests get lost, members crash and listeners fail. What every client does is in tests/contract."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from aioparallel.group.client import CommitFault, Committed
from aioparallel.records.errors import (
    ClientError,
    InstanceFenced,
)
from aioparallel.testing.memory import ErrorCode, Fault, InMemoryBroker, Request
from tests.support.memory.listener import P0, P1, Listener, client_of, joined, now


async def test_a_fenced_generation_keeps_the_member(broker: InMemoryBroker) -> None:
    """ILLEGAL_GENERATION loses what is held, but the member joins again under its own id, so that no ghost of
    it holds the group up."""
    client, listener = await joined(broker)
    before = listener.generation
    broker.faults.script(Request.HEARTBEAT, Fault(error=ErrorCode.ILLEGAL_GENERATION))
    await listener.until(lambda: len(listener.calls) == 3)
    assert listener.kinds() == ["assigned", "lost", "assigned"]
    assert listener.generation.member_id == before.member_id
    assert list(broker.group("g").members) == [before.member_id]
    await client.stop(1)


async def test_an_absent_coordinator_is_waited_for(broker: InMemoryBroker) -> None:
    """While the coordinator is away no session expires; afterwards the member is still one."""
    client, listener = await joined(broker)
    broker.is_coordinator_available = False
    answer = await client.commit({P0: Committed(1, "")}, listener.generation, 1)
    assert answer == {P0: CommitFault.RETRIABLE}
    await asyncio.sleep(60)
    broker.is_coordinator_available = True
    assert await client.commit({P0: Committed(1, "")}, listener.generation, 1) == {P0: None}
    await asyncio.sleep(60)
    assert listener.kinds() == ["assigned"]
    client.crash()
    other, _ = await joined(broker)
    assert len(broker.group("g").members) == 1  # sessions expire again
    await other.stop(1)


async def test_heartbeats_that_do_not_arrive_lose_the_session(broker: InMemoryBroker) -> None:
    """When heartbeats are lost for longer than the session the member is out: lost(), and then a new one."""
    client, listener = await joined(broker)
    broker.faults.always(Request.HEARTBEAT, Fault(is_request_lost=True))
    asyncio.get_running_loop().call_later(15, broker.faults.heal)
    # Nobody else is there to look at the clock while no request arrives.
    await listener.until(lambda: len(listener.calls) == 3)
    assert listener.calls[1:] == [("lost", frozenset({P0, P1})), ("assigned", frozenset({P0, P1}))]
    await client.stop(1)


async def test_lost_answers_do_not_keep_a_member_out(broker: InMemoryBroker) -> None:
    """Joining goes on after lost requests and answers of every kind."""
    lost, unheard = Fault(is_request_lost=True), Fault(is_response_lost=True)
    refused = Fault(error=ErrorCode.NOT_COORDINATOR)
    broker.faults.script(Request.JOIN, lost, unheard, refused)
    broker.faults.script(Request.SYNC, lost, unheard, refused)
    client, listener = await joined(broker)
    await listener.until(lambda: listener.held == {P0, P1})
    await asyncio.sleep(60)  # the members that nobody heard of have expired
    assert len(broker.group("g").members) == 1
    assert listener.held == {P0, P1}
    await client.stop(1)
    assert broker.group("g").members == {}


async def test_a_crashed_member_expires(broker: InMemoryBroker) -> None:
    """After crash() the group waits for the session timeout, then gives all to the others."""
    first, _ = await joined(broker)
    second, listener = client_of(broker), Listener()
    await second.start(1)
    first.crash()
    began = now()
    second.subscribe(["t"], listener)
    await listener.until(lambda: listener.held == {P0, P1})
    assert 9 <= now() - began <= 11
    await second.stop(1)


async def test_stop_interrupts_a_long_revocation(broker: InMemoryBroker) -> None:
    """stop() does not wait for revoked(), and leaves the group all the same."""
    client, listener = await joined(broker)
    ended: list[str] = []

    async def for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("revoked")

    listener.on_revoked = for_ever
    broker.add_partitions("t", 3)
    await listener.until(lambda: listener.kinds()[-1] == "revoked")
    await client.stop(1)
    assert ended == ["revoked"]
    assert now() < 5
    assert broker.group("g").members == {}


async def test_stop_is_bounded(broker: InMemoryBroker) -> None:
    """stop() returns at its timeout when leaving gets no answer, and at once when the broker is down."""
    client, _ = await joined(broker)
    broker.faults.script(Request.LEAVE, Fault(is_response_lost=True))
    began = now()
    await client.stop(4)
    assert now() - began == pytest.approx(4)
    client, _ = await joined(broker)
    broker.go_down()
    began = now()
    await client.stop(4)
    assert now() - began < 1


async def test_a_listener_that_fails_is_told(broker: InMemoryBroker) -> None:
    """An exception of the listener ends the membership, and fetch() raises it as the cause of a ClientError."""

    def fail() -> None:
        raise ZeroDivisionError("in the listener")

    async def fail_later() -> None:
        fail()

    client, listener = await joined(broker)
    listener.on_revoked = fail_later
    broker.add_partitions("t", 3)
    with pytest.raises(ClientError, match="'g'") as raised:
        await client.fetch({P0: 1})
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    await client.stop(1)

    async def cancelled() -> None:
        raise asyncio.CancelledError

    client, listener = await joined(broker)
    listener.on_revoked = cancelled
    broker.add_partitions("t", 4)
    with pytest.raises(ClientError, match="'g'"):
        await client.fetch({P0: 1})
    await client.stop(1)
    client, listener = client_of(broker), Listener()
    listener.on_assigned = fail
    await client.start(1)
    client.subscribe(["t"], listener)
    with pytest.raises(ClientError, match="'g'") as raised:
        await client.fetch({P0: 1})
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    await client.stop(1)


async def test_a_stopped_client_says_so(broker: InMemoryBroker) -> None:
    """fetch() after stop() raises ClientError, also the one that was waiting; wake() and seek() do nothing."""
    client, _ = await joined(broker)
    client.seek(P0, 0)
    waiting = asyncio.create_task(client.fetch({P0: 1}))
    await asyncio.sleep(0)
    await client.stop(1)
    with pytest.raises(ClientError, match="stopped"):
        await waiting
    with pytest.raises(ClientError, match="stopped"):
        await client.fetch({P0: 1})
    client.wake()
    client.seek(P0, 0)


async def test_virtual_time_is_free(broker: InMemoryBroker) -> None:
    """An hour of heartbeats in virtual time takes seconds: nothing in here waits for real."""
    client, listener = await joined(broker)
    began = monotonic()
    await asyncio.sleep(3600)
    assert listener.kinds() == ["assigned"]
    assert monotonic() - began < 10
    await client.stop(1)


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_late_join_of_its_own_fences_nobody(broker: InMemoryBroker, is_replaced: bool) -> None:
    """A static member's first join is handled when it has long joined by another: it joins once more. Whose place is
    taken then is another one's."""
    client, listener = client_of(broker, instance="one"), Listener()
    broker.faults.script(Request.JOIN, Fault(request_delay=5.0))  # it waits for 3.3 s
    await client.start(1)
    client.subscribe(["t"], listener)
    await listener.until(lambda: len(listener.calls) == 3)
    assert listener.kinds() == ["assigned", "lost", "assigned"]
    assert list(broker.group("g").members) == [listener.generation.member_id]
    await asyncio.sleep(60)
    assert listener.kinds() == ["assigned", "lost", "assigned"]
    if is_replaced:
        other = client_of(broker, instance="one")
        await other.start(1)
        other.subscribe(["t"], Listener())
        await listener.until(lambda: len(listener.calls) == 5)
        assert listener.kinds()[3:] == ["lost", "fenced"]
        with pytest.raises(InstanceFenced):
            await client.fetch({})
        await other.stop(1)
    await client.stop(1)
