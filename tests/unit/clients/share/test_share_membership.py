"""Membership in a share group: what each answer of the coordinator leads to, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import cast

import aiokafka.errors as kafka
import pytest

from aioparallel.clients.aiokafka.share_membership import MemberState, ShareCoordinator, ShareMembership, Then
from aioparallel.clients.messages.assignments import Assignment, TopicPartitions
from aioparallel.clients.messages.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ClientError, NotAuthorized
from tests.support.virtual_time import VirtualLoop

OLD, NEW = b"the id of topic.", b"another id of it"


def answer(epoch: int = 1, assigned: Mapping[bytes, tuple[int, ...]] | None = None) -> ShareGroupHeartbeatResponse:
    return ShareGroupHeartbeatResponse(
        member_epoch=epoch,
        heartbeat_interval_ms=5_000,
        assignment=None if assigned is None else Assignment(tuple(TopicPartitions(*one) for one in assigned.items())),
    )


def error(code: int) -> ShareGroupHeartbeatResponse:
    return ShareGroupHeartbeatResponse(error_code=code, error_message="said")


class Coordinator:
    """Gives these answers in turn, then the last one again and again; and the ids of topics."""

    def __init__(self, *answers: ShareGroupHeartbeatResponse | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[float, int, tuple[str, ...] | None]] = []
        self.forgotten = 0
        self.ids: dict[str, bytes] = {"topic": OLD}
        self.assigned: list[dict[tuple[str, int], bytes]] = []
        self.existing: list[set[bytes]] = []
        self.failures: list[Exception] = []
        self.membership = ShareMembership(
            MemberState("group", "member", ["topic"], "rack"),
            cast("ShareCoordinator", self),
            self,
            ["topic"],
            retry_backoff=0.1,
            on_assigned=self.on_assigned,
            on_failure=self.failures.append,
        )

    def on_assigned(self, partitions: Mapping[tuple[str, int], bytes], existing: Collection[bytes]) -> None:
        self.assigned.append(dict(partitions))
        self.existing.append(set(existing))

    def forget(self) -> None:
        self.forgotten += 1

    async def heartbeat(self, request: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse:
        now = asyncio.get_running_loop().time()
        self.asked.append((round(now, 1), request.member_epoch, request.subscribed_topic_names))
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, Exception):
            raise found
        return found

    async def topic_ids(self, topics: Collection[str], timeout: float) -> Mapping[str, bytes]:
        return {name: topic_id for name, topic_id in self.ids.items() if name in topics}


def play(
    *answers: ShareGroupHeartbeatResponse | Exception,
    seconds: float = 20.0,
    then: Callable[[Coordinator], Awaitable[None]] | None = None,
) -> Coordinator:
    async def main() -> Coordinator:
        coordinator = Coordinator(*answers)
        running = asyncio.create_task(coordinator.membership.run())
        await asyncio.sleep(seconds)
        if then is not None:
            await then(coordinator)
        assert running.done() is bool(coordinator.failures)
        running.cancel()
        return coordinator

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def test_it_joins_once_and_sends_heartbeats() -> None:
    """Only what joins names the topics. A member without partitions asks again soon."""
    coordinator = play(answer(1, {}), answer(2, {OLD: (0, 1)}), answer(2))
    assert coordinator.asked[:4] == [(0.0, 0, ("topic",)), (0.5, 1, None), (5.5, 2, None), (10.5, 2, None)]
    assert coordinator.assigned == [{}, {("topic", 0): OLD, ("topic", 1): OLD}]
    assert coordinator.forgotten == 0


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND]
)
def test_a_member_that_is_not_known_joins_again_at_once(code: int) -> None:
    """It keeps its partitions meanwhile: leaders do not care."""
    coordinator = play(answer(3, {OLD: (0,)}), error(code), answer(5, {OLD: (0,)}), seconds=6)
    assert [one[1:] for one in coordinator.asked] == [(0, ("topic",)), (3, None), (0, ("topic",))]
    assert coordinator.asked[1][0] == coordinator.asked[2][0]
    assert all(one == {("topic", 0): OLD} for one in coordinator.assigned)


def test_a_member_that_is_always_fenced_does_not_flood_the_coordinator() -> None:
    coordinator = play(error(ErrorCode.FENCED_MEMBER_EPOCH), seconds=60)
    assert 30 < len(coordinator.asked) < 90


@pytest.mark.parametrize(
    "failure",
    [
        error(ErrorCode.NOT_COORDINATOR),
        error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        error(ErrorCode.COORDINATOR_NOT_AVAILABLE),
        kafka.NodeNotReadyError("refused"),
    ],
)
def test_the_coordinator_moves(failure: ShareGroupHeartbeatResponse | Exception) -> None:
    """It is looked up again, and the member goes on with its epoch."""
    coordinator = play(answer(3, {OLD: (0,)}), failure, failure, answer(3))
    assert [epoch for _, epoch, _ in coordinator.asked[:4]] == [0, 3, 3, 3]
    assert [at for at, _, _ in coordinator.asked[:4]] == [0.0, 5.0, 5.1, 5.3]
    assert coordinator.forgotten == 2


def test_a_lost_answer_may_have_had_an_assignment() -> None:
    """Only a member that joins gets it again."""
    coordinator = play(answer(3, {OLD: (0,)}), kafka.RequestTimedOutError("no answer"), answer(4, {OLD: (0, 1)}))
    assert [epoch for _, epoch, _ in coordinator.asked[:3]] == [0, 3, 0]
    assert coordinator.assigned[-1] == {("topic", 0): OLD, ("topic", 1): OLD}


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, NotAuthorized, "group 'group'"),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, NotAuthorized, "topics topic"),
        (ErrorCode.GROUP_ID_NOT_FOUND, ClientError, "another type"),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, ClientError, "group.share.max.size"),
        (ErrorCode.UNSUPPORTED_VERSION, ClientError, "share.version=1"),
        (ErrorCode.INVALID_GROUP_ID, ClientError, "refuses the group_id"),
        (ErrorCode.INVALID_REQUEST, ClientError, "said, error code 42"),
        (12_345, ClientError, "said, error code 12345"),
    ],
)
def test_what_does_not_pass_is_said(code: int, kind: type[Exception], text: str) -> None:
    (failure,) = play(error(code)).failures
    assert isinstance(failure, kind)
    assert text in str(failure)


def test_topics_whose_ids_are_not_known_yet() -> None:
    """The member has the partitions of the others, and asks again soon."""

    async def learn(coordinator: Coordinator) -> None:
        assert set(coordinator.assigned[-1]) == {("topic", 0)}
        coordinator.ids["topic"] = NEW
        await asyncio.sleep(1)

    coordinator = play(answer(1, {OLD: (0,), NEW: (0,)}), answer(1), seconds=3, then=learn)
    assert coordinator.assigned[-1] == {("topic", 0): NEW}


def test_a_topic_that_is_made_anew() -> None:
    """A session has found that its id is not known any more: its partitions are assigned no more. The new ones are as
    soon as the coordinator says so."""

    async def make_anew(coordinator: Coordinator) -> None:
        coordinator.ids["topic"] = NEW
        coordinator.membership.refresh_topics()
        await asyncio.sleep(0.1)
        assert coordinator.assigned[-1] == {}
        coordinator.answers.append(answer(2, {NEW: (0,)}))
        await asyncio.sleep(12)

    coordinator = play(answer(1, {OLD: (0,)}), answer(1), seconds=3, then=make_anew)
    assert coordinator.assigned[-1] == {("topic", 0): NEW}


def test_a_topic_of_an_unknown_id_may_exist() -> None:
    """A broker has died that was a leader and the coordinator: ids are asked for again, and the member that has joined
    anew has no partitions yet. What is locked of the topic must not be forgotten."""

    async def die(coordinator: Coordinator) -> None:
        coordinator.answers = [error(ErrorCode.UNKNOWN_MEMBER_ID), answer(1, {}), answer(2, {OLD: (0,)}), answer(2)]
        await asyncio.sleep(2)
        coordinator.membership.refresh_topics()
        await asyncio.sleep(12)

    coordinator = play(answer(1, {OLD: (0,)}), answer(1), seconds=3, then=die)
    assert {} in coordinator.assigned
    assert all(OLD in one for one in coordinator.existing), coordinator.existing


def test_heartbeats_name_what_coordinators_need() -> None:
    state = MemberState("group", "member", ["b", "a"], "rack")
    joining = state.heartbeat()
    assert (joining.rack_id, joining.subscribed_topic_names) == ("rack", ("a", "b"))
    assert state.answered(answer(7, {OLD: (0,)})) is Then.WAIT
    later = state.heartbeat()
    assert (later.member_epoch, later.rack_id, later.subscribed_topic_names) == (7, None, None)
    assert state.leave().member_epoch == -1
