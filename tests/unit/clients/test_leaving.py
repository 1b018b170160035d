"""How a member leaves its group when that does not go at once: if it did not, the others would wait for its session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import aiokafka.errors as kafka
import pytest

from aioparallel.clients.aiokafka.classic_group import ClassicGroup
from aioparallel.clients.aiokafka.consumer_membership import ConsumerMembership
from aioparallel.clients.aiokafka.group_member import GroupMember, Subscribed
from aioparallel.clients.messages.consumer_groups import JOIN, LEAVE
from aioparallel.records.error_codes import ErrorCode
from tests.support.waiting import until

# -- the protocol "consumer"


class Node:
    """Answers with these codes and errors, the last one again and again."""

    def __init__(self, *answers: ErrorCode | Exception) -> None:
        self.answers = list(answers)
        self.epochs: list[int] = []
        self.looks = 0

    def coordinator_dead(self) -> None:
        self.looks += 1

    async def ask(self, _: object, request: Any) -> object:
        self.epochs.append(request.member_epoch)
        await asyncio.sleep(0)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(
            error_code=answer, error_message=None, member_epoch=1, heartbeat_interval_ms=60_000, assignment=None
        )


def member_at(node: Node) -> ConsumerMembership:
    """A member that this node coordinates."""
    listener = SimpleNamespace(assigned=lambda *_: None)
    unused = cast("Any", None)
    return ConsumerMembership(
        GroupMember(Subscribed("g", ("t",)), "m"),
        cast("Any", node),
        unused,
        unused,
        cast("Any", listener),
        retry_backoff=0.001,
        on_failure=lambda _: None,
    )


@pytest.mark.parametrize(
    "trouble",
    [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, kafka.NodeNotReadyError(), ConnectionError()],
    ids=repr,
)
async def test_a_member_leaves_at_the_new_coordinator(trouble: ErrorCode | Exception) -> None:
    """It looks the coordinator up again, and leaves there."""
    member = member_at(node := Node(ErrorCode.NONE, trouble, trouble, ErrorCode.NONE))
    member.start()
    await until(lambda: node.epochs == [JOIN])
    member.close()
    await member.leave()
    assert (node.epochs, node.looks) == ([JOIN, LEAVE, LEAVE, LEAVE], 2)


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID])
async def test_who_has_left_or_is_removed_leaves_once(code: ErrorCode) -> None:
    """An answer that will not change ends it."""
    member = member_at(node := Node(ErrorCode.NONE, code))
    member.start()
    await until(lambda: node.epochs == [JOIN])
    member.close()
    await member.leave()
    assert node.epochs == [JOIN, LEAVE]


async def test_who_has_not_joined_does_not_leave() -> None:
    """Nothing is sent."""
    member = member_at(node := Node(ErrorCode.NONE))
    await member.leave()
    assert node.epochs == []


# -- the protocol "classic"


class Consumer:
    """The parts of aiokafka's consumer and coordinator that leaving needs."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, str]] = []
        self._client = self
        self._subscription = SimpleNamespace(reassignment_in_progress=True, subscribe=lambda *_, **__: None)
        self.coordinator = SimpleNamespace(
            coordinator_id=None,
            member_id="",
            _group_instance_id=None,
            _coordination_task=asyncio.get_running_loop().create_future(),
            reset_generation=lambda: None,
        )

    async def send(self, node: int, request: Any, group: object) -> None:
        self.sent.append((node, request._member_id))

    def group(self) -> ClassicGroup:
        """Its group, subscribed."""
        given = cast("Any", self), cast("Any", self.coordinator)
        group = ClassicGroup(*given, group_id="g", park=lambda _: None, on_failure=lambda _: None)
        group.subscribe({"t"}, cast("Any", None))
        return group


async def test_a_member_whose_join_begins_waits_for_its_id_and_leaves() -> None:
    """aiokafka would complete the join, and the group would wait for a member that is gone."""
    consumer = Consumer()
    leaving = asyncio.create_task(consumer.group().leave(30.0))
    await asyncio.sleep(0)
    consumer.coordinator.coordinator_id = 2
    await asyncio.sleep(0)
    assert not leaving.done()
    consumer.coordinator.member_id = "m"
    await leaving
    assert consumer.sent == [(2, "m")]


@pytest.mark.parametrize(
    "end",
    [
        lambda one: setattr(one._subscription, "reassignment_in_progress", False),
        lambda one: one.coordinator._coordination_task.set_result(None),
        lambda one: setattr(one.coordinator, "_group_instance_id", "static"),
    ],
    ids=["joined", "failed", "static"],
)
async def test_who_does_not_join_does_not_wait(end: Callable[[Consumer], None]) -> None:
    """A member that has joined is left to aiokafka, and a static one returns."""
    consumer = Consumer()
    group = consumer.group()
    end(consumer)
    await group.leave(30.0)
    assert consumer.sent == []


async def test_a_coordinator_that_stays_unknown_delays_the_end_by_the_timeout() -> None:
    """Not for ever."""
    consumer = Consumer()
    await consumer.group().leave(0.05)
    assert consumer.sent == []
