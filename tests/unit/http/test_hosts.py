"""``Hosts``: lists of requests to several hosts of few places each."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from aioparallel import RetryPolicy, parallel_map
from aioparallel.engine.gates import give_back
from aioparallel.http.hosts import Hosts
from tests.support.waiting import until


class Asking:
    """Is at all hosts of an item for a while, as ``http_handler`` is for a list."""

    def __init__(self, limit: int) -> None:
        self.hosts = Hosts(limit)
        self.now, self.most = Counter[str](), Counter[str]()
        self.done: list[Sequence[str]] = []

    async def __call__(self, names: Sequence[str]) -> None:
        try:
            gates = self.hosts.enter(names)
            self.now.update(names)
            self.most |= self.now
            await asyncio.sleep(0.001)
            self.now.subtract(names)
            for gate in gates:
                gate.leave()
            self.done.append(names)
        finally:
            give_back()


@pytest.mark.parametrize("limit", [1, 2])
async def test_lists_to_several_hosts_all_get_through(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever hosts they name, in whatever order: each is done, no place is lost, nobody waits for a look."""
    monkeypatch.setattr("aioparallel.engine.gates._LOOK", 60.0)
    chance = random.Random(1)
    items = [chance.sample("abcd", chance.randint(1, 4)) for _ in range(200)]
    handler = Asking(limit)
    async with asyncio.timeout(30):
        async for outcome in parallel_map(handler, items, max_concurrency=30):
            outcome.result()
    assert len(handler.done) == 200
    assert set(handler.most.values()) == {limit}
    assert all(handler.hosts.gate(name).is_idle for name in "abcd")


async def test_a_list_does_not_wait_for_all_others() -> None:
    """Two hosts that always have enough to do: one that needs both gets through before most of them."""
    handler = Asking(1)
    both = "ab"
    async with asyncio.timeout(30):
        async for _ in parallel_map(handler, ["a", "b"] * 10 + [both] + ["a", "b"] * 200, max_concurrency=20):
            pass
    assert handler.done.index(both) < 60


async def test_a_host_that_asks_for_patience_keeps_no_place_elsewhere() -> None:
    """A list waits for it, and the places that it would need at others are theirs."""
    handler = Asking(1)
    handler.hosts.gate("b").shut(60)
    async with asyncio.timeout(10):
        async for _ in parallel_map(handler, ["a", "ab", "ba"] * 10 + ["a"] * 100, max_concurrency=20):
            if len(handler.done) == 110:
                break


async def test_more_hosts_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host of a list is not forgotten for the next one of it."""
    monkeypatch.setattr("aioparallel.http.hosts._IDLE", 2)
    hosts = Hosts(1)
    gates = hosts.enter([f"host {number}" for number in range(10)])
    assert [hosts.gate(gate.name) for gate in gates] == gates
    assert [gate.under_way for gate in gates] == [1] * 10


class Course:
    """Any course of events: hosts that ask for patience, attempts that fail, lists that change, an early end."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.limit = self.chance.randint(1, 3)
        self.hosts = Hosts(self.limit)
        self.now = Counter[str]()
        self.done = 0

    async def __call__(self, names: Sequence[str]) -> None:
        chance = self.chance
        try:
            if chance.random() < 0.1:
                names = chance.sample("abcd", chance.randint(1, 4))  # another list than the time before
            if chance.random() < 0.1:
                await asyncio.sleep(0.001 * chance.random())  # the function that makes the list takes its time
            if chance.random() < 0.05:
                return  # nothing to ask
            if len(names) == 1:
                gates = [self.hosts.gate(names[0])]
                gates[0].enter()
            else:
                gates = self.hosts.enter(names)
            try:
                self.now.update(names)
                assert max(self.now.values()) <= self.limit
                await asyncio.sleep(0.002 * chance.random())
                if chance.random() < 0.05:
                    chance.choice(gates).shut(0.02 * chance.random())
                if chance.random() < 0.1:
                    raise ConnectionError
                self.done += 1
            finally:
                self.now.subtract(names)
                for gate in gates:
                    gate.leave()
        finally:
            give_back()


@pytest.mark.parametrize("seed", range(12))
async def test_any_course_of_lists_and_singles_ends(seed: int) -> None:
    """Nothing stands still, and no place is left, however it goes; nor where somebody leaves in the middle."""
    course = Course(seed)
    chance = course.chance
    items = [chance.sample("abcd", chance.choice([1, 1, 1, 2, 3, 4])) for _ in range(250)]
    most = chance.choice([250, 250, 100])
    ended = 0
    async with asyncio.timeout(60):
        outcomes = parallel_map(
            course,
            items,
            max_concurrency=chance.choice([5, 40]),
            retry=RetryPolicy(first_delay=0.001, max_delay=0.01, max_attempts=20),
        )
        async for _ in outcomes:
            ended += 1
            if ended == most:
                break
        await outcomes.aclose()
    assert ended == most
    assert not any(course.now.values())
    if most == 250:
        await until(lambda: all(course.hosts.gate(name).is_idle for name in "abcd"))
