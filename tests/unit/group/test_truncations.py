"""Logs that lost records whose offsets are used again: nothing of what has them now is passed over (KIP-320)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aioparallel import ParallelConsumer, Record
from aioparallel.group.client import Committed, Generation
from aioparallel.group.leader_epochs import LeaderEpochs, epoch_of
from aioparallel.group.truncations import ledger_below
from aioparallel.observe.health import ProblemKind
from aioparallel.offsets import OffsetMap, encode_offset_map
from aioparallel.records.errors import OffsetOutOfRange
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient
from tests.support.inside import client_of, run_of
from tests.support.memory.consuming import GROUP, T0, committed, consumer_of
from tests.support.waiting import until


def write(broker: InMemoryBroker, what: str, count: int) -> None:
    """``what-0``, ``what-1``, ... each with a key of its own."""
    for number in range(count):
        name = f"{what}-{number}".encode()
        broker.append("t", name, key=name, partition=0)


def commit(broker: InMemoryBroker, offset: int, complete_until: int, leader_epoch: int) -> None:
    """As a member does that has all of it but the record at the offset."""
    text = encode_offset_map(offset, complete_until, [offset]) if complete_until >= offset else ""
    broker.commit(GROUP, {T0: Committed(offset, text, leader_epoch)}, Generation(-1, ""), 0.0)


class Values:
    """What a handler was given."""

    def __init__(self) -> None:
        self.all: list[str] = []

    async def __call__(self, record: Record) -> None:
        """Note it."""
        self.all.append((record.value or b"").decode())

    def of(self, what: str) -> set[int]:
        """The numbers of these."""
        return {int(value.partition("-")[2]) for value in self.all if value.startswith(what)}


@asynccontextmanager
async def running(consumer: ParallelConsumer[Any, Any], handler: Values) -> AsyncIterator[asyncio.Task[None]]:
    """It runs for the length of the block."""
    async with asyncio.timeout(120), consumer:
        task = asyncio.create_task(consumer.run(handler))
        try:
            yield task
        finally:
            consumer.stop()
            await asyncio.wait([task])


def problems(consumer: ParallelConsumer[Any, Any]) -> list[str]:
    """What health says of lost records."""
    return [one.message for one in consumer.health().problems if one.kind is ProblemKind.LOG_TRUNCATED]


@pytest.mark.parametrize("written", [70, 120], ids=["shorter than the map", "longer than the map"])
async def test_a_log_that_was_cut_while_nobody_read_it(broker: InMemoryBroker, written: int) -> None:
    """Committed 45, with a map of 46 to 99; the log is cut at 40 and written on. Each new record is handled, none of
    what was before is; it is told, counted, and forgotten once it is committed anew."""
    write(broker, "old", 100)
    commit(broker, 45, 99, 0)
    broker.truncate_tail(T0, 40)
    write(broker, "new", written - 40)
    values, consumer = Values(), consumer_of(broker)
    async with running(consumer, values):
        await until(lambda: committed(broker) == written)
        assert values.of("new") == set(range(written - 40))
        assert values.of("old") == set()
        assert consumer.stats().log_truncations == 1
        if written < 100:
            assert "the records that were read or committed at offsets 40 to 99 are lost" in problems(consumer)[0]
            write(broker, "more", 60)
        await until(lambda: not problems(consumer))


async def test_a_commit_without_an_epoch_says_nothing_beyond_the_end(broker: InMemoryBroker) -> None:
    """An older version, or another tool: its map is dropped where it speaks of more than there is."""
    write(broker, "old", 100)
    commit(broker, 45, 99, -1)
    broker.truncate_tail(T0, 40)
    write(broker, "new", 30)
    values, consumer = Values(), consumer_of(broker)
    async with running(consumer, values):
        await until(lambda: committed(broker) == 70)
        assert values.of("new") == set(range(5, 30))
        assert consumer.stats().log_truncations == 1


@pytest.mark.parametrize("written", [40, 60, 100, 160])
@pytest.mark.parametrize("policy", ["earliest", "latest"])
async def test_a_log_that_is_cut_while_it_is_read(broker: InMemoryBroker, written: int, policy: Any) -> None:
    """Read up to 100, cut at 40, and written on, to fewer records than were read, as many, or more: reading goes on
    where the log was cut, whatever ``auto_offset_reset`` is; nothing before that is handled again."""
    commit(broker, 0, -1, -1)
    write(broker, "old", 100)
    values, consumer = Values(), consumer_of(broker, auto_offset_reset=policy)
    async with running(consumer, values):
        await until(lambda: committed(broker) == 100)
        broker.truncate_tail(T0, 40)
        write(broker, "new", written - 40)
        await until(lambda: values.of("new") == set(range(written - 40)))
        await until(lambda: consumer.stats().log_truncations == 1 and committed(broker) == written)
        assert sorted(values.of("old")) == list(range(100))
        assert len(values.all) == 100 + written - 40
        assert consumer.stats().log_truncations == 1


@pytest.mark.parametrize("written", [30, 50, 150])
@pytest.mark.parametrize("policy", ["earliest", "latest"])
async def test_a_topic_that_is_made_anew(broker: InMemoryBroker, written: int, policy: Any) -> None:
    """Its leader epochs begin anew as well. All of it is read."""
    commit(broker, 0, -1, -1)
    write(broker, "old", 50)
    values, consumer = Values(), consumer_of(broker, auto_offset_reset=policy)
    async with running(consumer, values):
        await until(lambda: committed(broker) == 50)
        broker.delete_topic("t")
        broker.create_topic("t")
        write(broker, "new", written)
        await until(lambda: values.of("new") == set(range(written)))
        await until(lambda: committed(broker) == written)
        assert consumer.stats().log_truncations == 1


@pytest.mark.parametrize("is_read", [False, True])
async def test_with_the_policy_error_the_run_ends(broker: InMemoryBroker, is_read: bool) -> None:
    """And nothing is committed for the new records."""
    write(broker, "old", 100)
    commit(broker, 45, 99, 0)
    values, consumer = Values(), consumer_of(broker, auto_offset_reset="error")
    if not is_read:
        broker.truncate_tail(T0, 40)
        write(broker, "new", 100)
    async with asyncio.timeout(60), consumer:
        task = asyncio.create_task(consumer.run(values))
        if is_read:
            await until(lambda: committed(broker) == 100)
            broker.truncate_tail(T0, 40)
            write(broker, "new", 100)
        with pytest.raises(OffsetOutOfRange):
            await task
    assert values.of("new") == set()


async def test_another_leader_that_has_all_changes_nothing(broker: InMemoryBroker) -> None:
    """Each record is handled once, also those around the change."""
    values, consumer = Values(), consumer_of(broker)
    log = broker.log(T0)
    assert log is not None
    async with running(consumer, values):
        for number in range(10):
            write(broker, f"{number}", 20)
            if number % 2:
                await until(lambda number=number: committed(broker) == 20 * (number + 1))  # type: ignore[misc]
            log.elect()
        await until(lambda: committed(broker) == 200)
        assert len(values.all) == len(set(values.all)) == 200
        stats = consumer.stats()
        assert (stats.log_truncations, stats.offset_resets) == (0, 0)
    assert broker.group(GROUP).offsets[T0].leader_epoch == 9


async def test_the_epoch_of_what_is_complete_is_committed(broker: InMemoryBroker) -> None:
    """Not that of what was read and has not ended."""
    write(broker, "old", 10)
    log = broker.log(T0)
    assert log is not None
    log.elect()
    write(broker, "new", 10)
    goes_on = asyncio.Event()

    async def handle(record: Record) -> None:
        if record.offset >= 10:
            await goes_on.wait()

    consumer = consumer_of(broker)
    async with asyncio.timeout(60), consumer:
        task = asyncio.create_task(consumer.run(handle))
        await until(lambda: committed(broker) == 10)
        assert broker.group(GROUP).offsets[T0].leader_epoch == 0
        goes_on.set()
        await until(lambda: committed(broker) == 20)
        assert broker.group(GROUP).offsets[T0].leader_epoch == 1
        consumer.stop()
        await task


async def test_a_record_that_is_skipped_before_it_is_read_hides_no_epoch(broker: InMemoryBroker) -> None:
    """It was written in epoch 2, and records of epoch 1 are read after the skip. A map that is cut among these is
    committed with their epoch: with an older one, the next member would take them for lost."""
    log = broker.log(T0)
    assert log is not None
    for what in ("old", "new", "newest"):
        write(broker, what, 20)
        log.elect()
    begins, goes_on = asyncio.Event(), asyncio.Event()

    async def handle(record: Record) -> None:
        await begins.wait()
        if record.offset >= 35:
            await goes_on.wait()

    async with asyncio.timeout(60), consumer_of(broker, max_buffered=4, max_concurrency=2) as consumer:
        task = asyncio.create_task(consumer.run(handle))
        await until(lambda: consumer.stats().in_flight == 2)
        await consumer.skip(T0, 55)
        assert broker.group(GROUP).offsets[T0].leader_epoch == 2
        run_of(consumer)._committer.limit.characters = 1
        begins.set()
        await until(lambda: committed(broker) == 35)
        assert broker.group(GROUP).offsets[T0].leader_epoch == 1
        consumer.stop(drain=False)
        await task
    seen = Values()
    async with running(consumer := consumer_of(broker), seen) as task:
        await until(lambda: committed(broker) == 60)
        assert consumer.stats().log_truncations == 0
        consumer.stop()
        await task
    assert min(seen.of("new-")) == 15


def test_a_ledger_below_an_offset_is_the_same_up_to_there() -> None:
    """Each offset below it is as complete as before, none from there on is."""
    said = OffsetMap(10, 40, (10, 15, 20, 39))
    for end in range(50):
        below = ledger_below(said, end)
        assert below.position == min(10, end)
        snapshot = below.snapshot()
        for offset in range(60):
            assert snapshot.is_complete(offset) == (said.is_complete(offset) and offset < end), (end, offset)


def test_epochs_are_those_of_their_records() -> None:
    """Of what is older than all that is kept, a later one: that is as good, and nothing is forgotten about a change."""
    epochs = LeaderEpochs(99, 2)
    assert not epochs.differs(60, 1)
    assert epochs.differs(100, 1)
    assert epochs.differs(100, 3)
    assert not epochs.differs(100, -1)
    epochs.note(100, 3)
    assert [epoch_of(epochs.seen, offset) for offset in (5, 99, 100, 200)] == [2, 2, 3, 3]
    for offset, epoch in zip(itertools.count(200, 10), range(4, 40), strict=False):
        epochs.note(offset, epoch)
    assert len(epochs.seen) == 16
    assert epoch_of(epochs.seen, 0) == epochs.seen[0][1]
    epochs = LeaderEpochs(9, 2)
    epochs.note(50, 7)  # skipped before it is read
    for offset, epoch in ((10, 2), (20, 4), (30, 4), (40, 5), (45, 7), (60, 7), (70, 8)):
        assert epochs.differs(offset, epoch) is (epoch == 8)
        epochs.note(offset, epoch)
    assert epochs.seen == ((9, 2), (20, 4), (40, 5), (45, 7), (70, 8))
    assert not LeaderEpochs().differs(5, 7)
    assert epoch_of((), 5) == -1


@pytest.mark.parametrize("cooperative", [False, True])
async def test_what_another_member_has_read_of_a_topic_made_anew_is_not_read_again(
    broker: InMemoryBroker, cooperative: bool
) -> None:
    """A partition comes back to a member that had it in the topic before: what was committed meanwhile counts."""
    one, other = Values(), Values()
    first, second = (consumer_of(broker, "m", cooperative=cooperative) for _ in range(2))

    def write_all(what: str, count: int) -> None:
        for number in range(count):
            for partition in range(2):
                name = f"{what}-{2 * number + partition}".encode()
                broker.append("m", name, key=name, partition=partition)

    async def all_committed(offset: int) -> None:
        await until(lambda: {committed(broker, TopicPartition("m", number)) for number in range(2)} == {offset})

    broker.create_topic("m", 2)
    write_all("old", 50)
    async with running(first, one):
        await all_committed(50)
        async with running(second, other):
            await until(lambda: second.health().ready and len(second.stats().partitions) == 1)
            broker.delete_topic("m")
            broker.create_topic("m", 2)
            write_all("new", 30)
            await all_committed(30)
        assert len(one.of("new")) == len(other.of("new")) == 30
        write_all("more", 5)
        await all_committed(35)
        assert len([value for value in one.all if value.startswith("new")]) == 30
        assert first.stats().log_truncations == 1


async def test_nothing_of_the_topic_before_is_committed_for_the_one_made_anew(broker: InMemoryBroker) -> None:
    """Not while it is looked at which it is, which may take long: whoever takes over meanwhile would pass over all
    below. Nor where it was made anew while the partition was taken over."""

    class Slow(InMemoryClient):
        is_slow = False

        async def topic_ids(self, topics: Collection[str], timeout: float) -> Mapping[str, bytes]:
            if self.is_slow:
                await asyncio.sleep(timeout)
                raise TimeoutError
            return await super().topic_ids(topics, timeout)

    write(broker, "old", 50)
    goes_on, values = asyncio.Event(), Values()

    async def handle(record: Record) -> None:
        await values(record)
        if record.value == b"old-49":
            await goes_on.wait()

    client = Slow(broker, GROUP, session_timeout=2, heartbeat_interval=0.02)
    consumer = ParallelConsumer("t", group_id=GROUP, client=client, commit_interval=0.02, drain_timeout=1)
    async with asyncio.timeout(120), consumer:
        task = asyncio.create_task(consumer.run(handle))
        await until(lambda: committed(broker) == 49)
        client.is_slow = True
        broker.delete_topic("t")
        broker.create_topic("t")
        write(broker, "new", 150)
        await asyncio.sleep(1)
        goes_on.set()
        await asyncio.sleep(3)
        consumer.stop()
        await task
    assert committed(broker) is None


async def test_a_topic_that_is_made_anew_while_it_is_taken_over(broker: InMemoryBroker) -> None:
    """The position that was read is of the one before; all of the new one is handled."""

    class Late(InMemoryClient):
        is_old = True

        async def committed(
            self, partitions: Collection[TopicPartition], timeout: float
        ) -> Mapping[TopicPartition, Committed]:
            found = await super().committed(partitions, timeout)
            if self.is_old:
                self.is_old = False
                broker.delete_topic("t")
                broker.create_topic("t")
                write(broker, "new", 80)
            return found

    write(broker, "old", 50)
    commit(broker, 50, -1, 0)
    values = Values()
    client = Late(broker, GROUP, session_timeout=2, heartbeat_interval=0.02)
    async with running(ParallelConsumer("t", group_id=GROUP, client=client, commit_interval=0.02), values):
        await until(lambda: values.of("new") == set(range(80)))
        await until(lambda: committed(broker) == 80)


async def test_a_position_of_the_topic_before_says_nothing_of_the_one_made_anew(broker: InMemoryBroker) -> None:
    """A member loses its assignment while its topic is made anew, and its position outlives that: all is read."""
    write(broker, "old", 50)
    values, consumer = Values(), consumer_of(broker)
    async with running(consumer, values):
        await until(lambda: committed(broker) == 50)
        position = broker.group(GROUP).offsets[T0]
        assignment = run_of(consumer)._rebalancer.assignments[T0]
        client_of(consumer).fenced(assignment.generation)
        broker.delete_topic("t")
        broker.create_topic("t")
        broker.group(GROUP).offsets[T0] = position
        write(broker, "new", 80)
        await until(lambda: values.of("new") == set(range(80)))


@pytest.mark.parametrize("is_read", [False, True])
async def test_a_log_that_is_cut_twice_before_anything_is_read_of_it(broker: InMemoryBroker, is_read: bool) -> None:
    """The second time below where reading goes on after the first: all that is there then is handled."""
    write(broker, "old", 100)
    commit(broker, 100, -1, 0)
    values, consumer = Values(), consumer_of(broker)
    if not is_read:
        broker.truncate_tail(T0, 40)
    async with running(consumer, values):
        if is_read:
            await until(lambda: consumer.health().ready)
            broker.truncate_tail(T0, 40)
        await until(lambda: committed(broker) == 40)
        broker.truncate_tail(T0, 30)
        write(broker, "new", 30)
        await until(lambda: values.of("new") == set(range(30)))
        await until(lambda: committed(broker) == 60)
        assert values.of("old") == set()
