"""Where partitions start of which nothing is committed: old ones, new ones, and those of members that start at once."""

from __future__ import annotations

import asyncio
import datetime as dt
import re
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from typing import Any, Unpack

import pytest

from aioparallel import ParallelConsumer
from aioparallel.config.options import OptionFields
from aioparallel.group.client import Committed
from aioparallel.records.errors import NoCommittedOffset
from aioparallel.records.record import Record, TopicPartition
from aioparallel.testing.memory import Fault, InMemoryBroker, InMemoryClient, Request
from tests.support.memory.consuming import GROUP, Seen, committed, consumer_of, produce
from tests.support.waiting import until

N = [TopicPartition("n", number) for number in range(6)]


class Slow(InMemoryClient):
    """Told late where logs end. ``may_look``: at what is committed."""

    pauses: Mapping[TopicPartition, float] = {}
    may_look = asyncio.Event()

    async def committed(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, Committed]:
        await self.may_look.wait()
        return await super().committed(partitions, timeout)

    async def end_offsets(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        found = await super().end_offsets(partitions, timeout)
        await asyncio.sleep(max((self.pauses.get(partition, 0) for partition in partitions), default=0))
        return found


class Members:
    """Of one group, all reading with "latest"; those that enter together get their first partitions together."""

    def __init__(self, broker: InMemoryBroker, topics: list[str], **options: Unpack[OptionFields]) -> None:
        self.seen = Seen()
        self._broker, self._topics = broker, topics
        self._options: OptionFields = {"auto_offset_reset": "latest", "commit_interval": 0.02, **options}
        self._stack = AsyncExitStack()
        self.clients: list[Slow] = []
        self.consumers: list[ParallelConsumer[Any, Any]] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Members:
        await self._stack.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for consumer in self.consumers:
            consumer.stop()
        for found in await asyncio.gather(*self.tasks, return_exceptions=True):
            assert found is None or "has been stopped" in str(found)  # those that crashed
        await self._stack.aclose()

    async def enter(self, count: int, pauses: Mapping[TopicPartition, float] | None = None) -> None:
        """Let so many start, and look at once."""
        may_look = asyncio.Event()
        for _ in range(count):
            client = Slow(self._broker, GROUP, session_timeout=2, heartbeat_interval=0.02)
            client.pauses, client.may_look = pauses or {}, may_look
            self.clients.append(client)
            consumer: ParallelConsumer[Any, Any] = ParallelConsumer(
                self._topics, group_id=GROUP, client=client, **self._options
            )
            self.consumers.append(consumer)
            await self._stack.enter_async_context(consumer)
            self.tasks.append(asyncio.create_task(consumer.run(self.seen)))
        await until(lambda: all(self.held(member) for member in range(len(self.consumers))))
        may_look.set()

    def held(self, member: int) -> set[TopicPartition]:
        consumer = self.consumers[member]
        if consumer._engine is None:
            return set()
        return {TopicPartition(p.topic, p.partition) for p in consumer.stats().partitions}

    def owner(self, partition: TopicPartition) -> int:
        return next(member for member in range(len(self.consumers)) if partition in self.held(member))

    def crash(self, member: int) -> None:
        self.clients[member].crash()

    def values(self, *partitions: TopicPartition) -> list[bytes | None]:
        return [record.value for record in self.seen.ended if record.topic_partition in partitions]


def fill(broker: InMemoryBroker, text: bytes, *partitions: TopicPartition, count: int = 5) -> None:
    for topic, number in partitions:
        for _ in range(count):
            broker.append(topic, text, partition=number)


@pytest.mark.parametrize("members", [1, 2])
async def test_records_that_precede_the_assignment_of_a_new_partition_are_handled(
    broker: InMemoryBroker, members: int
) -> None:
    """With "latest", too: whoever wrote them knew of the partition before any consumer did."""
    broker.create_topic("n", 3)
    fill(broker, b"old", *N[:3])
    async with asyncio.timeout(120), Members(broker, ["n"]) as group:
        await group.enter(members)
        await until(lambda: all(committed(broker, partition) == 5 for partition in N[:3]))
        broker.add_partitions("n", 6)
        fill(broker, b"new", *N)
        await until(lambda: len(group.seen.ended) == 30)
        await until(lambda: all(committed(broker, partition) == 5 for partition in N[3:]))
        assert group.values(*N) == [b"new"] * 30


async def test_new_partitions_as_the_option_says(broker: InMemoryBroker) -> None:
    """ "latest" passes over what is there; "error" ends the run and names the option."""
    broker.create_topic("n", 3)
    async with asyncio.timeout(120), Members(broker, ["n"], auto_offset_reset_new_partitions="latest") as group:
        await group.enter(1)
        await until(lambda: all(committed(broker, partition) == 0 for partition in N[:3]))
        broker.add_partitions("n", 6)
        fill(broker, b"before", *N[3:])
        await until(lambda: all(committed(broker, partition) == 5 for partition in N[3:]))
        assert not group.seen.ended
    del broker.group(GROUP).offsets[N[5]]
    async with asyncio.timeout(120), consumer_of(broker, "n", auto_offset_reset_new_partitions="error") as consumer:
        with pytest.raises(NoCommittedOffset, match=r"n-5.*auto_offset_reset_new_partitions is 'error'"):
            await consumer.run(Seen())


async def test_error_stays_an_error(broker: InMemoryBroker) -> None:
    """``auto_offset_reset="error"`` lets no partition start without a word, new ones included."""
    broker.create_topic("n", 3)
    for partition in N[:2]:
        broker.group(GROUP).offsets[partition] = Committed(0, "")
    async with asyncio.timeout(10), consumer_of(broker, "n", auto_offset_reset="error") as consumer:
        with pytest.raises(NoCommittedOffset, match=r"n-2.*auto_offset_reset is 'error'"):
            await consumer.run(Seen())


@pytest.mark.parametrize("gone", [0, 1])
async def test_a_partition_below_a_committed_one_is_not_new(broker: InMemoryBroker, gone: int) -> None:
    """Its offset has expired: ``auto_offset_reset`` says where it starts, and "error" stays an error."""
    broker.create_topic("n", 3)
    fill(broker, b"old", *N[:3])
    for partition in {*N[:3]} - {N[gone]}:
        broker.group(GROUP).offsets[partition] = Committed(5, "")
    async with asyncio.timeout(10), consumer_of(broker, "n", auto_offset_reset="error") as consumer:
        with pytest.raises(NoCommittedOffset, match=f"n-{gone}.*auto_offset_reset is 'error'"):
            await consumer.run(Seen())
    async with asyncio.timeout(10), Members(broker, ["n"]) as group:
        await group.enter(1)
        await until(lambda: committed(broker, N[gone]) == 5)
        assert not group.seen.ended


async def test_a_topic_of_which_nothing_is_committed_is_not_new(broker: InMemoryBroker) -> None:
    """One that is added to the subscription follows ``auto_offset_reset``, at once."""
    for name in ("n", "o"):
        broker.create_topic(name, 3)
        fill(broker, b"old", *[TopicPartition(name, number) for number in range(3)])
    for partition in N[:3]:
        broker.group(GROUP).offsets[partition] = Committed(5, "")
    async with asyncio.timeout(10), Members(broker, ["n", "o"]) as group:
        await group.enter(1)
        took = await until(lambda: all(committed(broker, TopicPartition("o", number)) == 5 for number in range(3)))
        assert took < 1
        assert not group.seen.ended


async def test_members_that_start_at_once_take_no_partition_for_new(broker: InMemoryBroker) -> None:
    """The owner of the highest one is late: the other member waits for its commit, or that one would look new. What was
    written while it waited is handled, and what it has committed already goes on meanwhile."""
    broker.create_topic("n", 4)
    broker.create_topic("o", 2)
    fill(broker, b"old", *N[:4])
    others = [TopicPartition("o", number) for number in range(2)]
    for partition in others:
        broker.group(GROUP).offsets[partition] = Committed(0, "")
    async with asyncio.timeout(120), Members(broker, ["n", "o"]) as group:
        await group.enter(2, {N[3]: 3.0})
        early = 1 - group.owner(N[3])
        waits = group.held(early) & {*N}
        assert waits
        await asyncio.sleep(1)
        fill(broker, b"meanwhile", *waits)
        fill(broker, b"other", *others)
        await until(lambda: len(group.values(*others)) == 10, 1)
        assert not [partition for partition in N if committed(broker, partition) is not None]
        await until(lambda: all(committed(broker, partition) is not None for partition in N[:4]), 5)
        await until(lambda: len(group.values(*N)) == 5 * len(waits))
        assert set(group.values(*N)) == {b"meanwhile"}


async def test_the_owner_of_the_highest_partition_dies(
    broker: InMemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Before its first commit: whoever has its partitions then does it."""
    broker.create_topic("n", 4)
    fill(broker, b"old", *N[:4])
    async with asyncio.timeout(120), Members(broker, ["n"]) as group:
        await group.enter(2, {N[3]: 3.0})
        group.crash(group.owner(N[3]))
        await until(lambda: all(committed(broker, partition) == 5 for partition in N[:4]))
        assert not group.seen.ended
        assert "start_out_of_turn" not in [getattr(line, "action", "") for line in caplog.records]


async def test_no_hole_remains_below_a_new_partition(broker: InMemoryBroker) -> None:
    """The owner of the lowest new partition dies before its first commit: nobody has committed one above it, so that it
    is new to its next owner as well."""
    broker.create_topic("n", 3)
    async with asyncio.timeout(120), Members(broker, ["n"]) as group:
        await group.enter(2)
        await until(lambda: all(committed(broker, partition) == 0 for partition in N[:3]))
        for client in group.clients:
            client.pauses = {N[3]: 5.0}
        broker.add_partitions("n", 6)
        fill(broker, b"new", *N[3:])
        await until(lambda: {*N} <= group.held(0) | group.held(1))
        assert group.held(1 - group.owner(N[3])) & {*N[4:]}
        await asyncio.sleep(1)
        assert not [partition for partition in N[3:] if committed(broker, partition) is not None]
        group.crash(group.owner(N[3]))
        for client in group.clients:
            client.pauses = {}
        await until(lambda: len(group.seen.ended) == 15)
        assert group.values(*N[3:]) == [b"new"] * 15


@pytest.mark.parametrize("answers", [True, False])
async def test_nobody_waits_for_ever(broker: InMemoryBroker, caplog: pytest.LogCaptureFixture, answers: bool) -> None:
    """The owner of the highest partition lives, and does not get on: after session and rebalance timeout the others
    start, whether the coordinator answers meanwhile or not, and tell it."""
    broker.create_topic("n", 4)
    fill(broker, b"old", *N[:4])
    async with asyncio.timeout(300), Members(broker, ["n"], session_timeout=10) as group:
        await group.enter(2, {N[3]: 1000.0})
        owner = group.owner(N[3])
        waits = group.held(1 - owner)
        await asyncio.sleep(6)
        told = [getattr(line, "action", "") for line in caplog.records]
        assert (told.count("start_waits"), told.count("start_out_of_turn")) == (1, 0)
        if not answers:
            broker.faults.always(Request.OFFSET_FETCH, Fault(is_request_lost=True))
        took = await until(lambda: all(committed(broker, partition) == 5 for partition in waits), 100)
        assert 60 < took < 80
        told = [getattr(line, "action", "") for line in caplog.records]
        assert (told.count("start_waits"), told.count("start_out_of_turn")) == (1, 1)
        assert not group.seen.ended
        group.crash(owner)


@pytest.mark.parametrize(
    ("given", "differ"),
    [
        ({}, False),
        ({"auto_offset_reset": "latest"}, True),
        ({"auto_offset_reset": "latest", "auto_offset_reset_new_partitions": "latest"}, False),
        ({"auto_offset_reset": "latest", "start_at": dt.datetime.now(dt.UTC)}, False),
        ({"auto_offset_reset": "latest", "start_at": {N[0]: 3}}, True),
    ],
)
async def test_where_all_start_alike_nobody_waits(broker: InMemoryBroker, given: OptionFields, differ: bool) -> None:
    """Both options say the same, or a time says it all."""
    broker.create_topic("n", 4)
    options: OptionFields = {"auto_offset_reset": "earliest"}
    options.update(given)
    async with asyncio.timeout(120), Members(broker, ["n"], **options) as group:
        await group.enter(2)
        owner = group.owner(N[3])
        group.crash(owner)
        waits = group.held(1 - owner) & {*N}
        early = await until(lambda: all(committed(broker, partition) is not None for partition in waits))
        assert (early > 1) is differ


async def test_what_is_written_while_a_time_is_looked_up_is_handled(broker: InMemoryBroker) -> None:
    """Nothing was as late as ``start_at``; then a record came, and only after that it was asked where the log ends."""

    class Written(InMemoryClient):
        async def offsets_for_times(
            self, times: Mapping[TopicPartition, int], timeout: float
        ) -> Mapping[TopicPartition, int | None]:
            found = await super().offsets_for_times(times, timeout)
            produce(broker, [b"k"], 0, "n")
            return found

    broker.create_topic("n", 1)
    fill(broker, b"old", N[0])
    start = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    client = Written(broker, GROUP, heartbeat_interval=0.02)
    seen: list[int] = []

    async def handle(record: Record) -> None:
        seen.append(record.offset)

    async with asyncio.timeout(20), ParallelConsumer("n", group_id=GROUP, client=client, start_at=start) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: committed(broker, N[0]) is not None)
        produce(broker, [b"k"], 0, "n")
        await until(lambda: 6 in seen)
        assert seen == [5, 6]
        consumer.stop()
        await running


async def test_what_is_written_while_it_is_asked_what_is_new_is_handled(broker: InMemoryBroker) -> None:
    """With "latest" a partition starts where its log ended before anything else was asked."""

    class Written(InMemoryClient):
        is_running = False

        async def partitions(self, topics: Collection[str] | re.Pattern[str], timeout: float) -> set[TopicPartition]:
            found = await super().partitions(topics, timeout)
            if self.is_running:
                fill(broker, b"meanwhile", N[0])
            return found

    broker.create_topic("n", 1)
    fill(broker, b"old", N[0])
    client = Written(broker, GROUP, heartbeat_interval=0.02)
    seen = Seen()
    consumer = ParallelConsumer("n", group_id=GROUP, client=client, auto_offset_reset="latest")
    async with asyncio.timeout(20), consumer:
        client.is_running = True
        running = asyncio.create_task(consumer.run(seen))
        await until(lambda: len(seen.ended) == 5)
        consumer.stop()
        await running
    assert seen.offsets == [5, 6, 7, 8, 9]
