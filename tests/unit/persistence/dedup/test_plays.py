"""Random plays: a stage that writes at least once in front, members that come, go and die behind it.

Nothing is lost, each key keeps its order, what was saved is never handled again; and where nobody dies each record is
handled exactly once.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import Any

import pytest

from aioparallel.config.policies import Deduplicate
from aioparallel.consumer import ParallelConsumer
from aioparallel.records.record import Record, TopicPartition
from aioparallel.testing.memory import ErrorCode, Fault, InMemoryBroker, Request
from tests.support.inside import client_of
from tests.support.memory.consuming import committed
from tests.support.memory.deduplicating import SEEN, broker_of, deduplicating, marks, place, remembered
from tests.support.waiting import until

PARTITIONS, KEYS, BATCHES = 3, 12, 8
PARTS = 3
"""Records of each key that are made of one, where records become several."""


def source_of(part: int) -> int:
    """The offset of the record that this one of several was made of; of one record several keys have parts."""
    return part // KEYS // PARTS


class Stage:
    """What writes: batches, each in one attempt or several. Of each attempt but the last, a prefix of each key's
    records arrives, and the keys one among the other in any order."""

    def __init__(self, broker: InMemoryBroker, rng: random.Random, *, explodes: bool) -> None:
        self._broker, self._rng = broker, rng
        self._explodes = explodes
        self.written = 0

    def write_batch(self) -> None:
        """The next twenty records or so, by one to three attempts."""
        size = self._rng.randrange(5, 30)
        batch = range(self.written, self.written + size)
        self.written += size
        for _ in range(self._rng.choice((0, 0, 1, 2))):
            self._attempt(batch, self._rng.random())
        self._attempt(batch, 1.0)

    def _attempt(self, batch: range, part: float) -> None:
        by_key: defaultdict[int, list[int]] = defaultdict(list)
        for source in batch:
            by_key[source % KEYS].append(source)
        lines = [ours[: round(len(ours) * part)] for ours in by_key.values()]
        while lines := [line for line in lines if line]:
            source = self._rng.choice(lines).pop(0)
            key = source % KEYS
            headers = place(source)
            if self._explodes:
                headers = (*place(source_of(source)), ("src-digest", b"%d" % source))
            self._broker.append("t", b"%d" % source, key=b"%d" % key, partition=key % PARTITIONS, headers=headers)


class Play:
    """One play; ``deadly``: members die, and requests are lost; ``explodes``: several records are made of one."""

    def __init__(self, seed: int, by: str, *, deadly: bool, explodes: bool) -> None:
        self.rng = random.Random(seed)
        self.by, self.deadly = by, deadly
        self.broker = broker_of(PARTITIONS)
        self.stage = Stage(self.broker, self.rng, explodes=explodes)
        self.handled: list[int] = []
        self.never_again: set[int] = set()
        self.members: list[tuple[ParallelConsumer[Any, Any], asyncio.Task[None]]] = []

    async def handle(self, record: Record) -> None:
        """Takes its time; notes what it was given."""
        source = int(record.value or b"")
        assert source not in self.never_again, f"{source} was saved as seen"
        await asyncio.sleep(self.rng.choice((0, 0.001, 0.02)))
        self.handled.append(source)

    def saved(self) -> set[int]:
        """Whose records the topic says were seen."""
        found: set[int] = set()
        for number in range(PARTITIONS):
            partition = TopicPartition("t", number)
            found |= remembered(self.broker, partition)
            for key, (upto, _, digests) in marks(self.broker, partition).items():
                if digests:
                    before = range(int(key), KEYS * PARTS * upto, KEYS)
                    found |= {*map(int, digests), *before}
                else:
                    found |= set(range(int(key), upto + 1, KEYS))
        return found

    async def live(self, consumer: ParallelConsumer[Any, Any]) -> None:
        """One member, until it is stopped or dies."""
        async with consumer:
            await consumer.run(self.handle)

    def start(self) -> None:
        """A member more."""
        policy = Deduplicate(SEEN, by=self.by, remember=500)  # type: ignore[arg-type]
        consumer = deduplicating(
            self.broker,
            cooperative=self.rng.random() < 0.5,
            deduplicate=policy,
            commit_timeout=0.5,
            max_concurrency=self.rng.choice((1, 5, 50)),
            drain_timeout=5,
        )
        self.members.append((consumer, asyncio.create_task(self.live(consumer))))

    async def stop(self) -> None:
        """One member goes, and leaves."""
        consumer, task = self.members.pop(self.rng.randrange(len(self.members)))
        consumer.stop()
        await task

    async def kill(self) -> None:
        """One member dies: what it had saved is saved, and what it has on its way may arrive or not."""
        consumer, task = self.members.pop(self.rng.randrange(len(self.members)))
        client_of(consumer).crash()  # type: ignore[attr-defined]
        self.never_again = self.saved()
        task.cancel()
        await asyncio.wait([task])

    async def run(self) -> None:
        """All of it."""
        if self.deadly:
            for request in (Request.FETCH, Request.COMMIT, Request.PRODUCE, Request.OFFSET_FETCH):
                self.broker.faults.sometimes(request, 0.05, Fault(is_response_lost=True))
                self.broker.faults.sometimes(request, 0.05, Fault(error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
                self.broker.faults.latency(request, 0.0, 0.05)
        self.start()
        for _ in range(BATCHES):
            self.stage.write_batch()
            await asyncio.sleep(self.rng.random())
            doing = self.rng.choice(("start", "stop", "kill", "nothing"))
            if doing == "start" and len(self.members) < 3:
                self.start()
            elif doing == "stop" and self.members:
                await self.stop()
            elif doing == "kill" and self.deadly and self.members:
                await self.kill()
        self.broker.faults.heal()
        self.start()
        ends = {TopicPartition("t", n): self.broker.log(TopicPartition("t", n)) for n in range(PARTITIONS)}
        await until(lambda: all(committed(self.broker, p) == (log.end_offset if log else 0) for p, log in ends.items()))
        while self.members:
            await self.stop()


async def played(seed: int, by: str, *, deadly: bool) -> Play:
    """One that has been played; in every second one records become several."""
    play = Play(seed, by, deadly=deadly, explodes=seed % 2 == 1)
    async with asyncio.timeout(3_000):
        await play.run()
    return play


@pytest.mark.parametrize("by", ["record", "key"])
@pytest.mark.parametrize("seed", range(25))
async def test_where_nobody_dies_each_record_is_handled_once(seed: int, by: str) -> None:
    """However members come and go."""
    play = await played(seed, by, deadly=False)
    assert sorted(play.handled) == list(range(play.stage.written))
    check_order(play.handled)


@pytest.mark.parametrize("by", ["record", "key"])
@pytest.mark.parametrize("seed", range(25))
async def test_where_members_die_nothing_is_lost_and_nothing_saved_comes_again(seed: int, by: str) -> None:
    """And requests are lost."""
    play = await played(seed, by, deadly=True)
    assert set(play.handled) == set(range(play.stage.written))
    check_order(list(dict.fromkeys(play.handled)))


def check_order(handled: list[int]) -> None:
    """Of each key, in the order of the source."""
    for key in range(KEYS):
        ours = [source for source in handled if source % KEYS == key]
        assert ours == sorted(ours)
