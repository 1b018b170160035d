"""What was seen is saved, whatever else hangs, goes or is refused."""

from __future__ import annotations

import asyncio

import pytest

from aioparallel.config.options import Options
from aioparallel.config.policies import Deduplicate
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import CommitFault, Committed
from aioparallel.persistence.dedup.deduplication import Deduplication
from aioparallel.records.record import Record, TopicPartition
from aioparallel.testing.memory import ErrorCode, Fault, InMemoryBroker, InMemoryClient, InMemoryProducer, Request
from tests.support.extensions import context_of
from tests.support.inside import client_of
from tests.support.memory.consuming import GROUP, T0, committed
from tests.support.memory.deduplicating import (
    SEEN,
    Handled,
    broker_of,
    consuming,
    deduplicating,
    place,
    remembered,
    write,
)
from tests.support.waiting import until

T1 = TopicPartition("t", 1)


def broker_of_two_nodes() -> InMemoryBroker:
    """Partition 0 of the compacted topic on the second node, all else on the first."""
    broker = InMemoryBroker(nodes=2)
    for topic in ("t", SEEN):
        broker.create_topic(topic, 2)
        for number in range(2):
            broker.move_leader(TopicPartition(topic, number), 1)
    broker.make_compacted(SEEN)
    broker.move_leader(TopicPartition(SEEN, 0), 2)
    return broker


async def test_a_partition_that_hangs_holds_up_no_other() -> None:
    """However long, while the others go on: they are committed; and that one when its broker answers again."""
    broker, sources = broker_of_two_nodes(), iter(range(1_000_000))

    async def handle(record: Record) -> None:
        await asyncio.sleep(0)

    async def feed() -> None:
        while True:
            write(broker, next(sources), partition=0)
            write(broker, next(sources), partition=1)
            await asyncio.sleep(0.01)

    async with asyncio.timeout(600), deduplicating(broker, commit_timeout=0.4) as consumer:
        running, feeding = asyncio.create_task(consumer.run(handle)), asyncio.create_task(feed())
        await until(lambda: (committed(broker, T0) or 0) > 5 and (committed(broker, T1) or 0) > 5)
        broker.hang(2)
        await asyncio.sleep(5)
        stuck, moving = committed(broker, T0) or 0, committed(broker, T1) or 0
        await asyncio.sleep(10)
        assert committed(broker, T0) == stuck
        assert (committed(broker, T1) or 0) > moving + 500
        broker.unhang(2)
        await until(lambda: (committed(broker, T0) or 0) > stuck + 500)
        feeding.cancel()
        consumer.stop()
        await running


async def test_what_goes_while_it_is_saved_is_not_committed() -> None:
    """Its write has no answer: a commit that the group still took would be ahead of what is saved."""
    broker = broker_of_two_nodes()
    client, producer = InMemoryClient(broker, GROUP), InMemoryProducer(broker)
    await client.start(5)
    deduplication = Deduplication(Deduplicate(SEEN))
    deduplication.attach(context_of(Options(), GROUP, client, producer))
    await deduplication.check((), 5)
    await deduplication.restore(dict.fromkeys((T0, T1)), 5)
    for partition in (T0, T1):
        seen = deduplication.assigned(Assignment(partition))
        record = Record("t", partition.partition, 0, b"k", b"v", place(1))
        assert seen.select([record])
        seen.completed(0)
    broker.hang(1)
    broker.hang(2)
    saving = asyncio.create_task(deduplication.before_commit(dict.fromkeys((T0, T1), Committed(1, "")), 5))
    await asyncio.sleep(0)
    deduplication.released(T0)  # before it is written
    await asyncio.sleep(1)
    deduplication.released(T1)  # while it is
    broker.unhang(1)
    broker.unhang(2)
    assert await saving == dict.fromkeys((T0, T1), CommitFault.RETRIABLE)
    await producer.stop(1)
    await client.stop(1)


async def test_a_topic_that_takes_nothing_is_told_once_and_in_health(caplog: pytest.LogCaptureFixture) -> None:
    """Which partition, which topic, and why; until it takes it again."""
    broker = broker_of_two_nodes()
    write(broker, 1)

    async def handle(record: Record) -> None:
        await asyncio.sleep(0)

    async with consuming(deduplicating(broker, commit_timeout=0.4), handle) as consumer:
        await until(lambda: committed(broker, T0) == 1)
        broker.faults.always(Request.PRODUCE, Fault(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        write(broker, 2)
        await until(lambda: consumer.stats().failed_commits > 20)
        said = [entry for entry in caplog.records if getattr(entry, "action", "") == "seen_unsaved"]
        assert len(said) == 1
        found = [problem.message for problem in consumer.health().problems if problem.kind == "seen_unsaved"]
        assert len(found) == 1
        assert "t-0" in found[0]
        assert SEEN in found[0]
        broker.faults.heal()
        await until(lambda: committed(broker, T0) == 2)
        assert not consumer.health().problems
        broker.hang(2)
        write(broker, 3)
        await until(lambda: "seen_unsaved" in [problem.kind for problem in consumer.health().problems])
        broker.unhang(2)
        await until(lambda: committed(broker, T0) == 3)
        assert not consumer.health().problems


async def test_it_is_saved_before_offsets_are_committed() -> None:
    """At each commit of the offset, what it stands for is in the topic already."""
    broker, handled = broker_of(), Handled(0.003)
    write(broker, *range(300))
    commits: list[tuple[int, set[int]]] = []
    real = broker.commit

    def commit(group_id: str, offsets: dict[TopicPartition, object], *rest: object) -> object:
        commits.append((offsets[T0].offset, remembered(broker)))  # type: ignore[attr-defined]
        return real(group_id, offsets, *rest)  # type: ignore[arg-type]

    broker.commit = commit  # type: ignore[method-assign,assignment]
    async with deduplicating(broker, until="end", max_concurrency=7, commit_interval=0.01) as consumer:
        await consumer.run(handled)
    assert len(commits) > 5
    for offset, seen in commits:
        assert set(range(offset)) <= seen


async def test_a_kill_between_saving_and_committing_repeats_nothing() -> None:
    """The commit is lost, what was seen is not: those records are complete at once at the next start."""
    broker, handled = broker_of(), Handled()
    write(broker, *range(100))
    broker.faults.always(Request.COMMIT, Fault(is_request_lost=True))
    consumer = deduplicating(broker, commit_timeout=0.2)
    async with asyncio.timeout(60), consumer:
        running = asyncio.create_task(consumer.run(handled))
        await until(lambda: len(remembered(broker)) == 100)
        client_of(consumer).crash()  # type: ignore[attr-defined]
        running.cancel()
        await asyncio.wait([running])
    assert committed(broker) is None or committed(broker) == 0
    broker.faults.heal()
    async with deduplicating(broker, until="end") as consumer:
        await consumer.run(handled)
        assert consumer.stats().copies == 100
    assert sorted(handled.sources) == list(range(100))
    assert committed(broker) == 100


async def test_nothing_is_committed_that_is_not_saved(caplog: pytest.LogCaptureFixture) -> None:
    """While the topic takes nothing, no offset is committed, whatever else goes on; afterwards it goes on by itself."""
    broker, handled = broker_of(), Handled()
    write(broker, *range(50))
    async with consuming(deduplicating(broker, commit_timeout=0.3), handled) as consumer:
        await until(lambda: committed(broker) == 50)
        broker.faults.always(Request.PRODUCE, Fault(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        write(broker, *range(50, 80))
        await until(lambda: len(handled.sources) == 80)
        await until(lambda: "commit_refused" in [problem.kind for problem in consumer.health().problems])
        assert committed(broker) == 50
        assert "the deduplication memory is not saved" in caplog.text
        broker.faults.heal()
        await until(lambda: committed(broker) == 80)


async def test_a_write_without_an_answer_is_waited_for_and_not_sent_again() -> None:
    """A topic that hangs gets one write of each partition, not one with each commit."""
    broker, handled = broker_of(), Handled()
    write(broker, *range(10))
    async with consuming(deduplicating(broker, commit_timeout=0.3, commit_interval=0.05), handled) as consumer:
        await until(lambda: committed(broker) == 10)
        before = len(broker.records(SEEN))
        broker.hang(1)
        write(broker, *range(10, 20))
        await until(lambda: len(handled.sources) == 20)
        await until(lambda: consumer.stats().failed_commits >= 5)
        broker.unhang(1)
        await until(lambda: committed(broker) == 20)
        assert len(broker.records(SEEN)) <= before + 2


async def test_commits_of_copies_alone_write_nothing() -> None:
    """Nothing new was seen."""
    broker, handled = broker_of(), Handled()
    write(broker, *range(30))
    async with consuming(deduplicating(broker), handled):
        await until(lambda: committed(broker) == 30)
        before = len(broker.records(SEEN))
        for times in range(1, 4):
            write(broker, *range(30))
            await until(lambda: committed(broker) == 30 + 30 * times)  # noqa: B023 - waited for at once
        assert len(broker.records(SEEN)) == before
