"""``Deduplicate`` as a consumer has it: copies are left out, through restarts, rebalances and what brokers do."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aioparallel.config.policies import Deduplicate
from aioparallel.records.record import Outgoing, Record, TopicPartition
from tests.support.memory.consuming import T0, committed
from tests.support.memory.deduplicating import SEEN, Handled, broker_of, consuming, deduplicating, write
from tests.support.waiting import until


@pytest.mark.parametrize("by", ["record", "key"])
async def test_each_record_is_handled_once(by: str) -> None:
    """Copies in one fetch and later; stats say how many, and what is committed is all of it."""
    broker, handled = broker_of(), Handled(0.01)
    write(broker, *range(100), *range(50), *range(150))
    async with deduplicating(broker, deduplicate=Deduplicate(SEEN, by=by), until="end") as consumer:  # type: ignore[arg-type]
        await consumer.run(handled)
        stats = consumer.stats()
    assert sorted(handled.sources) == list(range(150))
    assert (stats.copies, stats.admitted, stats.succeeded) == (150, 150, 150)
    assert committed(broker) == 300
    assert stats.ended == stats.admitted


@pytest.mark.parametrize("by", ["record", "key"])
async def test_copies_are_known_after_a_restart(by: str) -> None:
    """Though the group's offsets are beyond them, and the process is another."""
    broker, handled = broker_of(), Handled()
    write(broker, *range(100))
    policy = Deduplicate(SEEN, by=by)  # type: ignore[arg-type]
    async with deduplicating(broker, deduplicate=policy, until="end") as consumer:
        await consumer.run(handled)
    write(broker, *range(60, 120))
    async with deduplicating(broker, deduplicate=policy, until="end") as consumer:
        await consumer.run(handled)
        assert consumer.stats().copies == 40
    assert sorted(handled.sources) == list(range(120))


@pytest.mark.parametrize("cooperative", [False, True])
async def test_partitions_that_move_take_with_them_what_was_seen(cooperative: bool) -> None:
    """A member comes, another goes; copies of all that either handled are left out."""
    broker, handled = broker_of(4), Handled(0.01)
    sources = {partition: range(1000 * partition, 1000 * partition + 100) for partition in range(4)}

    def write_all() -> None:
        for partition, ours in sources.items():
            write(broker, *ours, partition=partition)

    write_all()
    first, second = (deduplicating(broker, cooperative=cooperative) for _ in range(2))
    async with asyncio.timeout(600), second:
        async with first:
            running = [asyncio.create_task(first.run(handled))]
            await until(lambda: len(handled.sources) > 50)
            running.append(asyncio.create_task(second.run(handled)))
            await until(lambda: len(second.stats().partitions) == 2 if second._engine else False)
            write_all()
            first.stop()
            await running[0]
        await until(lambda: all(committed(broker, TopicPartition("t", number)) == 200 for number in sources))
        second.stop()
        await running[1]
    assert sorted(handled.sources) == [source for ours in sources.values() for source in ours]


async def test_outputs_of_copies_are_not_written() -> None:
    """Process and produce: one output for each record."""
    broker = broker_of()
    broker.create_topic("out", 1)

    async def handle(record: Record) -> Outgoing:
        return Outgoing("out", record.value, record.key)

    write(broker, *range(30), *range(40))
    for _ in range(2):
        async with deduplicating(broker, until="end") as consumer:
            await consumer.run(handle)
        write(broker, *range(40))
    assert sorted(int(record.value or b"") for record in broker.records("out")) == list(range(40))


async def test_what_says_nothing_of_its_source_is_handled_and_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """Once in the log, and in health with how many."""
    broker, handled = broker_of(), Handled()
    for number in range(5):
        broker.append("t", b"%d" % number, key=b"k", partition=0)
    with caplog.at_level(logging.INFO, logger="aioparallel"):
        async with consuming(deduplicating(broker), handled) as consumer:
            await until(lambda: committed(broker) == 5)
            problems = consumer.health().problems
    assert [problem.kind for problem in problems] == ["no_source"]
    assert "5 records" in problems[0].message
    assert [getattr(entry, "action", "") for entry in caplog.records].count("no_source") == 1


async def test_more_than_is_remembered_is_handled_again() -> None:
    """The bound is kept: what came long ago is not known any more, and nothing is lost by that."""
    broker, handled = broker_of(), Handled()
    write(broker, *range(100), *range(100))
    async with deduplicating(
        broker, deduplicate=Deduplicate(SEEN, remember=20), until="end", max_concurrency=1
    ) as consumer:
        await consumer.run(handled)
    assert set(handled.sources) == set(range(100))


async def test_a_truncated_log_is_read_anew_and_what_was_handled_is_still_known() -> None:
    """Records that were lost and come again at the same offsets are copies."""
    broker, handled = broker_of(), Handled()
    write(broker, *range(20))
    async with consuming(deduplicating(broker), handled) as consumer:
        await until(lambda: committed(broker) == 20)
        broker.truncate_tail(T0, 10)
        await until(lambda: consumer.stats().offset_resets == 1)
        write(broker, *range(10, 25))
        await until(lambda: len(set(handled.sources)) == 25)
        await until(lambda: committed(broker) == 25)
    assert sorted(handled.sources) == list(range(25))
