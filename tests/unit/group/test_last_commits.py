"""Commits that are refused, fenced or never answered: how long they hold up, and who hears of it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aioparallel.records.errors import ClientError
from aioparallel.records.record import Record, TopicPartition
from aioparallel.testing.memory import ErrorCode, Fault, InMemoryBroker, Request
from tests.support.inside import run_of
from tests.support.memory.consuming import T0, Seen, committed, consumer_of, produce
from tests.support.waiting import until

REFUSED = Fault(error=ErrorCode.GROUP_AUTHORIZATION_FAILED)
FENCED = Fault(error=ErrorCode.ILLEGAL_GENERATION)
SILENT = Fault(is_request_lost=True)


async def test_a_refused_commit_does_not_hold_up_the_giving_away(
    broker: InMemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """What will not work is tried once more, and then the partitions go, long before the deadline; a line or two say
    so, however many partitions."""
    broker.create_topic("m", 50)
    for partition in range(50):
        produce(broker, [b"k"], partition, "m")
    broker.faults.always(Request.COMMIT, REFUSED)
    seen, loop = Seen(), asyncio.get_running_loop()
    with caplog.at_level(logging.INFO, logger="aioparallel"):
        async with asyncio.timeout(60), consumer_of(broker, "m", drain_timeout=20) as consumer:
            running = asyncio.create_task(consumer.run(seen))
            await until(lambda: len(seen.ended) == 50)
            await until(lambda: consumer.stats().failed_commits)
            began = loop.time()
            consumer.stop()
            await running
    assert loop.time() - began < 1
    refusals = [entry for entry in caplog.records if getattr(entry, "action", "") == "commit_failed"]
    assert 1 <= len(refusals) <= 2


async def test_a_refusal_is_told_once_and_shown_by_health(
    broker: InMemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """A commit refused at each interval makes one line, until it was taken again; health says what is refused."""
    produce(broker, [b"k"] * 3)
    broker.faults.always(Request.COMMIT, REFUSED)
    seen = Seen()
    with caplog.at_level(logging.INFO, logger="aioparallel"):
        async with asyncio.timeout(60), consumer_of(broker) as consumer:
            running = asyncio.create_task(consumer.run(seen))
            await until(lambda: consumer.stats().failed_commits >= 10 if consumer._engine else False)
            assert [problem.kind for problem in consumer.health().problems] == ["commit_refused"]
            broker.faults.heal()
            await until(lambda: committed(broker) == 3)
            await until(lambda: consumer.stats().partitions[0].committed == 3)
            assert consumer.health().problems == ()
            consumer.stop()
            await running
    assert len([entry for entry in caplog.records if getattr(entry, "action", "") == "commit_failed"]) == 1


@pytest.mark.parametrize(("fault", "why"), [(FENCED, "fenced"), (REFUSED, "refused"), (SILENT, "no answer")])
async def test_commit_now_names_what_is_not_committed(broker: InMemoryBroker, fault: Fault, why: str) -> None:
    """Fenced, refused or unanswered: it raises, with the partitions and the reason."""
    broker.create_topic("m", 2)
    seen = Seen()
    async with asyncio.timeout(60), consumer_of(broker, "m", commit_interval=1000, commit_timeout=0.3) as consumer:
        running = asyncio.create_task(consumer.run(seen))
        await until(
            lambda: consumer._engine and len([p for p in consumer.stats().partitions if p.state == "open"]) == 2
        )
        await consumer.commit_now()
        produce(broker, [b"k"], 1, "m")
        await until(lambda: seen.ended)
        broker.faults.always(Request.COMMIT, fault)
        with pytest.raises(ClientError, match=f"m-1.*{why}") as raised:
            await consumer.commit_now()
        assert "m-0" not in str(raised.value)
        broker.faults.heal()
        consumer.stop()
        await running


async def test_commit_now_within_a_handler_counts_what_has_ended(broker: InMemoryBroker) -> None:
    """Of ten records handled in one turn the last commits: those before it are committed when it goes on."""
    produce(broker, [b"k"] * 10)
    said: list[int | None] = []

    async def handle(record: Record) -> None:
        if record.offset == 9:
            await consumer.commit_now()
            said.append(committed(broker))

    async with asyncio.timeout(60), consumer_of(broker, until="end", commit_interval=1000) as consumer:
        await consumer.run(handle)
    assert said == [9]


@pytest.mark.parametrize("fault", [SILENT, REFUSED, FENCED])
async def test_until_end_does_not_return_without_its_last_commit(broker: InMemoryBroker, fault: Fault) -> None:
    """All records were handled, but the broker never took the offsets: the run raises, and says of which partition."""
    produce(broker, [b"k"] * 10)
    seen = Seen()
    async with (
        asyncio.timeout(60),
        consumer_of(broker, until="end", commit_interval=1000, commit_timeout=0.3) as consumer,
    ):

        async def handle(record: Record) -> None:
            if record.offset == 9:
                broker.faults.always(Request.COMMIT, fault)
            await seen(record)

        with pytest.raises(ClientError, match="t-0"):
            await consumer.run(handle)
    assert len(seen.ended) == 10


async def test_a_revoke_whose_callback_is_cancelled_gives_the_partition_away(broker: InMemoryBroker) -> None:
    """The client cancels the giving away: the assignment is over, and no later assignment commits for it."""
    broker.create_topic("m", 2)
    for partition in range(2):
        produce(broker, [b"k"] * 3, partition, "m")
    release = asyncio.Event()

    async def handle(record: Record) -> None:
        await release.wait()

    async with asyncio.timeout(60), consumer_of(broker, "m", drain_timeout=10, cooperative=True) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: consumer._engine is not None and consumer.stats().in_flight == 2)
        assignment = run_of(consumer)._rebalancer
        [generation] = {assignment.generation for assignment in assignment.assignments.values()}
        gone = TopicPartition("m", 0)
        revoking = asyncio.create_task(assignment.revoked([gone]))
        await asyncio.sleep(0.1)
        revoking.cancel()
        await asyncio.wait([revoking])
        assignment.assigned([], generation._replace(id=generation.id + 1))
        assert list(assignment.assignments) == [TopicPartition("m", 1)]
        await until(lambda: consumer.stats().in_flight == 1)
        release.set()
        consumer.stop(drain=False)
        await running
    assert committed(broker, gone) in (None, 0)
    assert committed(broker, T0) is None
