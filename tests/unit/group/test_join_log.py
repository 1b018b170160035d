"""A member that waits for its group says so."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection

import pytest

from aioparallel import Extension, ParallelConsumer, Record
from aioparallel.group.client import RebalanceListener
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient, InMemoryProducer
from tests.support.memory.consuming import GROUP, Seen, produce
from tests.support.waiting import until


class Late(InMemoryClient):
    """Joins some seconds later, as behind a member that was killed."""

    seconds = 27.0

    def subscribe(self, topics: Collection[str] | re.Pattern[str], listener: RebalanceListener) -> None:
        asyncio.get_running_loop().call_later(self.seconds, super().subscribe, topics, listener)


def lines(caplog: pytest.LogCaptureFixture) -> list[int]:
    """The seconds that each line about the group names."""
    found = [record for record in caplog.records if getattr(record, "action", "") == "waiting_for_group"]
    assert all(record.levelno == logging.WARNING and GROUP in record.getMessage() for record in found)
    return [round(record.__dict__["seconds"]) for record in found]


@pytest.mark.parametrize(("seconds", "told"), [(0.5, []), (4.9, []), (27.0, [5, 15, 25])])
async def test_a_member_that_waits_for_its_group(
    seconds: float, told: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """After five seconds, then every ten, until it has partitions."""
    broker = InMemoryBroker()
    broker.create_topic("t")
    produce(broker, [b"a"])
    client, seen = Late(broker, GROUP), Seen()
    client.seconds = seconds
    consumer = ParallelConsumer("t", group_id=GROUP, client=client, producer=InMemoryProducer(broker))
    async with consumer:
        task = asyncio.create_task(consumer.run(seen))
        await until(lambda: len(seen.ended) == 1)
        await asyncio.sleep(30)
        assert lines(caplog) == told
        consumer.stop()
        await task


async def test_nothing_is_said_after_a_stop(caplog: pytest.LogCaptureFixture) -> None:
    """A stop while it waits ends the lines, too."""
    broker = InMemoryBroker()
    broker.create_topic("t")
    client = Late(broker, GROUP)
    client.seconds = 10_000.0
    consumer = ParallelConsumer("t", group_id=GROUP, client=client, producer=InMemoryProducer(broker))
    async with consumer:
        task = asyncio.create_task(consumer.run(Seen()))
        await until(lambda: lines(caplog) == [5])
        consumer.stop()
        await task
    await asyncio.sleep(60)
    assert lines(caplog) == [5]


async def test_nothing_is_said_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    """Also while the consumer stays open: the failure says why it has no partitions."""
    broker = InMemoryBroker()
    broker.create_topic("t")
    client = Late(broker, GROUP)
    client.seconds = 10_000.0

    class Failing(Extension):
        async def work(self) -> None:
            await asyncio.sleep(3)
            raise LookupError("a defect")

    consumer = ParallelConsumer(
        "t", group_id=GROUP, client=client, producer=InMemoryProducer(broker), extensions=[Failing()]
    )
    async with consumer:
        with pytest.raises(LookupError):
            await consumer.run(Seen())
        await asyncio.sleep(60)
        assert lines(caplog) == []


async def test_nothing_is_said_of_a_rebalance(caplog: pytest.LogCaptureFixture) -> None:
    """A member that drains for another one had partitions, and is no stranger to its group."""
    broker = InMemoryBroker()
    broker.create_topic("t", 2)
    produce(broker, [b"a"], 0)
    produce(broker, [b"b"], 1)
    began: list[int] = []

    async def slow(record: Record) -> None:
        began.append(record.partition)
        await asyncio.sleep(15)

    def consumer() -> ParallelConsumer:
        client, producer = InMemoryClient(broker, GROUP), InMemoryProducer(broker)
        return ParallelConsumer("t", group_id=GROUP, client=client, producer=producer)

    async with consumer() as first, consumer() as second:
        running = asyncio.create_task(first.run(slow))
        await until(lambda: len(began) == 2)
        await asyncio.sleep(3)
        joining = asyncio.create_task(second.run(Seen()))
        await asyncio.sleep(4)
        assert not first.health().joined or not second.health().joined
        assert lines(caplog) == []  # the second has waited for less than five seconds
        first.stop(drain=False)
        second.stop()
        await asyncio.gather(running, joining)
