"""Members of the new protocol when answers get lost, epochs are fenced, listeners fail and instance ids meet."""

from __future__ import annotations

import asyncio
import re
from typing import Any, cast

import pytest

from aioparallel.group.client import CommitFault, Committed, Generation
from aioparallel.records.errors import ClientError, ConfigurationError, InstanceFenced
from aioparallel.testing.memory import ErrorCode, Fault, InMemoryBroker, InMemoryClient, Request
from tests.support.memory.listener import P0, P1, Listener, now

BEAT = Request.CONSUMER_HEARTBEAT
BOTH = frozenset({P0, P1})


def client_of(broker: InMemoryBroker, instance: str | None = None, *, protocol: str = "consumer") -> InMemoryClient:
    """A member of group "g": session 10 s, heartbeat 1 s, rebalance 20 s."""
    return InMemoryClient(
        broker,
        "g",
        group_protocol=cast("Any", protocol),
        session_timeout=10,
        heartbeat_interval=1,
        rebalance_timeout=20,
        group_instance_id=instance,
    )


async def joined(broker: InMemoryBroker, instance: str | None = None) -> tuple[InMemoryClient, Listener]:
    """A client that has its first assignment."""
    client, listener = client_of(broker, instance), Listener()
    await client.start(1)
    client.subscribe(["t"], listener)
    await listener.until(lambda: listener.calls)
    return client, listener


async def failure_of(client: InMemoryClient) -> Exception:
    """What its fetch raises."""
    while True:
        try:
            await client.fetch({})
        except ClientError as failure:
            return failure


def test_options_that_cannot_work(broker: InMemoryBroker) -> None:
    with pytest.raises(ConfigurationError, match=r"group_protocol.*classic or consumer"):
        client_of(broker, protocol="new")
    with pytest.raises(ConfigurationError, match=r"cooperative.*group_protocol='classic'"):
        InMemoryClient(broker, "g", group_protocol="consumer", cooperative=True)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(is_request_lost=True),
        Fault(is_response_lost=True),
        Fault(request_delay=5.0),
        Fault(error=ErrorCode.COORDINATOR_NOT_AVAILABLE),
        Fault(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, is_carried_out=True),
    ],
    ids=["request lost", "answer lost", "late", "refused", "refused but done"],
)
async def test_any_heartbeat_may_fail(broker: InMemoryBroker, fault: Fault) -> None:
    """Whichever of the first ones it is: two members share, and each hears only of what moves."""
    for count in range(6):
        broker.faults.script(BEAT, *[Fault()] * count, fault)
        first, heard = await joined(broker)
        second, other = await joined(broker)
        await heard.until(lambda heard=heard: len(heard.held) == 1)  # type: ignore[misc]
        await other.until(lambda other=other: len(other.held) == 1)  # type: ignore[misc]
        await asyncio.sleep(20)
        assert heard.held | other.held == BOTH
        assert [kind for kind, some in heard.calls if some] == ["assigned", "revoked"]
        assert [kind for kind, some in other.calls if some] == ["assigned"]
        await first.stop(3)
        await second.stop(3)
        broker.faults.heal()
        broker.advance(now() + 20)  # a late join of one that has left


@pytest.mark.parametrize("code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
async def test_a_fenced_member_joins_again_under_its_id(broker: InMemoryBroker, code: ErrorCode) -> None:
    client, listener = await joined(broker)
    before = listener.generation
    broker.faults.script(BEAT, Fault(error=code))
    await listener.until(lambda: len(listener.calls) == 3)
    assert listener.calls[1:] == [("lost", BOTH), ("assigned", BOTH)]
    assert broker.member_ids("g") == [before.member_id] == [listener.generation.member_id]
    assert await client.commit({P0: Committed(1, "")}, listener.generation, 1) == {P0: None}
    await client.stop(1)


async def test_a_commit_of_a_removed_member_loses_all_at_once(broker: InMemoryBroker) -> None:
    """When the commit is answered, the listener was called. A second such answer is about the past."""
    client, listener = await joined(broker)
    before = listener.generation
    broker.expire_session("g", before.member_id, now())
    for _ in range(2):
        answer = await client.commit({P0: Committed(1, "")}, before, 1)
        assert answer[P0] in (CommitFault.FENCED, CommitFault.RETRIABLE)
        assert listener.kinds().count("lost") == 1
    await listener.until(lambda: listener.held == BOTH)
    assert listener.generation.id > before.id
    assert listener.kinds() == ["assigned", "lost", "assigned"]
    await client.stop(1)


async def test_a_stale_commit_hurries_the_heartbeat(broker: InMemoryBroker) -> None:
    """The member learns its epoch long before the next heartbeat is due."""
    broker.consumer_groups.accepts_older_epochs = False
    client, listener = await joined(broker)
    await asyncio.sleep(0.1)
    before, began = listener.generation, now()
    broker.add_partitions("t", 3)
    group = broker.consumer_groups.group("g")
    assert group is not None
    group.members[before.member_id].previous_epoch = before.id
    group.members[before.member_id].epoch = group.epoch = group.assignment_epoch = before.id + 1
    assert await client.commit({P0: Committed(1, "")}, before, 1) == {P0: CommitFault.RETRIABLE}
    await listener.until(lambda: listener.generation.id > before.id)
    assert now() - began < 0.1
    assert listener.kinds() == ["assigned", "assigned"]
    assert await client.commit({P0: Committed(1, "")}, listener.generation, 1) == {P0: None}
    await client.stop(1)


async def test_what_was_never_added_is_given_back(broker: InMemoryBroker) -> None:
    """The member is removed while it gives partitions away, and joins again. What it gets then waits for the end of
    that, and is taken back before."""
    client, listener = await joined(broker)
    ends = asyncio.Event()

    async def hang() -> None:
        await ends.wait()

    listener.on_revoked = hang
    other, heard = await joined(broker)
    await listener.until(lambda: listener.calls[-1][0] == "revoked")
    broker.expire_session("g", listener.generation.member_id, now())
    await heard.until(lambda: heard.held == BOTH)
    await heard.until(lambda: len(heard.held) == 1)
    await asyncio.sleep(5)
    broker.delete_topic("t")
    await heard.until(lambda: not heard.held)
    await asyncio.sleep(5)
    count = len(listener.calls)
    listener.on_revoked = None
    ends.set()
    broker.create_topic("t", 2)
    began = now()
    await listener.until(lambda: any(some for _, some in listener.calls[count:]))
    assert now() - began < 10
    assert {kind for kind, _ in listener.calls[count:]} == {"assigned"}
    await client.stop(1)
    await other.stop(1)


async def test_an_epoch_that_is_reported_as_fenced(broker: InMemoryBroker) -> None:
    """If it is the current one, the member joins again. If it is old, nothing is lost."""
    client, listener = await joined(broker)
    client.fenced(Generation(listener.generation.id - 1, listener.generation.member_id))
    await asyncio.sleep(5)
    assert listener.kinds() == ["assigned"]
    began = now()
    client.fenced(listener.generation)
    await listener.until(lambda: len(listener.calls) == 3)
    assert now() - began < 1
    assert listener.calls[1:] == [("lost", BOTH), ("assigned", BOTH)]
    await client.stop(1)


async def test_an_answer_from_before_a_loss_counts_no_more(broker: InMemoryBroker) -> None:
    """It is on its way while a commit tells that all is lost."""
    client, listener = await joined(broker)
    await asyncio.sleep(1.5)
    broker.faults.script(BEAT, Fault(response_delay=2.0))
    await asyncio.sleep(1.5)
    broker.faults.script(Request.COMMIT, Fault(error=ErrorCode.UNKNOWN_MEMBER_ID))
    assert await client.commit({P0: Committed(1, "")}, listener.generation, 1) == {P0: CommitFault.FENCED}
    assert listener.kinds() == ["assigned", "lost"]
    await listener.until(lambda: listener.held == BOTH)
    assert listener.kinds() == ["assigned", "lost", "assigned"]
    await client.stop(1)


@pytest.mark.parametrize("error", [ValueError("no"), asyncio.CancelledError()])
async def test_a_listener_that_raises_ends_the_client(broker: InMemoryBroker, error: BaseException) -> None:
    client, listener = await joined(broker)

    async def fail() -> None:
        raise error

    listener.on_revoked = fail
    other, _ = await joined(broker)
    failure = await failure_of(client)
    assert re.search("listener of group 'g' raised", str(failure))
    await client.stop(1)
    await other.stop(1)


async def test_groups_of_the_other_protocol(broker: InMemoryBroker) -> None:
    """Their members are refused, with the reason; once a group is empty, it may change."""
    first, second = client_of(broker, protocol="classic"), client_of(broker)
    for client in (first, second):
        await client.start(1)
    heard = Listener()
    first.subscribe(["t"], heard)
    await heard.until(lambda: heard.held)
    second.subscribe(["t"], Listener())
    assert "members of the classic protocol" in str(await failure_of(second))
    await first.stop(1)
    third, listener = await joined(broker)
    assert listener.generation.id > heard.generation.id
    fourth = client_of(broker, protocol="classic")
    await fourth.start(1)
    fourth.subscribe(["t"], Listener())
    assert "INCONSISTENT_GROUP_PROTOCOL" in str(await failure_of(fourth))
    for client in (second, third, fourth):
        await client.stop(1)


async def test_flags_of_a_pattern(broker: InMemoryBroker) -> None:
    client, listener = client_of(broker), Listener()
    await client.start(1)
    client.subscribe(re.compile("T|U.*", re.IGNORECASE), listener)
    await listener.until(lambda: listener.held == BOTH)
    broker.create_topic("u-later", 1)
    await listener.until(lambda: len(listener.held) == 3)
    await client.stop(1)


async def test_an_instance_id_taken_over_after_the_session(broker: InMemoryBroker) -> None:
    """The first is cut off until its session has ended and another process has its id: it ends, and says why."""
    client, listener = await joined(broker, "one")
    await asyncio.sleep(0.5)  # the next heartbeat comes after the other one's
    broker.expire_session("g", listener.generation.member_id, now())
    other, heard = await joined(broker, "one")
    failure = await failure_of(client)
    assert isinstance(failure, InstanceFenced)
    assert listener.calls[1:] == [("lost", BOTH), ("fenced", frozenset())]
    assert heard.held == BOTH
    await client.stop(1)
    await other.stop(1)


async def test_a_static_member_that_was_killed(broker: InMemoryBroker) -> None:
    """Its id is free when its session has ended, and not before."""
    client, _ = await joined(broker, "one")
    client.crash()
    early = client_of(broker, "one")
    await early.start(1)
    early.subscribe(["t"], Listener())
    assert "If it was killed, wait" in str(await failure_of(early))
    await early.stop(1)
    await asyncio.sleep(10)
    later, listener = await joined(broker, "one")
    assert listener.held == BOTH
    await later.stop(1)
    assert len(broker.member_ids("g")) == 1, "it may return"
