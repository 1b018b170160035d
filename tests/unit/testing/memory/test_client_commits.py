"""Commits that are late, lost or refused. What every client does is in tests/contract."""

from __future__ import annotations

import asyncio

import pytest

from aioparallel.group.client import CommitFault, Committed
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import ErrorCode, Fault, InMemoryBroker, Request
from tests.support.memory.listener import P0, P1, joined, now


async def test_a_late_commit_does_not_overwrite_the_new_owner(broker: InMemoryBroker) -> None:
    """A commit that its sender has given up on reaches the coordinator after a rebalance, with the generation
    it was sent under: the coordinator refuses it, and the new owner's offset stands."""
    first, listener = await joined(broker)
    broker.faults.script(Request.COMMIT, Fault(request_delay=30))
    answer = await first.commit({P0: Committed(1, "late")}, listener.generation, timeout=2)
    assert answer == {P0: CommitFault.RETRIABLE}
    assert now() < 3
    await first.stop(1)
    second, other = await joined(broker)
    assert await second.commit({P0: Committed(9, "new")}, other.generation, timeout=2) == {P0: None}
    await asyncio.sleep(40 - now())
    assert broker.group("g").offsets == {P0: Committed(9, "new")}
    await second.stop(1)


async def test_a_late_commit_of_the_current_generation_is_taken(broker: InMemoryBroker) -> None:
    """The same late commit without a rebalance is stored when it arrives: RETRIABLE does not mean undone."""
    client, listener = await joined(broker)
    broker.faults.script(Request.COMMIT, Fault(request_delay=5))
    sent = {P0: Committed(1, "late")}
    assert await client.commit(sent, listener.generation, timeout=2) == {P0: CommitFault.RETRIABLE}
    assert broker.group("g").offsets == {}
    sent[P0] = Committed(99, "changed after it was sent")
    await asyncio.sleep(4)
    assert broker.group("g").offsets == {P0: Committed(1, "late")}
    await client.stop(1)


async def test_lost_answers_are_retriable(broker: InMemoryBroker) -> None:
    """A commit whose answer is lost is RETRIABLE at its timeout although it was stored; one that is lost itself
    was not."""
    client, listener = await joined(broker)
    broker.faults.script(Request.COMMIT, Fault(is_response_lost=True), Fault(is_request_lost=True))
    for offset in (1, 2):
        began = now()
        answer = await client.commit({P0: Committed(offset, "")}, listener.generation, timeout=3)
        assert answer == {P0: CommitFault.RETRIABLE}
        assert now() - began == pytest.approx(3)
    assert broker.group("g").offsets == {P0: Committed(1, "")}
    await client.stop(1)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, CommitFault.RETRIABLE),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, CommitFault.RETRIABLE),
        (ErrorCode.NOT_COORDINATOR, CommitFault.RETRIABLE),
        (ErrorCode.REBALANCE_IN_PROGRESS, CommitFault.RETRIABLE),
        (ErrorCode.ILLEGAL_GENERATION, CommitFault.FENCED),
        (ErrorCode.UNKNOWN_MEMBER_ID, CommitFault.FENCED),
        (ErrorCode.OFFSET_METADATA_TOO_LARGE, CommitFault.METADATA_TOO_LARGE),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, CommitFault.REFUSED),
        (ErrorCode.UNKNOWN_SERVER_ERROR, CommitFault.REFUSED),
    ],
)
async def test_what_refusals_mean(broker: InMemoryBroker, code: ErrorCode, fault: CommitFault) -> None:
    """Each error code of a commit is told as the engine needs it, for every partition, and stores nothing."""
    client, listener = await joined(broker)
    broker.faults.script(Request.COMMIT, Fault(error=code))
    commit = {P0: Committed(1, ""), P1: Committed(2, "")}
    assert await client.commit(commit, listener.generation, timeout=1) == dict.fromkeys(commit, fault)
    assert broker.group("g").offsets == {}
    await client.stop(1)
    assert await client.commit(commit, listener.generation, 1) == dict.fromkeys(commit, CommitFault.RETRIABLE)


async def test_denied_topics_are_refused(broker: InMemoryBroker) -> None:
    """A commit for a topic that is denied is REFUSED, for that partition only."""
    broker.create_topic("secret")
    client, listener = await joined(broker)
    broker.deny_topic("secret")
    secret = TopicPartition("secret", 0)
    answer = await client.commit({P0: Committed(1, ""), secret: Committed(1, "")}, listener.generation, 1)
    assert answer == {P0: None, secret: CommitFault.REFUSED}
    await client.stop(1)
