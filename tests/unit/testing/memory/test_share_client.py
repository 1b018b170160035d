"""The in-memory client of share groups: what real ones do not have, and what only virtual time shows. What every client
does is in tests/contract."""

from __future__ import annotations

import asyncio

import pytest

from aioparallel.group.share_client import Acknowledged, AcknowledgeType
from aioparallel.records.errors import ClientError, ConfigurationError, ConsumerStateError
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import (
    ErrorCode,
    Fault,
    InMemoryBroker,
    InMemoryShareClient,
    Request,
    ShareGroupOptions,
)
from tests.support.clusters.share_member import ShareMember

ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
DONE, NOT_HELD = Acknowledged.DONE, Acknowledged.NOT_HELD
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
LOCK = 30.0


def now() -> float:
    return asyncio.get_running_loop().time()


def configured(broker: InMemoryBroker, records: int) -> InMemoryBroker:
    """A group "g" that begins with the first of so many records of partition 0."""
    broker.configure_share_group("g", ShareGroupOptions(auto_offset_reset="earliest", lock_duration=LOCK))
    for number in range(records):
        broker.append("t", b"%d" % number, partition=0)
    return broker


async def joined(broker: InMemoryBroker) -> ShareMember:
    member = ShareMember(InMemoryShareClient(broker, "g"), 300)
    await member.join(["t"])
    return member


async def test_a_lock_ends_to_the_moment() -> None:
    """A member that waits gets the record at once."""
    broker = InMemoryBroker()
    broker.create_topic("t")
    first = await joined(configured(broker, 1))
    (taken,) = await first.take(1)
    second = await joined(broker)
    (again,) = await second.take(1)
    assert again.times == 2
    assert taken.locked_until <= now() < taken.locked_until + 0.001


async def test_a_lock_is_measured_from_the_request(broker: InMemoryBroker) -> None:
    """However long the answer takes, so that it is never later than the broker's."""
    member = await joined(configured(broker, 1))
    broker.faults.script(Request.SHARE_FETCH, Fault(request_delay=2.0, response_delay=3.0))
    sent = now()
    (taken,) = await member.take(1)
    assert now() >= sent + 5.0
    assert taken.locked_until < sent + LOCK + 0.001
    state = broker.share.partition("g", P0)
    assert state is not None
    record = state.record(0)
    assert record is not None
    assert record.locked_until >= taken.locked_until + 2.0


async def test_a_crash_releases_records_and_keeps_the_member(broker: InMemoryBroker) -> None:
    """Its connections break, so its records are available. In the group its session must expire."""
    first = await joined(configured(broker, 2))
    await first.take(2)
    first.client.crash()  # type: ignore[attr-defined]
    second = await joined(broker)
    group = broker.share_groups.group("g")
    assert group is not None
    assert len(group.members) == 2
    await second.has({P0, P1})
    assert len(group.members) == 1
    assert now() > 44
    assert [one.times for one in await second.take(2)] == [2, 2]


async def test_a_node_that_hangs(broker: InMemoryBroker) -> None:
    """Its partitions wait; those of other nodes go on. What was sent is carried out later."""
    broker = configured(InMemoryBroker(nodes=2), 0)
    broker.create_topic("t", 2)
    member = await joined(broker)
    broker.append("t", b"0", partition=0)
    broker.append("t", b"1", partition=1)
    taken = await member.take(2)
    broker.hang(1)
    answers = member.acknowledge(taken, ACCEPT)
    broker.append("t", b"3", partition=1)
    assert [one.value for one in await member.take(1)] == [b"3"]
    assert {a.delivery.partition: a.outcome for a in answers} == {P0: None, P1: DONE}
    await asyncio.sleep(5.0)
    broker.unhang(1)
    assert await member.answered(answers) == [DONE] * 2


async def test_a_node_that_stops(broker: InMemoryBroker) -> None:
    """Its locks are lost. Another one that leads its partition afterwards delivers again."""
    broker = configured(InMemoryBroker(nodes=2), 0)
    broker.create_topic("t", 1)
    broker.append("t", b"0")
    member = await joined(broker)
    taken = await member.take(1)
    broker.stop_node(1)
    await asyncio.sleep(1.0)
    assert member.client.contact().leaderless == (P0,)
    broker.move_leader(P0, 2)
    assert await member.settle(taken, ACCEPT) == [NOT_HELD]
    again = await member.take(1)
    assert await member.settle(again, ACCEPT) == [DONE]


async def test_errors_that_were_carried_out(broker: InMemoryBroker) -> None:
    """The acknowledgement is sent again with a new session, and is in doubt when it is refused then."""
    member = await joined(configured(broker, 2))
    one, two = await member.take(2)
    fault = Fault(error=ErrorCode.REQUEST_TIMED_OUT, is_carried_out=True)
    broker.faults.script(Request.SHARE_ACKNOWLEDGE, fault)
    assert await member.settle([two], ACCEPT) == [Acknowledged.UNKNOWN]
    broker.faults.script(Request.SHARE_ACKNOWLEDGE, Fault(error=ErrorCode.REQUEST_TIMED_OUT))
    assert await member.settle([one], ACCEPT) == [DONE]


async def test_a_renewal_that_came_too_late() -> None:
    """Brokers accept everything below the start offset; the client knows that the lock had ended."""
    broker = InMemoryBroker()
    broker.create_topic("t")
    slow = await joined(configured(broker, 1))
    taken = await slow.take(1)
    quick = await joined(broker)
    await quick.settle(await quick.take(1), ACCEPT)
    assert await slow.settle(taken, RENEW) == [NOT_HELD]


async def test_a_callback_that_raises(broker: InMemoryBroker) -> None:
    """The next fetch raises a ClientError with it."""
    member = await joined(configured(broker, 1))
    await member.take(1)

    def ended(_: Acknowledged, __: float) -> None:
        raise ValueError("broken")

    member.client.acknowledge(P0, 0, ACCEPT, ended)
    with pytest.raises(ClientError, match="broken"):
        await member.fetch()


async def test_what_a_client_refuses(broker: InMemoryBroker) -> None:
    """Options that cannot work, and calls in the wrong order."""
    with pytest.raises(ConfigurationError, match="request_timeout"):
        InMemoryShareClient(broker, "g", request_timeout=0)
    client = InMemoryShareClient(broker, "g")
    with pytest.raises(ConsumerStateError):
        client.subscribe(["t"], print)
    await client.start(1)
    with pytest.raises(ConsumerStateError):
        await client.start(1)
    with pytest.raises(ConfigurationError, match="most"):
        await client.fetch(0)
    waiting = asyncio.create_task(client.fetch(1))
    await asyncio.sleep(0)
    with pytest.raises(ConsumerStateError):
        await client.fetch(1)
    waiting.cancel()
    await client.stop(1)


async def test_unknown_offsets(broker: InMemoryBroker) -> None:
    """Are not held."""
    member = await joined(configured(broker, 1))
    taken = await member.take(1)
    assert await member.settle(taken, ACCEPT) == [DONE]
    assert await member.settle(taken, ACCEPT) == [NOT_HELD]
