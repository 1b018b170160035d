"""Membership in a group of the new protocol, with a coordinator that answers as the test says, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeAlias

import aiokafka.errors as kafka
import pytest

from aioparallel.clients.aiokafka.consumer_membership import ConsumerMembership
from aioparallel.clients.aiokafka.group_member import GroupMember, Subscribed
from aioparallel.clients.aiokafka.group_node import LookUpRefused
from aioparallel.clients.aiokafka.group_refusals import ProtocolRefused
from aioparallel.clients.messages.assignments import Assignment, TopicPartitions
from aioparallel.clients.messages.consumer_groups import (
    JOIN,
    LEAVE,
    LEAVE_TO_RETURN,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from aioparallel.group.client import Generation
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import InstanceFenced, InstanceInUse, NotAuthorized
from aioparallel.records.record import TopicPartition
from tests.support.virtual_time import VirtualLoop

Request: TypeAlias = ConsumerGroupHeartbeatRequest
Response: TypeAlias = ConsumerGroupHeartbeatResponse
Answering = Callable[[Request], Response | Exception]

TOPIC_ID = bytes(15) + b"t"


def ok(epoch: int, *numbers: int, silent: bool = False) -> Response:
    """An answer with these partitions; ``silent``: without an assignment."""
    assignment = None if silent else Assignment((TopicPartitions(TOPIC_ID, numbers),) if numbers else ())
    return Response(member_epoch=epoch, heartbeat_interval_ms=5000, assignment=assignment)


def bad(code: ErrorCode) -> Response:
    return Response(error_code=code, error_message=code.name)


class Node:
    """In place of GroupNode. ``answers`` decides."""

    def __init__(self, answers: Answering) -> None:
        self.answers = answers
        self.asked: list[Request] = []
        self.latency = 0.001
        self.look_ups = 0
        self.session: float | Exception = 45.0

    async def ask(self, api: object, request: Request) -> Response:
        self.asked.append(request)
        await asyncio.sleep(self.latency)
        answer = self.answers(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def coordinator_dead(self) -> None:
        self.look_ups += 1

    async def session_timeout(self) -> float:
        if isinstance(self.session, Exception):
            raise self.session
        return self.session

    def epochs(self) -> list[int]:
        return [one.member_epoch for one in self.asked]


class Names:
    """In place of TopicNames."""

    def __init__(self) -> None:
        self.known: dict[bytes, str] = {TOPIC_ID: "t"}
        self.later: dict[bytes, str] = {}
        """Known when they are looked up."""
        self.latency = 0.0

    async def look_up(self, topic_ids: Collection[bytes]) -> None:
        await asyncio.sleep(self.latency)
        self.known |= self.later

    def forget_all_but(self, topic_ids: Collection[bytes]) -> None:
        pass


class Positions:
    """Keeps what is fetched."""

    def __init__(self) -> None:
        self.held: set[TopicPartition] = set()

    def add(self, partitions: Collection[TopicPartition]) -> None:
        self.held |= set(partitions)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        assert set(partitions) <= self.held

    def remove(self, partitions: Collection[TopicPartition]) -> None:
        self.held -= set(partitions)


class Listener:
    """Keeps what it hears. ``drain``: seconds of ``revoked``. ``on_assigned()`` is called after each ``assigned``."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, object]] = []
        self.drain = 0.0
        self.on_assigned: Callable[[], object] = lambda: None

    def assigned(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        self.heard.append(("assigned", (sorted(one.partition for one in partitions), generation.id)))
        self.on_assigned()

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.heard.append(("revoked", sorted(one.partition for one in partitions)))
        await asyncio.sleep(self.drain)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        self.heard.append(("lost", sorted(one.partition for one in partitions)))

    def fenced(self, error: InstanceFenced) -> None:
        self.heard.append(("fenced", error))


class Stage:
    """One membership and what is around it."""

    def __init__(self, answers: Answering, instance_id: str | None = None) -> None:
        self.node, self.names, self.positions, self.listener = Node(answers), Names(), Positions(), Listener()
        self.failures: list[Exception] = []
        self.member = GroupMember(Subscribed("g", ("t",), instance_id=instance_id), "me")
        self.membership = ConsumerMembership(
            self.member,
            self.node,  # type: ignore[arg-type]
            self.names,  # type: ignore[arg-type]
            self.positions,
            self.listener,
            retry_backoff=0.1,
            on_failure=self.failures.append,
        )

    @property
    def generation(self) -> Generation:
        return Generation(self.member.epoch, "me")


def run(play: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(play)


# -- static members


class StaticCoordinator:
    """Of a group with the single static member ``me``, as Apache Kafka 4.3: an instance id must be released before
    anybody joins with it, also by its own member."""

    def __init__(self) -> None:
        self.owner: str | None = None
        self.epoch = 0
        self.unanswered: set[int] = set()
        """Numbers of requests whose answers are lost."""
        self.count = 0

    def __call__(self, request: Request) -> Response | Exception:
        self.count += 1
        answer = self._answer(request)
        return kafka.RequestTimedOutError() if self.count in self.unanswered else answer

    def _answer(self, request: Request) -> Response:
        if request.member_epoch == JOIN:
            if self.owner is not None:
                return bad(ErrorCode.UNRELEASED_INSTANCE_ID)
            self.owner, self.epoch = request.member_id, self.epoch + 1
            return ok(self.epoch, 0)
        if self.owner != request.member_id:
            return bad(ErrorCode.UNKNOWN_MEMBER_ID if self.owner is None else ErrorCode.FENCED_INSTANCE_ID)
        if request.member_epoch in (LEAVE, LEAVE_TO_RETURN):
            self.owner = None
            return Response(member_epoch=request.member_epoch)
        if request.member_epoch != self.epoch:
            return bad(ErrorCode.FENCED_MEMBER_EPOCH)
        return ok(self.epoch, silent=True)


def test_a_static_member_whose_join_got_no_answer_joins_at_once() -> None:
    """The coordinator has its own id then, and would refuse it until the session expires."""

    async def play() -> None:
        coordinator = StaticCoordinator()
        coordinator.unanswered = {1}
        stage = Stage(coordinator, "i")
        stage.membership.start()
        await asyncio.sleep(2)
        assert stage.listener.heard == [("assigned", ([0], 2))]
        assert LEAVE not in stage.node.epochs()

    run(play())


def test_a_static_member_whose_epoch_is_refused_joins_again_at_once() -> None:
    async def play() -> None:
        coordinator = StaticCoordinator()
        stage = Stage(coordinator, "i")
        stage.membership.start()
        await asyncio.sleep(1)
        stage.membership.doubt(stage.generation)
        await asyncio.sleep(2)
        assert stage.listener.heard == [("assigned", ([0], 1)), ("lost", [0]), ("assigned", ([0], 2))]

    run(play())


def test_a_static_member_takes_nothing_from_another_one() -> None:
    """It waits while another process has the instance id, and then gives up."""

    async def play() -> None:
        coordinator = StaticCoordinator()
        coordinator.owner = "other"
        stage = Stage(coordinator, "i")
        stage.membership.start()
        await asyncio.sleep(100)
        assert coordinator.owner == "other"
        assert [type(error) for error in stage.failures] == [InstanceInUse]

    run(play())


def test_waiting_for_an_instance_id_survives_a_coordinator_that_moves() -> None:
    """The session timeout is asked of a coordinator that may have gone."""

    async def play() -> None:
        coordinator = StaticCoordinator()
        coordinator.owner = "other"
        stage = Stage(coordinator, "i")
        stage.node.session = kafka.GroupCoordinatorNotAvailableError("moving")
        stage.membership.start()
        await asyncio.sleep(3)
        assert stage.failures == []
        coordinator.owner = None
        await asyncio.sleep(3)
        assert stage.listener.heard == [("assigned", ([0], 1))]

    run(play())


def test_a_static_member_that_was_replaced_is_fenced_when_a_commit_tells() -> None:
    """A commit of a replaced member is answered UNKNOWN_MEMBER_ID; only a heartbeat says that another one has the
    id."""

    async def play() -> None:
        coordinator = StaticCoordinator()
        stage = Stage(coordinator, "i")
        stage.membership.start()
        await asyncio.sleep(1)
        coordinator.owner = "other"
        stage.membership.removed(stage.generation)
        await asyncio.sleep(1)
        assert [what for what, _ in stage.listener.heard] == ["assigned", "lost", "fenced"]
        assert [type(error) for error in stage.failures] == [InstanceFenced]

    run(play())


# -- fenced members


def test_a_fenced_member_joins_at_once_where_the_coordinator_still_has_it() -> None:
    """Brokers before Kafka 4.3 refuse a join of a member that they know by a later epoch (KAFKA-19233), until its
    session expires."""
    state = {"epoch": 0, "next": 5}

    def answers(request: Request) -> Response | Exception:
        if request.member_epoch == LEAVE:
            state["epoch"] = 0
            return Response(member_epoch=LEAVE)
        if request.member_epoch == JOIN and state["epoch"] == 0:
            state["epoch"] = state["next"] = state["next"] + 1
            return ok(state["epoch"], 0)
        return (
            ok(state["epoch"], silent=True)
            if request.member_epoch == state["epoch"]
            else bad(ErrorCode.FENCED_MEMBER_EPOCH)
        )

    async def play() -> None:
        stage = Stage(answers)
        stage.membership.start()
        await asyncio.sleep(1)
        stage.membership.removed(stage.generation)
        await asyncio.sleep(1)
        assert stage.listener.heard == [("assigned", ([0], 6)), ("lost", [0]), ("assigned", ([0], 7))]

    run(play())


def test_a_loss_is_told_once_while_a_revocation_lasts() -> None:
    """The coordinator refuses the member again and again, and what it gave away is still drained."""

    async def play() -> None:
        stage = Stage(lambda request: ok(1, 0, 1) if request.member_epoch == JOIN else ok(1, 0))
        stage.listener.drain = 60.0
        stage.membership.start()
        await asyncio.sleep(1)
        stage.node.answers = lambda request: (
            ok(2, 0, 1) if request.member_epoch == JOIN else bad(ErrorCode.UNKNOWN_MEMBER_ID)
        )
        await asyncio.sleep(30)
        assert [what for what, _ in stage.listener.heard] == ["assigned", "revoked", "lost"]

    run(play())


# -- how often


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(lambda: ok(1, silent=True), id="answered"),
        pytest.param(lambda: bad(ErrorCode.UNKNOWN_SERVER_ERROR), id="refused"),
    ],
)
def test_commits_refused_again_and_again_do_not_make_heartbeats_busy(later: Callable[[], Response]) -> None:
    """The listener commits at once when it hears of an epoch. If that is stale again, nothing may spin."""

    async def play() -> None:
        stage = Stage(lambda request: ok(1, 0) if request.member_epoch == JOIN else later())
        loop = asyncio.get_running_loop()
        stage.listener.on_assigned = lambda: loop.call_later(0.001, stage.membership.stale, stage.generation)
        stage.membership.start()
        await asyncio.sleep(5)
        before = len(stage.node.asked)
        await asyncio.sleep(10)
        assert len(stage.node.asked) - before <= 100

    run(play())


def test_heartbeats_back_off_although_commits_are_stale() -> None:
    """A stale commit hurries the next heartbeat, but not past the pause after one that failed."""

    async def play() -> None:
        stage = Stage(lambda request: ok(1, 0) if request.member_epoch == JOIN else kafka.NodeNotReadyError("down"))
        loop = asyncio.get_running_loop()
        stage.listener.on_assigned = lambda: loop.call_later(0.001, stage.membership.stale, stage.generation)
        stage.membership.start()
        await asyncio.sleep(15)
        assert len(stage.node.asked) <= 40

    run(play())


# -- what the listener hears


def test_nothing_is_told_in_the_epoch_of_a_member_that_is_none() -> None:
    """A commit may end the membership while names are looked up."""

    async def play() -> None:
        other = bytes(15) + b"u"

        def answers(request: Request) -> Response:
            if request.member_epoch == JOIN:
                return ok(1, 0)
            assignment = Assignment((TopicPartitions(TOPIC_ID, (0,)), TopicPartitions(other, (0,))))
            return Response(member_epoch=2, heartbeat_interval_ms=5000, assignment=assignment)

        await asyncio.sleep(10)
        stage = Stage(answers)
        stage.names.latency = 1.0
        stage.membership.start()
        while stage.member.epoch != 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # in the look-up
        stage.membership.stale(stage.generation)
        stage.node.answers = lambda request: ok(3)
        stage.membership.removed(stage.generation)
        await asyncio.sleep(1.2)
        assert all(what != "assigned" or told[1] > 0 for what, told in stage.listener.heard), stage.listener.heard  # type: ignore[index]

    run(play())


def test_the_end_of_a_revocation_is_told_when_the_coordinator_knows() -> None:
    """Not before, also if names are looked up meanwhile."""

    async def play() -> None:
        acknowledged: list[float] = []
        other = bytes(15) + b"u"
        loop = asyncio.get_running_loop()

        def answers(request: Request) -> Response:
            if request.member_epoch == JOIN:
                return ok(1, 0, 1)
            if request.topic_partitions == (TopicPartitions(TOPIC_ID, (0,)),):
                acknowledged.append(loop.time())
                return ok(2, silent=True)
            assignment = Assignment((TopicPartitions(TOPIC_ID, (0,)), TopicPartitions(other, (0,))))
            return Response(member_epoch=1, heartbeat_interval_ms=5000, assignment=assignment)

        stage = Stage(answers)
        stage.names.latency = 1.0
        stage.listener.drain = 0.5
        told: list[float] = []
        stage.listener.on_assigned = lambda: told.append(loop.time())
        stage.membership.start()
        await asyncio.sleep(5)
        assert [what for what, _ in stage.listener.heard][:3] == ["assigned", "revoked", "assigned"]
        assert acknowledged[0] <= told[1]

    run(play())


# -- two topics of one name, and partitions that the coordinator has taken back


def test_a_recreated_topic_is_taken_when_the_old_one_has_gone() -> None:
    """Another revocation ends while the name of the new topic is looked up. The old partition has to go first: both
    have the same name."""

    async def play() -> None:
        new = bytes(15) + b"n"
        old, both = (TopicPartitions(TOPIC_ID, (0,)),), (TopicPartitions(TOPIC_ID, (0, 1)),)

        def answers(request: Request) -> Response:
            if request.member_epoch == JOIN:
                return ok(1, 0, 1)
            if request.topic_partitions == both:
                return ok(1, 0)
            if request.topic_partitions in (old, ()) or loop.time() > begin + 2:
                return Response(
                    member_epoch=2 if request.topic_partitions == () else request.member_epoch,
                    heartbeat_interval_ms=5000,
                    assignment=Assignment((TopicPartitions(new, (0,)),)),
                )
            return ok(1, silent=True)

        loop = asyncio.get_running_loop()
        begin = loop.time()
        stage = Stage(answers)
        stage.listener.drain = 3.0
        stage.names.latency = 2.0
        stage.names.later = {new: "t"}
        stage.membership.start()
        await asyncio.sleep(30)
        heard = [(what, told[0] if what == "assigned" else told) for what, told in stage.listener.heard]  # type: ignore[index]
        changes = [one for one in heard if one != ("assigned", [])]
        assert changes == [("assigned", [0, 1]), ("revoked", [1]), ("revoked", [0]), ("assigned", [0])]
        assert stage.positions.held == {TopicPartition("t", 0)}

    run(play())


def test_nothing_is_taken_that_a_lost_answer_may_have_taken_back() -> None:
    """A heartbeat says that the member has nothing yet, as a name is unknown. So the coordinator may give the partition
    to another member at once, in an answer that is lost."""

    async def play() -> None:
        answers: list[Response | Exception] = [
            ok(1, 0, 1),
            kafka.RequestTimedOutError(),
            kafka.RequestTimedOutError(),
            ok(2, 0),
        ]
        stage = Stage(lambda _: answers.pop(0) if len(answers) > 1 else answers[0])
        stage.names.known.clear()
        asked = stage.node.asked
        loop = asyncio.get_running_loop()
        loop.call_later(0.15, lambda: stage.names.later.update({TOPIC_ID: "t"}))
        stage.node.latency = 0.1
        stage.membership.start()
        while len(asked) < 3:
            await asyncio.sleep(0.01)
        assert stage.listener.heard == []
        await asyncio.sleep(5)
        assert next(told for what, told in stage.listener.heard if what == "assigned") == ([0], 2)

    run(play())


def test_what_was_never_taken_is_given_back() -> None:
    """The name of a topic is unknown, and the coordinator takes its partition back: for another member, or because the
    topic is deleted. It waits until the member says that it does not have it, and removes the member otherwise."""

    async def play() -> None:
        told: list[Request] = []

        def answer(request: Request) -> Response:
            if request.member_epoch == JOIN:
                return ok(1, 0)
            if len(stage.node.asked) == 3:
                return ok(1)
            if len(stage.node.asked) > 3 and request.topic_partitions == ():
                told.append(request)
            return ok(2 if told else 1, silent=True)

        stage = Stage(answer)
        stage.names.known.clear()
        stage.membership.start()
        await asyncio.sleep(5)
        assert len(told) == 1
        assert stage.member.epoch == 2

    run(play())


# -- the end


@pytest.mark.parametrize("instance_id", [None, "i"])
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(bad(ErrorCode.NOT_COORDINATOR), id="moved"),
        pytest.param(kafka.NodeNotReadyError("x"), id="down"),
        pytest.param(bad(ErrorCode.UNKNOWN_SERVER_ERROR), id="failed"),
    ],
)
def test_leaving_is_tried_again(first: Response | Exception, instance_id: str | None) -> None:
    """Otherwise the partitions wait for the end of the session."""

    async def play() -> None:
        stage = Stage(lambda _: ok(1, 0), instance_id)
        stage.membership.start()
        await asyncio.sleep(1)
        stage.membership.close()
        answers = [first, Response(member_epoch=LEAVE)]
        stage.node.asked.clear()
        stage.node.answers = lambda _: answers.pop(0)
        await stage.membership.leave()
        assert stage.node.epochs() == [LEAVE if instance_id is None else LEAVE_TO_RETURN] * 2
        assert stage.node.look_ups == 1

    run(play())


def test_brokers_without_the_protocol_are_not_left() -> None:
    """They would refuse that as well, again and again until the time to stop is over."""

    async def play() -> None:
        stage = Stage(lambda _: kafka.IncompatibleBrokerVersion("old"))
        stage.membership.start()
        await asyncio.sleep(1)
        assert [type(error) for error in stage.failures] == [ProtocolRefused]
        await asyncio.wait_for(stage.membership.leave(), 1)
        assert stage.node.epochs() == [JOIN]

    run(play())


def test_a_user_without_the_right_to_the_group_gets_that_error() -> None:
    async def play() -> None:
        stage = Stage(lambda _: LookUpRefused(ErrorCode.GROUP_AUTHORIZATION_FAILED))
        stage.membership.start()
        await asyncio.sleep(1)
        assert [type(error) for error in stage.failures] == [NotAuthorized]

    run(play())


def test_nobody_leaves_brokers_that_do_not_have_the_protocol() -> None:
    """They have no such member, however often they are asked."""

    async def play() -> None:
        stage = Stage(lambda _: kafka.IncompatibleBrokerVersion("ConsumerGroupHeartbeat"))
        stage.membership.start()
        await asyncio.sleep(1)
        assert len(stage.failures) == 1
        stage.membership.close()
        async with asyncio.timeout(1.0):
            await stage.membership.leave()

    run(play())
