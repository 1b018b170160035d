"""Batches that cannot be read hold their partition alone, until they are read after all, or are named to be skipped."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

import pytest

from aioparallel.config.options import Options
from aioparallel.engine.schedule.scheduler import Scheduler
from aioparallel.group.assigned_partitions import AssignedPartitions
from aioparallel.group.client import Generation, Span
from aioparallel.group.extensions import Extensions
from aioparallel.group.unreadable import UnreadablePartitions, read_past
from aioparallel.observe.health import ProblemKind
from aioparallel.offsets import Ledger
from aioparallel.records.errors import ConfigurationError, UnreadableBatch
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient
from tests.support.memory.consuming import Seen, committed, consumer_of, produce
from tests.support.waiting import until
from tests.unit.group.test_assigned_partitions import Told

HELD, WELL = TopicPartition("m", 0), TopicPartition("m", 1)


@pytest.fixture
def damaged(broker: InMemoryBroker) -> InMemoryBroker:
    """Offsets 4 to 6 of one partition of two are a batch that cannot be read."""
    broker.create_topic("m", 2)
    for partition in (0, 1):
        produce(broker, [b"k"] * 10, partition, "m")
    broker.corrupt(HELD, 4, 7)
    return broker


async def test_only_that_partition_is_held(damaged: InMemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    """What comes before it is handled and committed, the other partition goes on, and the problem says which batch it
    is and how to pass over it. Where it can be read again, the partition goes on by itself, and nothing is lost."""
    seen = Seen()
    async with asyncio.timeout(120), consumer_of(damaged, "m") as consumer:
        running = asyncio.create_task(consumer.run(seen))
        await until(lambda: (committed(damaged, HELD), committed(damaged, WELL)) == (4, 10))
        (problem,) = consumer.health().problems
        assert problem.kind is ProblemKind.UNREADABLE
        assert "m-0: cannot read at offset 4: the batch at offset 4 cannot be read" in problem.message
        assert "offsets 4 to 6 are not" in problem.message
        assert 'skip_unreadable=[("m", 0, 4)]' in problem.message
        assert consumer.health().ready
        produce(damaged, [b"k"] * 5, 1, "m")
        await until(lambda: committed(damaged, WELL) == 15)
        await asyncio.sleep(61)  # tried anew twice, and told once
        assert [record.levelno for record in caplog.records if getattr(record, "action", "") == "unreadable"] == [
            logging.ERROR
        ]
        assert consumer.stats().intake == "fetching"
        damaged.corrupt(HELD, None)
        await until(lambda: committed(damaged, HELD) == 10, 40)
        assert not consumer.health().problems
        assert sorted(record.offset for record in seen.ended if record.partition == 0) == list(range(10))
        assert consumer.stats().skipped_batches == 0
        consumer.stop()
        await running


async def test_a_batch_that_is_named_is_passed_over_and_nothing_else(
    damaged: InMemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Its offsets are complete; it is logged and counted. Another batch that cannot be read holds the partition."""
    seen = Seen()
    async with asyncio.timeout(120):
        options = {"skip_unreadable": [("m", 0, 4), ("m", 1, 4), ("m", 1, 9)]}
        async with consumer_of(damaged, "m", **options) as consumer:  # type: ignore[arg-type]
            running = asyncio.create_task(consumer.run(seen))
            await until(lambda: (committed(damaged, HELD), committed(damaged, WELL)) == (10, 10))
            assert sorted((record.partition, record.offset) for record in seen.ended) == [
                *((0, offset) for offset in (0, 1, 2, 3, 7, 8, 9)),
                *((1, offset) for offset in range(10)),
            ]
            assert consumer.stats().skipped_batches == 1
            assert consumer.stats().lag == 0
            assert not consumer.health().problems
            (line,) = [record for record in caplog.records if getattr(record, "action", "") == "batch_skipped"]
            assert "m-0: SKIPPED the batch at offset 4, offsets 4 to 6" in line.getMessage()
            damaged.corrupt(HELD, 11, 13)
            produce(damaged, [b"k"] * 5, 0, "m")
            await until(lambda: committed(damaged, HELD) == 11)
            await until(lambda: bool(consumer.health().problems))
            assert consumer.stats().skipped_batches == 1
            consumer.stop()
            await running


async def test_until_the_end_all_else_is_done_before_the_run_fails(damaged: InMemoryBroker) -> None:
    """A job does not wait for somebody to mend a log."""
    seen = Seen()
    async with asyncio.timeout(120), consumer_of(damaged, "m", until="end") as consumer:
        with pytest.raises(UnreadableBatch, match="m-0: cannot read at offset 4") as raised:
            await consumer.run(seen)
        assert (raised.value.batch, raised.value.next_offset) == (4, 7)
    assert len(seen.ended) == 14
    assert (committed(damaged, HELD), committed(damaged, WELL)) == (4, 10)
    async with asyncio.timeout(120):
        async with consumer_of(damaged, "m", until="end", skip_unreadable=[("m", 0, 4)]) as consumer:
            await consumer.run(seen)
    assert len(seen.ended) == 17
    assert (committed(damaged, HELD), committed(damaged, WELL)) == (10, 10)


async def test_a_batch_whose_end_is_not_known_holds_its_partition_even_if_it_is_named(broker: InMemoryBroker) -> None:
    """Nobody can say what else would be skipped."""
    broker.create_topic("m", 2)
    produce(broker, [b"k"] * 10, 0, "m")
    broker.corrupt(HELD, 4)
    async with asyncio.timeout(120), consumer_of(broker, "m", skip_unreadable=[("m", 0, 4)]) as consumer:
        running = asyncio.create_task(consumer.run(Seen()))
        await until(lambda: committed(broker, HELD) == 4)
        await until(lambda: bool(consumer.health().problems))
        assert consumer.stats().skipped_batches == 0
        consumer.stop()
        await running


async def test_a_partition_that_goes_while_it_is_held_is_forgotten(damaged: InMemoryBroker) -> None:
    """Nothing of it is tried anew, and whoever has it next finds out by itself."""
    async with asyncio.timeout(120), consumer_of(damaged, "m") as consumer:
        running = asyncio.create_task(consumer.run(Seen()))
        await until(lambda: bool(consumer.health().problems))
        async with consumer_of(damaged, "m") as other:
            beside = asyncio.create_task(other.run(Seen()))
            await until(lambda: other.health().joined)
            assert len(consumer.stats().partitions) == len(other.stats().partitions) == 1
            await until(lambda: len(consumer.health().problems) + len(other.health().problems) == 1)
            await asyncio.sleep(31)
            assert len(consumer.health().problems) + len(other.health().problems) == 1
            for one, run in ((other, beside), (consumer, running)):
                one.stop()
                await run


async def test_what_is_read_beside_the_group_goes_past_a_batch_that_is_named(damaged: InMemoryBroker) -> None:
    """And past no other; all spans are read to their ends."""
    client = InMemoryClient(damaged, "beside")
    await client.start(5)
    spans: dict[TopicPartition, Span | list[Span]] = {HELD: [Span(2, 6), Span(8, 10)], WELL: Span(0, 3)}

    async def read(*skip: tuple[str, int, int]) -> dict[TopicPartition, list[int]]:
        found: dict[TopicPartition, list[int]] = {HELD: [], WELL: []}
        async with aclosing(read_past(client, spans, skip)) as reads:
            async for partition, records, _, *_ in reads:
                found[partition] += [record.offset for record in records]
        return found

    assert await read((*HELD, 4)) == {HELD: [2, 3, 8, 9], WELL: [0, 1, 2]}
    with pytest.raises(UnreadableBatch):
        await read((*HELD, 5))
    await client.stop(1)


@pytest.mark.parametrize("wrong", ["m", [("m", 0)], [("m", "0", 4)], [("m", 0, -1)], [("m", 0, True)], 7])
def test_what_names_no_batch_is_refused(wrong: object) -> None:
    """With what it should look like."""
    with pytest.raises(ConfigurationError, match=r'skip_unreadable.*\[\("orders", 3, 4711\)\]'):
        Options(skip_unreadable=wrong)  # type: ignore[arg-type]


async def test_what_is_told_late_or_twice_moves_nothing(broker: InMemoryBroker) -> None:
    """Several clients in one bring an error after the place was passed, or again while the partition is held."""
    client, told = InMemoryClient(broker, "g"), list[None]()
    assigned = AssignedPartitions(Scheduler(), Told(), Extensions())
    session = assigned.begin(HELD, Generation(1, "m"))
    session.opened = True
    session.ledger = Ledger(4)
    unreadable = UnreadablePartitions(client, assigned, [(*HELD, 4)], lambda: told.append(None))
    known, other = (UnreadableBatch(HELD, offset, offset, offset + 3, "torn") for offset in (4, 7))
    unreadable.found(known, None)  # of another epoch
    assert session.ledger.position == 4
    for _ in range(2):
        unreadable.found(known, session)
    assert (session.ledger.position, unreadable.skipped) == (7, 1)
    for _ in range(2):
        unreadable.found(other, session)
    assert (session.waits, session.unreadable, unreadable.skipped) == (True, other, 1)
    assert len(told) == 2
    unreadable.close()


@pytest.mark.parametrize("case", ["held", "revoked", "resetting"])
async def test_only_a_partition_that_is_still_held_is_read_again(broker: InMemoryBroker, case: str) -> None:
    """One that was revoked may be assigned anew and further on, and a reset looks for another position: then the client
    is not moved back."""
    sought = list[int]()

    class Client(InMemoryClient):
        def seek(self, partition: TopicPartition, offset: int) -> None:
            sought.append(offset)

    assigned = AssignedPartitions(Scheduler(), Told(), Extensions())
    session = assigned.begin(HELD, Generation(1, "m"))
    session.opened = True
    session.ledger = Ledger(4)
    unreadable = UnreadablePartitions(Client(broker, "g"), assigned, (), lambda: None)
    unreadable.found(UnreadableBatch(HELD, 4, 4, 7, "torn"), session)
    if case == "revoked":
        assigned.end(session)
    session.resetting = case == "resetting"
    await asyncio.sleep(31)
    assert not session.waits
    assert sought == ([4] if case == "held" else [])
