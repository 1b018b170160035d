"""What users of other consumers have reported of members of the new group protocol (KIP-848), tried on this one with a
coordinator that answers as the test says, in virtual time. ``docs/testing.md`` names the threads."""

from __future__ import annotations

import asyncio

from aioparallel.clients.messages.assignments import Assignment, TopicPartitions
from aioparallel.clients.messages.consumer_groups import JOIN
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.record import TopicPartition
from tests.unit.clients.test_consumer_membership import TOPIC_ID, Request, Response, Stage, bad, ok, run

OTHER_ID = bytes(15) + b"u"


def both(epoch: int) -> Response:
    """A partition of each of two topics."""
    assignment = Assignment((TopicPartitions(TOPIC_ID, (0,)), TopicPartitions(OTHER_ID, (1,))))
    return Response(member_epoch=epoch, heartbeat_interval_ms=5000, assignment=assignment)


def test_a_topic_whose_name_comes_late_takes_nothing_from_the_others() -> None:
    """What is known is taken at once and stays. The late one is asked for twice a second, and its heartbeats are no
    more than those of others."""

    async def play() -> None:
        stage = Stage(lambda request: both(1) if request.topic_partitions is not None else ok(1, silent=True))
        stage.membership.start()
        await asyncio.sleep(60)
        assert stage.listener.heard == [("assigned", ([0], 1))]
        before = len(stage.node.asked)
        await asyncio.sleep(60)
        assert len(stage.node.asked) - before <= 13
        stage.names.later = {OTHER_ID: "u"}
        await asyncio.sleep(1)
        assert stage.listener.heard == [("assigned", ([0], 1)), ("assigned", ([1], 1))]
        assert stage.positions.held == {TopicPartition("t", 0), TopicPartition("u", 1)}
        assert stage.node.asked[-1].topic_partitions is None or len(stage.node.asked[-1].topic_partitions) == 2

    run(play())


def test_the_interval_of_heartbeats_follows_the_config_of_the_group() -> None:
    """It may change while the member runs."""

    async def play() -> None:
        interval = 5000

        def answers(request: Request) -> Response:
            assignment = Assignment((TopicPartitions(TOPIC_ID, (0,)),))
            return Response(member_epoch=1, heartbeat_interval_ms=interval, assignment=assignment)

        stage = Stage(answers)
        stage.membership.start()
        await asyncio.sleep(60)
        for changed, least, most in ((1000, 55, 60), (15_000, 3, 5), (5000, 11, 13)):
            interval = changed
            await asyncio.sleep(300)
            before = len(stage.node.asked)
            await asyncio.sleep(60)
            assert least <= len(stage.node.asked) - before <= most

    run(play())


def test_a_coordinator_that_has_forgotten_the_last_epochs() -> None:
    """Its log has lost its end. The member, whose epoch is too large, joins at once and has its partitions again."""

    async def play() -> None:
        epoch = 5

        def answers(request: Request) -> Response:
            if request.member_epoch in (JOIN, epoch):
                return ok(epoch, 0, silent=request.member_epoch != JOIN)
            return bad(ErrorCode.FENCED_MEMBER_EPOCH)

        stage = Stage(answers)
        stage.membership.start()
        await asyncio.sleep(1)
        epoch = 3
        await asyncio.sleep(10)
        assert stage.listener.heard == [("assigned", ([0], 5)), ("lost", [0]), ("assigned", ([0], 3))]
        assert stage.failures == []

    run(play())


def test_an_answer_that_comes_after_leaving_takes_nothing() -> None:
    """The member leaves while its join is on the way, and tells nobody of what that brings."""

    async def play() -> None:
        stage = Stage(lambda request: ok(3, 0) if request.member_epoch == JOIN else Response(member_epoch=-1))
        stage.node.latency = 5.0
        stage.membership.start()
        await asyncio.sleep(1)
        stage.membership.close()
        await stage.membership.leave()
        await asyncio.sleep(60)
        assert stage.node.epochs() == [JOIN, -1]
        assert stage.listener.heard == []

    run(play())
