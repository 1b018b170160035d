"""Topic ids: requested together, and never from an earlier request."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import aiokafka.errors as kafka
import pytest

from aioparallel.clients.aiokafka.internals import Connections
from aioparallel.clients.aiokafka.log_identity import LogIdentity
from tests.support.virtual_time import VirtualLoop


class Cluster:
    """Answers when the test lets it. Each answer has another id."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = asyncio.Event()
        self.error: Exception | None = None
        self.hangs: int | None = None

    async def send(self, node: int, _request: object) -> Any:
        """Answers with the metadata of topic "t"."""
        self.asked += 1
        topic_id = b"%016d" % self.asked
        await (self.answers.wait() if node != self.hangs else asyncio.Future())
        if self.error is not None:
            raise self.error
        return SimpleNamespace(topics=[(0, "t", topic_id, False, [], 0, {})])


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def identity(cluster: Cluster) -> LogIdentity:
    return LogIdentity(cast("Connections", cluster), lambda: [1], list, lambda: None)


async def test_all_callers_of_one_turn_share_a_request(cluster: Cluster, identity: LogIdentity) -> None:
    """As 500 partitions of a topic may. A later caller does not get the answer to an earlier request."""
    several = asyncio.gather(*[identity.topic_ids(["t"], 5) for _ in range(500)])
    while not cluster.asked:
        await asyncio.sleep(0)
    later = asyncio.ensure_future(identity.topic_ids(["t"], 5))
    while cluster.asked < 2:
        await asyncio.sleep(0)
    cluster.answers.set()
    assert await several == [{"t": b"%016d" % 1}] * 500
    assert await later == {"t": b"%016d" % 2}
    assert cluster.asked == 2


async def test_a_caller_that_gives_up_does_not_affect_others(cluster: Cluster, identity: LogIdentity) -> None:
    """A timeout or a cancellation affects only its own caller; an error is raised for all."""
    first, second = (asyncio.ensure_future(identity.topic_ids(["t"], 5)) for _ in range(2))
    with pytest.raises(TimeoutError):
        await identity.topic_ids(["t"], 0.01)
    first.cancel()
    cluster.error = kafka.RequestTimedOutError("it does not answer")
    cluster.answers.set()
    with pytest.raises(TimeoutError, match="it does not answer"):
        await second
    assert first.cancelled()


async def test_nothing_is_left_of_it(cluster: Cluster, identity: LogIdentity) -> None:
    """Closing the client cancels its requests."""
    before = asyncio.all_tasks()
    with pytest.raises(TimeoutError):
        await identity.topic_ids(["t"], 0.01)
    assert asyncio.all_tasks() > before
    identity.close()
    while asyncio.all_tasks() != before:
        await asyncio.sleep(0)


def test_a_broker_that_hangs_does_not_hold_up_the_answer() -> None:
    """The next one is asked after a second. All partitions of the hanging broker wait for this answer."""
    cluster = Cluster()
    cluster.hangs = 1
    cluster.answers.set()

    async def play() -> float:
        identity = LogIdentity(cast("Connections", cluster), lambda: [1, 2], list, lambda: None)
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await identity.topic_ids(["t"], 10) == {"t": b"%016d" % 2}
        return loop.time() - began

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(play()) < 1.1
