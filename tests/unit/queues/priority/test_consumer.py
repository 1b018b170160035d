"""A consumer of several priorities in memory: groups, order, shares, urgent records, rebalances, ends."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from aioparallel import (
    BrokerUnreachable,
    ConfigurationError,
    FailurePolicy,
    Record,
    Reject,
    RetryPolicy,
    TopicNotFound,
    batches,
)
from aioparallel.group.client import CommitFault, Committed, Generation
from aioparallel.handlers.batches import Batch
from aioparallel.queues.priority import PriorityConsumer, priority_of
from aioparallel.queues.priority.weighted_sharing import Sharing
from aioparallel.records.errors import InstanceFenced
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient, Request
from tests.support.waiting import until
from tests.unit.queues.priority.conftest import clients, consumer, produce, running


class Handler:
    """Notes what it is given; ``does`` by record."""

    def __init__(self, does: Callable[[Record], Any] = lambda record: None) -> None:
        self.does = does
        self.seen: list[Record] = []
        self.by_priority: Counter[int] = Counter()

    async def __call__(self, record: Record) -> None:
        self.seen.append(record)
        result = self.does(record)
        if result is not None:
            await result
        self.by_priority[priority_of(record)] += 1


def committed(broker: InMemoryBroker, priority: int, partition: int = 0) -> int:
    """What the group of this priority has committed."""
    place = TopicPartition(f"jobs-{priority}", partition)
    found = broker.group(f"g-{priority}").offsets.get(place)
    return 0 if found is None else found.offset


def sharing_of(one: PriorityConsumer[Any, Any]) -> Sharing:
    """The extension that shares this consumer."""
    return next(found for found in one._extensions.all if isinstance(found, Sharing))


async def test_each_priority_has_its_group(broker: InMemoryBroker) -> None:
    """All records run once, and are committed by the group of their priority."""
    handler = Handler()
    for priority in range(3):
        for partition in range(2):
            produce(broker, priority, 100, partition=partition)
    async with running(consumer(broker), handler) as one:
        await until(lambda: handler.by_priority == {0: 200, 1: 200, 2: 200})
        await until(lambda: all(committed(broker, p, n) == 100 for p in range(3) for n in range(2)))
        stats = one.stats()
        assert stats.succeeded == 600
        assert {partition.topic for partition in stats.partitions} == {"jobs-0", "jobs-1", "jobs-2"}
        assert stats.lag == 0
    assert all(not broker.group(f"g-{priority}").members for priority in range(3))


async def test_the_order_of_a_key_holds_within_a_priority(broker: InMemoryBroker) -> None:
    """One record of a key at a time, ascending."""
    running_now: set[tuple[str, bytes | None]] = set()
    last: dict[tuple[str, bytes | None], int] = {}

    async def handle(record: Record) -> None:
        place = record.topic, record.key
        assert place not in running_now
        assert last.get(place, -1) < record.offset
        running_now.add(place)
        await asyncio.sleep(0.001 * (record.offset % 3))
        running_now.discard(place)
        last[place] = record.offset

    for number in range(200):
        for priority in range(3):
            broker.append(f"jobs-{priority}", b"%d" % number, key=b"%d" % (number % 5), partition=0)
    async with running(consumer(broker, max_concurrency=20), handle) as one:
        await until(lambda: one.stats().succeeded == 600)
    assert not one.health().problems


@pytest.mark.parametrize("options", [{}, {"max_buffered": 2_000, "max_poll_records": 700}, {"max_poll_records": 7}])
async def test_shares_are_exponential(broker: InMemoryBroker, options: dict[str, Any]) -> None:
    """While all have a backlog each has twice the part of the one below it."""
    handler = Handler(lambda record: asyncio.sleep(0.002))
    for priority in range(3):
        for partition in range(2):
            produce(broker, priority, 10_000, partition=partition)
    async with running(consumer(broker, max_concurrency=70, **options), handler):
        await until(lambda: handler.by_priority.total() > 500)
        handler.by_priority.clear()
        await until(lambda: handler.by_priority.total() > 7_000)
        total = handler.by_priority.total()
        for priority in range(3):
            assert handler.by_priority[priority] == pytest.approx(total * 2**priority / 7, rel=0.05)


async def test_an_urgent_record_goes_before_what_was_read_already(broker: InMemoryBroker) -> None:
    """It starts at the next place that is free, though the buffer is full of the rest."""
    ends: asyncio.Queue[None] = asyncio.Queue()
    handler = Handler(lambda record: ends.get())
    produce(broker, 0, 20_000)
    async with running(consumer(broker, max_concurrency=10), handler) as one:
        await until(lambda: len(handler.seen) == 10 and one.stats().buffered > 400)
        produce(broker, 2, 1)
        await until(lambda: any(part.topic == "jobs-2" and part.buffered for part in one.stats().partitions))
        ends.put_nowait(None)
        await until(lambda: len(handler.seen) == 11)
        assert priority_of(handler.seen[-1]) == 2
        for _ in range(20_001):
            ends.put_nowait(None)


async def test_a_lone_priority_has_all_places(broker: InMemoryBroker) -> None:
    """The lowest, too: nothing is kept free, and the budget bursts."""
    gate = asyncio.Event()
    handler = Handler(lambda record: gate.wait())
    produce(broker, 0, 5_000)
    async with running(consumer(broker, max_concurrency=1_500), handler) as one:
        await until(lambda: len(handler.seen) == 1_500)
        gate.set()
        await until(lambda: one.stats().succeeded == 5_000)
        assert sharing_of(one)._budget.burst()[1] > 0 or one.stats().buffered == 0


async def test_failures_and_dead_letters_are_as_ever(broker: InMemoryBroker) -> None:
    """What is rejected is put away, and its offset complete."""

    def reject(record: Record) -> None:
        if record.offset == 3:
            raise Reject("no")

    handler = Handler(reject)
    for priority in range(3):
        produce(broker, priority, 10)
    failures = FailurePolicy(dead_letter="dead")
    async with running(consumer(broker, failures=failures), handler) as one:
        await until(lambda: one.stats().dead_lettered == 3)
        await until(lambda: all(committed(broker, priority) == 10 for priority in range(3)))
    log = broker.log(TopicPartition("dead", 0))
    assert log is not None
    assert log.end_offset == 3


async def test_keys_and_values_are_deserialised(broker: InMemoryBroker) -> None:
    """Of every priority."""
    handler = Handler()
    for priority in range(3):
        produce(broker, priority, 1)
    read = consumer(
        broker, key_deserializer=lambda key: ("key", key), value_deserializer=lambda value: ("value", value)
    )
    async with running(read, handler):
        await until(lambda: len(handler.seen) == 3)
    seen: list[Record[Any, Any]] = [*handler.seen]
    assert all(record.key == ("key", record.raw_key) for record in seen)
    assert all(record.value == ("value", record.raw_value) for record in seen)


async def test_handlers_by_logical_topic(broker: InMemoryBroker) -> None:
    """One that is missing is named before anything is read."""
    for priority in range(3):
        broker.create_topic(f"mail-{priority}", 1)
        produce(broker, priority, 5)
        produce(broker, priority, 7, topic="mail")
    jobs, mail = Handler(), Handler()
    one = consumer(broker, ["jobs", "mail"])
    async with running(one, {"jobs": jobs, "mail": mail}):
        await until(lambda: jobs.by_priority == dict.fromkeys(range(3), 5))
        await until(lambda: mail.by_priority == dict.fromkeys(range(3), 7))
    async with consumer(broker, ["jobs", "mail"]) as other:
        with pytest.raises(ConfigurationError, match="has none for topic mail"):
            await other.run({"jobs": jobs})


async def test_a_batch_is_of_one_priority(broker: InMemoryBroker) -> None:
    """Also where the handler gathers of any partition, and of several topics."""
    for priority in range(3):
        broker.create_topic(f"mail-{priority}", 1)
    sizes: Counter[int] = Counter()
    mixed = 0

    @batches(size=50, linger=0.02, by="any")
    async def together(batch: Batch[Record]) -> None:
        nonlocal mixed
        (priority,) = {priority_of(record) for record in batch}
        sizes[priority] += len(batch)
        mixed += len({record.topic for record in batch}) > 1

    for priority in range(3):
        produce(broker, priority, 200)
        produce(broker, priority, 200, topic="mail")
    async with running(consumer(broker, ["jobs", "mail"]), together) as one:
        await until(lambda: one.stats().succeeded == 1_200)
    assert sizes == {0: 400, 1: 400, 2: 400}
    assert mixed


async def test_until_end_reads_all_priorities(broker: InMemoryBroker) -> None:
    """Also where one has nothing, and the groups tell their assignments one after the other."""
    handler = Handler()
    produce(broker, 0, 1_500)
    produce(broker, 2, 30, partition=1)
    async with consumer(broker, until="end") as one:
        await one.run(handler)
    assert handler.by_priority == {0: 1_500, 2: 30}
    assert committed(broker, 0) == 1_500


class Silent:
    """A listener that takes what it is given."""

    def assigned(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        pass

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        pass

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        pass

    def fenced(self, error: InstanceFenced) -> None:
        pass


async def test_until_end_waits_for_every_group(broker: InMemoryBroker) -> None:
    """Also where the first to answer has no partition for this member: another one reads them."""
    for priority in range(2):
        produce(broker, priority, 100)
    broker.create_topic("few-0", 1)
    broker.create_topic("few-1", 1)
    broker.create_topic("few-2", 1)
    for priority in range(2):
        produce(broker, priority, 100, topic="few")
    other = InMemoryClient(broker, "g-2", heartbeat_interval=0.02)
    await other.start(1)
    other.subscribe(["few-2"], Silent())
    await until(lambda: len(broker.member_ids("g-2")) == 1)
    held = clients(broker)
    loop = asyncio.get_running_loop()

    def late(subscribe: Callable[..., None], *given: Any) -> None:
        loop.call_later(3.0, partial(subscribe, *given))

    for client in held[:2]:
        client.subscribe = partial(late, client.subscribe)  # type: ignore[method-assign]
    handler = Handler()
    async with consumer(broker, "few", until="end", clients=held) as one:
        await one.run(handler)
    assert handler.by_priority == {0: 100, 1: 100}
    await other.stop(1)


async def test_a_full_priority_does_not_linger(broker: InMemoryBroker) -> None:
    """Where its part of the buffer has no room, its batches do not wait for more, though others may bring records."""

    async def save(batch: Batch[Record]) -> None:
        await asyncio.sleep(0.001)

    produce(broker, 0, 1, partition=1)
    produce(broker, 0, 5_000)
    loop = asyncio.get_running_loop()
    one = consumer(broker, max_buffered=1_400, max_poll_records=350)
    async with running(one, batches(save, size=500, linger=10)):
        began = loop.time()
        await until(lambda: one.stats().succeeded >= 4_000)
        assert loop.time() - began < 5


async def test_a_burst_begins_within_a_window(broker: InMemoryBroker) -> None:
    """Six polls after the highest priority has run dry the lowest takes all that it has left unused."""
    for priority in (0, 2):
        for partition in range(2):
            produce(broker, priority, 6_000, partition=partition)
    one = consumer(broker, max_concurrency=300, max_buffered=1_400)
    budget, polls = sharing_of(one)._budget, list[tuple[list[int], tuple[int, int]]]()
    polled = budget.polled

    def note(counts: Sequence[int]) -> None:
        polls.append((list(counts), budget.burst()))
        polled(counts)

    budget.polled = note  # type: ignore[method-assign]
    handler = Handler(lambda record: asyncio.sleep(0.01))
    async with running(one, handler):
        await until(lambda: handler.by_priority.total() == 24_000)
    dry = max(number for number, (counts, _) in enumerate(polls) if counts[2])
    assert all(burst == (2, 142) for counts, burst in polls[10:dry] if counts[2] >= 287)
    after = [burst for _, burst in polls[dry + 1 :]]
    assert (0, 429) in after[:10]
    assert max(counts[0] for counts, _ in polls[dry:]) > 3 * budget.parts[0]


async def test_groups_commit_beside_one_that_does_not_answer(broker: InMemoryBroker) -> None:
    """A coordinator that is silent, or fences, keeps those of the others from nothing; nor does it when they go."""
    held = clients(broker)
    silent = held[1].commit
    asked = 0

    async def commit(
        offsets: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        nonlocal asked
        asked += 1
        await asyncio.sleep(timeout)
        return dict.fromkeys(offsets, CommitFault.RETRIABLE)

    held[1].commit = commit  # type: ignore[method-assign]
    handler = Handler(lambda record: asyncio.sleep(0.01))
    loop = asyncio.get_running_loop()
    one = consumer(broker, clients=held, max_concurrency=10, commit_interval=0.1, commit_timeout=5.0)
    async with running(one, handler):
        for priority in range(3):
            produce(broker, priority, 4_000)
        await until(lambda: asked)
        for _ in range(20):
            before = committed(broker, 0), committed(broker, 2)
            began = loop.time()
            await until(lambda: committed(broker, 0) > before[0] and committed(broker, 2) > before[1])  # noqa: B023
            assert loop.time() - began < 1.0
        assert committed(broker, 1) == 0
        member = next(iter(broker.member_ids("g-2")))
        broker.expire_session("g-2", member, loop.time())
        await until(lambda: {part.epoch for part in one.stats().partitions if part.topic == "jobs-2"} == {2})
        await until(lambda: one.health().ready)
        held[1].commit = silent  # type: ignore[method-assign]
        await until(lambda: all(committed(broker, priority) == 4_000 for priority in range(3)))


async def test_one_group_that_cannot_be_joined_says_why(broker: InMemoryBroker) -> None:
    """What the client of one priority raises is raised as it is, with its cause; all clients are closed."""
    held = clients(broker)
    cause = OSError("no route")

    async def start(timeout: float) -> None:
        raise BrokerUnreachable("there", timeout, "no answer") from cause

    held[1].start = start  # type: ignore[method-assign]
    with pytest.raises(BrokerUnreachable) as raised:
        async with consumer(broker, clients=held):
            pass
    assert raised.value.__cause__ is cause
    assert all(client._is_closed for client in held)


async def test_a_rebalance_of_one_group_leaves_the_others_alone(broker: InMemoryBroker) -> None:
    """A second consumer takes half of each; then one of its groups loses its member. Nothing is lost or reordered."""
    first, second = Handler(lambda record: asyncio.sleep(0.001)), Handler(lambda record: asyncio.sleep(0.001))
    for priority in range(3):
        for partition in range(2):
            produce(broker, priority, 2_000, partition=partition)
    async with running(consumer(broker, max_concurrency=20), first) as one:
        await until(lambda: len(first.seen) > 200)
        async with running(consumer(broker, max_concurrency=20), second):
            await until(lambda: len(second.seen) > 200)
            ours = {part.topic: part.partition for part in one.stats().partitions}
            assert len(ours) == 3
            member = next(iter(broker.member_ids("g-1")))
            broker.expire_session("g-1", member, asyncio.get_running_loop().time())
            await until(lambda: len(second.seen) > 1_500)
        done = {(record.topic, record.partition, record.offset) for record in (*first.seen, *second.seen)}
        await until(lambda: one.health().ready)
        await until(
            lambda: len(done | {(record.topic, record.partition, record.offset) for record in first.seen}) == 12_000,
        )
        await until(lambda: all(committed(broker, p, n) == 2_000 for p in range(3) for n in range(2)))


async def test_ready_means_that_every_group_has_answered(broker: InMemoryBroker) -> None:
    """Until the last of them has, and while one of them joins again, the whole is not ready, and has no lag."""
    held = clients(broker)
    one = consumer(broker, clients=held)
    handler = Handler()
    async with running(one, handler):
        assert one.health().ready
        broker.faults.latency(Request.JOIN, 0.3, 0.5)
        member = next(iter(broker.member_ids("g-1")))
        broker.expire_session("g-1", member, asyncio.get_running_loop().time())
        await until(lambda: not one.health().ready)
        assert one.stats().lag is None
        produce(broker, 0, 10)
        await until(lambda: handler.by_priority[0] == 10)
        assert not one.health().ready
        await until(lambda: one.health().ready)
        assert one.stats().lag == 0


async def test_missing_topics_are_named(broker: InMemoryBroker) -> None:
    """Those of the priorities."""
    with pytest.raises(TopicNotFound, match="mail-0"):
        async with consumer(broker, "mail"):
            pass


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"priorities": 0}, "priorities"),
        ({"priorities": 33}, "too many"),
        ({"topics": re.compile("a")}, "must be names"),
        ({"max_poll_records": 6}, "7 or more"),
        ({"max_poll_records": True}, "max_poll_records"),
        ({"history_window": 3}, "burst_threshold"),
        ({"burst_threshold": 0}, "burst_threshold"),
        ({"max_buffered": 999}, "twice max_poll_records"),
        ({"weights": [1, 2]}, "must be 3 numbers"),
        ({"weights": [1, 0, 2]}, "must be 3 numbers"),
        ({"weights": [1, float("nan"), 2]}, "must be 3 numbers"),
        ({"weights": [1e308, 1e308, 1e308]}, "1e\\+100 at most"),
        ({"ageing": 0}, "ageing"),
        ({"clients": []}, "one for each of the 3"),
        ({"group_id": ""}, "group_id"),
        (
            {"failures": FailurePolicy(retry=RetryPolicy(max_attempts=1), retry_topics={"again": 1.0})},
            "have no priority",
        ),
    ],
)
def test_oracle_2_7_wrong_options(broker: InMemoryBroker, options: dict[str, Any], says: str) -> None:
    """Missing or wrong ones are refused where it is made, before anything is connected."""
    given: dict[str, Any] = {"topics": "jobs", "priorities": 3, "group_id": "g", **options}
    with pytest.raises(ConfigurationError, match=says):
        PriorityConsumer(given.pop("topics"), **given)


def test_oracle_2_7_required() -> None:
    """max.priority and group.id; the records of a poll have Kafka's own default."""
    with pytest.raises(TypeError, match="priorities"):
        PriorityConsumer("jobs", group_id="g")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="group_id"):
        PriorityConsumer("jobs", priorities=3)  # type: ignore[call-arg]


async def test_oracle_2_7_subscribe(broker: InMemoryBroker) -> None:
    """subscribe(["WXY", "XYZ"]): the consumer of priority i gets WXY-i and XYZ-i."""
    for topic in ("WXY", "XYZ"):
        for priority in range(3):
            broker.create_topic(f"{topic}-{priority}", 1)
    asked: list[tuple[int, list[str]]] = []

    class Client(InMemoryClient):
        number = 0

        def subscribe(self, topics: Any, listener: Any) -> None:
            asked.append((self.number, sorted(topics)))
            super().subscribe(topics, listener)

    held = [Client(broker, f"g-{priority}") for priority in range(3)]
    for number, client in enumerate(held):
        client.number = number
    async with running(consumer(broker, ["WXY", "XYZ"], clients=held), Handler()):
        pass
    assert asked == [(number, [f"WXY-{number}", f"XYZ-{number}"]) for number in range(3)]


async def test_new_partitions_of_each_priority(broker: InMemoryBroker) -> None:
    """With "latest" the records are handled that precede their assignment; what is new the group of each priority
    tells by itself."""
    handler = Handler()
    produce(broker, 0, 10)
    async with running(consumer(broker, auto_offset_reset="latest"), handler):
        await until(lambda: all(len(broker.group(f"g-{priority}").offsets) == 2 for priority in range(3)))
        for priority in (0, 2):
            broker.add_partitions(f"jobs-{priority}", 3)
            produce(broker, priority, 20, partition=2)
        await until(lambda: handler.by_priority == {0: 20, 2: 20})


async def test_a_group_that_is_lost_keeps_the_others_from_nothing(broker: InMemoryBroker) -> None:
    """In the new protocol both give partitions away, and one is lost meanwhile: the other still commits."""
    ends = asyncio.Event()
    handler = Handler(lambda record: ends.wait())
    for priority in range(2):
        for partition in range(2):
            produce(broker, priority, 1, partition=partition)
    held = clients(broker, group_protocol="consumer")
    one = consumer(broker, clients=held, drain_timeout=20)

    def draining() -> set[str]:
        return {part.topic for part in one.stats().partitions if part.state == "draining"}

    async with running(one, handler):
        await until(lambda: len(handler.seen) == 4)
        other = InMemoryClient(broker, "g-1", group_protocol="consumer", heartbeat_interval=0.02)
        await other.start(1)
        other.subscribe(["jobs-1"], Silent())
        broker.delete_topic("jobs-0")  # all that the member has in this group
        await until(lambda: draining() == {"jobs-0", "jobs-1"})
        (member,) = broker.member_ids("g-0")
        broker.expire_session("g-0", member, asyncio.get_running_loop().time())
        await until(lambda: broker.member_ids("g-0") == [member], what="that it has joined again")
        ends.set()
        await until(lambda: [committed(broker, 1, partition) for partition in range(2)] == [1, 1])
        await other.stop(1)
