"""How long an acknowledgement takes, from the end of a handler to the broker's answer. Figures are printed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from aioparallel.group.share_client import Acknowledged, AcknowledgeType
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.kafka.share_members import Delivery, ShareMember, member_of, produce
from tests.support.waiting import until

pytestmark = pytest.mark.real


@dataclass
class Handling:
    """Handlers that take a time, up to ``most`` at once."""

    member: ShareMember
    seconds: float
    most: int
    latencies: list[float] = field(default_factory=list)
    results: list[Acknowledged] = field(default_factory=list)
    running: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, count: int) -> float:
        """Fetch and handle this many; the seconds that takes."""
        began = asyncio.get_running_loop().time()
        begun = 0
        while begun < count:
            if (room := self.most - self.running) > 0:
                for one in await self.member.take(1, most=min(room, count - begun)):
                    begun += 1
                    self.running += 1
                    asyncio.get_running_loop().call_later(self.seconds, self._ended, one)
            else:
                self.changed.clear()
                await self.changed.wait()
        while len(self.results) < count:
            self.changed.clear()
            await self.changed.wait()
        return asyncio.get_running_loop().time() - began

    def _ended(self, one: Delivery) -> None:
        self.running -= 1
        time = asyncio.get_running_loop().time
        ended_at = time()

        def done(result: Acknowledged, _until: float) -> None:
            self.latencies.append(time() - ended_at)
            self.results.append(result)
            self.changed.set()

        self.member.client.acknowledge(one.partition, one.offset, AcknowledgeType.ACCEPT, done)
        self.changed.set()


def figures(latencies: Sequence[float]) -> str:
    ordered = sorted(latencies)
    p50, p99 = (ordered[round((len(ordered) - 1) * share)] for share in (0.5, 0.99))
    return f"acknowledged after p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, at most {ordered[-1] * 1000:.1f} ms"


@pytest.mark.parametrize(("seconds", "most"), [(0.0, 500), (0.01, 500), (0.1, 1_000)])
async def test_a_busy_topic(local_kafka: LocalKafka, kafka_topic: TopicMaker, seconds: float, most: int) -> None:
    """20,000 records that are already there."""
    topic = await kafka_topic(4)
    for partition in range(4):
        await produce(local_kafka, topic, 5_000, partition)
    async with member_of(local_kafka, topic) as member:
        handling = Handling(member, seconds, most)
        took = await handling.take(20_000)
        assert set(handling.results) == {Acknowledged.DONE}
    print(f"\nbusy, handlers of {seconds * 1000:.0f} ms: 20,000 records in {took:.2f} s, {figures(handling.latencies)}")


@pytest.mark.parametrize(
    ("seconds", "count"),
    [(0.05, 100), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((0.001, 100), (0.5, 20), (3.0, 6)))],
)
async def test_an_idle_topic(local_kafka: LocalKafka, kafka_topic: TopicMaker, seconds: float, count: int) -> None:
    """One record after the other, each after the one before was acknowledged."""
    topic = await kafka_topic(4)
    async with member_of(local_kafka, topic) as member:
        handling = Handling(member, seconds, 500)
        taking = asyncio.create_task(handling.take(count))
        for number in range(count):
            await produce(local_kafka, topic, 1, number % 4)
            await until(lambda number=number: len(handling.results) > number)  # type: ignore[misc]
        await taking
        assert set(handling.results) == {Acknowledged.DONE}
    print(f"\nidle, handlers of {seconds * 1000:.0f} ms: {figures(handling.latencies)}")
