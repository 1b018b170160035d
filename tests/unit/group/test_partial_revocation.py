"""The new group protocol gives away some partitions while the others go on, and epochs go up meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Unpack

from aioparallel.config.options import OptionFields
from aioparallel.consumer import ParallelConsumer
from aioparallel.group.run import GroupRun
from aioparallel.records.record import Record, TopicPartition
from aioparallel.testing.memory import ErrorCode, Fault, InMemoryBroker, Request
from tests.support.inside import run_of
from tests.support.memory.consuming import GROUP, committed, consumer_of, produce
from tests.support.waiting import until

P0, P1 = TopicPartition("m", 0), TopicPartition("m", 1)
Handler = Callable[[Record[Any, Any]], Awaitable[None]]


@asynccontextmanager
async def running(
    broker: InMemoryBroker, handler: Handler, **options: Unpack[OptionFields]
) -> AsyncIterator[ParallelConsumer[Any, Any]]:
    """A member of the new protocol that runs; stopped at the end."""
    async with consumer_of(broker, "m", protocol="consumer", **options) as consumer:
        task = asyncio.create_task(consumer.run(handler))
        await until(lambda: consumer._engine is not None)
        try:
            yield consumer
        finally:
            consumer.stop()
            await task


def held(consumer: ParallelConsumer[Any, Any]) -> set[TopicPartition]:
    return set(run_of(consumer).held)


class Gate:
    """A handler that waits at the first record of a partition, whatever cancels it."""

    def __init__(self, partition: TopicPartition) -> None:
        self.release = asyncio.Event()
        self.waits = False
        self.ended: list[tuple[int, int]] = []
        self._partition = partition

    async def __call__(self, record: Record[Any, Any]) -> None:
        if record.topic_partition == self._partition and record.offset == 0:
            self.waits = True
            while not self.release.is_set():
                try:
                    await self.release.wait()
                except asyncio.CancelledError:
                    continue
        self.ended.append((record.partition, record.offset))


async def nothing(record: Record[Any, Any]) -> None:
    pass


def going_of(consumer: ParallelConsumer[Any, Any]) -> list[TopicPartition]:
    return [TopicPartition(one.topic, one.partition) for one in consumer.stats().partitions if one.state == "draining"]


async def test_what_is_kept_goes_on(broker: InMemoryBroker) -> None:
    """While one partition drains, the other is read, run and committed, and the member has joined."""
    broker.create_topic("m", 2)
    produce(broker, [b"k"], 1, "m")
    gate = Gate(P1)
    async with running(broker, gate, drain_timeout=20) as first:
        await until(lambda: gate.waits)
        async with running(broker, nothing) as second:
            await until(lambda: going_of(first) == [P1])
            produce(broker, [b"k"] * 5, 0, "m")
            await until(lambda: committed(broker, P0) == 5)
            run = run_of(first)
            assert isinstance(run, GroupRun)
            assert run.has_joined
            assert first.health().problems == ()
            assert held(second) == set()
            gate.release.set()
            await until(lambda: held(second) == {P1})
            await until(lambda: run.has_joined and held(first) == {P0})
            assert committed(broker, P1) == 1
            produce(broker, [b"k"], 0, "m")
            await until(lambda: committed(broker, P0) == 6)


async def test_a_member_that_gives_everything_away_has_not_joined(broker: InMemoryBroker) -> None:
    """Until the group answers that it has nothing."""
    broker.create_topic("m", 1)
    produce(broker, [b"k"], 0, "m")
    gate = Gate(P0)
    async with running(broker, gate, drain_timeout=20) as first:
        await until(lambda: gate.waits)
        going = asyncio.create_task(run_of(first).revoked([P0]))
        await until(lambda: going_of(first))
        assert not run_of(first).has_joined
        gate.release.set()
        await going


async def test_what_drains_is_not_committed_after_a_loss(broker: InMemoryBroker) -> None:
    """The member is removed while it gives a partition away, and joins again. The former assignment commits nothing in
    the new epoch, as another member has gone further meanwhile; and no other one takes its place."""
    broker.create_topic("m", 2)
    produce(broker, [b"k"] * 3, 1, "m")
    gate = Gate(P1)
    async with running(broker, gate, drain_timeout=20) as first:
        await until(lambda: gate.waits)
        async with running(broker, nothing) as second:
            await until(lambda: going_of(first) == [P1])
            group = broker.consumer_groups.group(GROUP)
            assert group is not None
            [former] = [member.id for member in group.members.values() if member.revoking]
            broker.expire_session(GROUP, former, asyncio.get_running_loop().time())
            await until(lambda: committed(broker, P1) == 3)
            await until(lambda: len(broker.member_ids(GROUP)) == 2 and run_of(first).has_joined)
            gate.release.set()
            await until(lambda: (1, 0) in gate.ended and not going_of(first))
            await until(lambda: len(held(first)) == len(held(second)) == 1)
            assert held(first) | held(second) == {P0, P1}
            assert committed(broker, P1) == 3


async def test_a_stale_commit_is_repeated_with_the_new_epoch(broker: InMemoryBroker) -> None:
    """As soon as it is known, and not at the next interval; nothing is lost."""
    broker.create_topic("m", 2)
    loop = asyncio.get_running_loop()
    async with running(broker, nothing, commit_interval=1000, commit_after=1) as first:
        await until(lambda: committed(broker, P0) == committed(broker, P1) == 0)
        broker.faults.script(Request.COMMIT, Fault(error=ErrorCode.STALE_MEMBER_EPOCH))
        began = loop.time()
        produce(broker, [b"k"], 0, "m")
        await until(lambda: first.stats().failed_commits == 1)
        async with running(broker, nothing):
            await until(lambda: committed(broker, P0) == 1)
            assert loop.time() - began < 100
        assert first.stats().failed_commits == 1
