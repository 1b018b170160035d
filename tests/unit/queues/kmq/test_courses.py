"""A queue in memory under anything: members that come, go, are cancelled and expelled, trackers that start anew,
brokers that hang and die, handlers that fail and hang."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aioparallel import Record
from aioparallel.testing.memory import InMemoryBroker
from tests.simulation.clocks import one_source_of_chance
from tests.support.virtual_time import VirtualLoop
from tests.support.waiting import until
from tests.unit.queues.kmq.conftest import consumer, produce, tracker
from tests.unit.queues.kmq.test_queue import held, open_markers

RECORDS = 80
COURSES = 12
PACE = 1e-6  # seconds that a look at the clock takes


class Course:
    """One of them, with a broker of its own."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.broker = InMemoryBroker()
        for topic, partitions in (("q", 2), ("q-markers", 2), ("q__undelivered", 1)):
            self.broker.create_topic(topic, partitions)
        self.done: Counter[bytes | None] = Counter()
        self.is_calm = False

    async def handle(self, record: Record) -> None:
        """Takes its time; now and then it fails, or takes longer than its lease."""
        chance = self.chance
        await asyncio.sleep(chance.random() * 0.05)
        if not self.is_calm and chance.random() < 0.05:
            raise ValueError
        if not self.is_calm and chance.random() < 0.03:
            await asyncio.sleep(1.0)
        self.done[record.value] += 1

    async def members(self) -> None:
        """One after the other, each with an end of another kind."""
        while True:
            one = consumer(self.broker, lease=0.6, max_concurrency=10)
            async with one:
                run = asyncio.create_task(one.run(self.handle))
                try:
                    await asyncio.sleep(self.chance.random() * 2 + 0.3)
                    if self.is_calm:
                        await asyncio.sleep(3600)
                    await self._end(one, run)
                finally:
                    run.cancel()
                    await asyncio.wait([run])
                    if not run.cancelled():
                        assert run.exception() is None

    async def _end(self, one: Any, run: asyncio.Task[None]) -> None:
        match self.chance.randrange(4):
            case 0:
                one.stop()
            case 1:
                one.stop(drain=False)
            case 2:
                run.cancel()
            case _:
                one.pause()
                await asyncio.sleep(0.3)
                one.resume()
                await asyncio.sleep(0.3)
                one.stop()
        await asyncio.wait([run])

    async def trackers(self) -> None:
        """One after the other."""
        while True:
            async with tracker(self.broker, max_redeliveries=100) as one:
                run = asyncio.create_task(one.run())
                try:
                    await asyncio.sleep(3600 if self.is_calm else 1.5 + self.chance.random() * 2)
                finally:
                    one.stop()
                    await asyncio.wait([run])

    async def faults(self) -> None:
        """Of the broker, and of the groups."""
        chance, broker = self.chance, self.broker
        try:
            while True:
                await asyncio.sleep(chance.random())
                match chance.randrange(3):
                    case 0:
                        broker.hang(1)
                        await asyncio.sleep(chance.random() * 1.5)
                        broker.unhang(1)
                    case 1:
                        broker.go_down()
                        await asyncio.sleep(chance.random())
                        broker.come_back()
                    case _:
                        group = chance.choice(["g", "trackers"])
                        for member in list(broker.group(group).members)[:1]:
                            broker.expire_session(group, member, asyncio.get_running_loop().time())
        finally:
            broker.unhang(1)
            broker.come_back()

    async def run(self) -> None:
        """All of it; then quiet, until everything is done."""
        works: list[Callable[[], Coroutine[Any, Any, None]]] = [self.members, self.members, self.trackers]
        tasks = [asyncio.create_task(work()) for work in works]
        faults = asyncio.create_task(self.faults())
        for number in range(RECORDS):
            produce(self.broker, [b"%d" % number], partition=number % 2)
            await asyncio.sleep(0.05)
        faults.cancel()
        await asyncio.wait([faults])
        self.is_calm = True

        def is_over() -> bool:
            for task in tasks:
                if task.done():
                    task.result()
            return len(self.done) == RECORDS and not open_markers(self.broker)

        await until(is_over, what=lambda: f"{len(self.done)} of {RECORDS}, open: {open_markers(self.broker)}")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("seed", range(COURSES))
def test_any_course_loses_nothing(seed: int) -> None:
    """Each record is handled, none is put away, and in the end no marker is open. In virtual time."""
    loop = VirtualLoop()
    with one_source_of_chance(seed, loop.time, PACE), asyncio.Runner(loop_factory=lambda: loop) as runner:
        course = Course(seed)
        runner.run(course.run())
    assert set(course.done) == {b"%d" % number for number in range(RECORDS)}
    assert not held(course.broker, "q__undelivered")
