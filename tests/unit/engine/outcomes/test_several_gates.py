"""Several gates entered at once: all of them or none, and whoever waits for them gets through."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from aioparallel import RetryPolicy, parallel_map
from aioparallel.engine.outcomes.gates import Gate, NoRoom, enter_all, give_back, name_woken
from aioparallel.records.history import history_of
from aioparallel.records.record import Record
from tests.support.waiting import until

NAMES = "abcd"


class Passing:
    """A handler of items, each the names of gates; it is at all of them for a while. ``trouble``: what may befall it,
    by chance, before it enters and while it is inside."""

    def __init__(self, limit: int, chance: random.Random | None = None) -> None:
        self.gates = {name: Gate(name, limit) for name in NAMES}
        self.turn = Gate("several", 1)
        self.limit = limit
        self.chance = chance
        self.attempts = 0
        self.done: list[str] = []

    async def __call__(self, names: str) -> None:
        self.attempts += 1
        gates: Sequence[Gate] = ()
        try:
            if self.chance is not None:
                names = await self.troubled(self.chance, names)
            wanted = [self.gates[name] for name in dict.fromkeys(names)]
            if len(names) == 1:
                wanted[0].enter()
            else:
                enter_all(wanted, self.turn)
            gates = wanted
            assert all(gate.under_way <= self.limit for gate in gates)
            await asyncio.sleep(0.001 * len(names))
            if self.chance is not None:
                self.troubled_inside(self.chance, gates)
            self.done.append(names)
        except NoRoom:
            if self.chance is not None and self.chance.random() < 0.1:
                await asyncio.sleep(0.002)  # as a middleware may: others take its places meanwhile
            raise
        finally:
            for gate in gates:
                gate.leave()
            give_back()

    async def troubled(self, chance: random.Random, names: str) -> str:
        """It takes its time, fails, is cancelled, or wants other gates than before."""
        match chance.randrange(100):
            case 0 | 1:
                await asyncio.sleep(chance.choice([0.01, 1.5]))
            case 2 | 3:
                raise ValueError("before")
            case 4:
                raise asyncio.CancelledError
            case 5:
                async with asyncio.timeout(4):  # as its own time may be over
                    await asyncio.sleep(100)
            case 6 | 7:
                return names_of(chance)
        return names

    def troubled_inside(self, chance: random.Random, gates: Sequence[Gate]) -> None:
        """It fails, or is told to wait."""
        match chance.randrange(50):
            case 0:
                raise ValueError("inside")
            case 1 | 2:
                gate = chance.choice(gates)
                gate.shut(chance.choice([0.01, 0.5, 3.0]))
                raise NoRoom(gate)

    @property
    def is_idle(self) -> bool:
        """Whether nobody is there, waits there, or has a place there."""
        return all(gate.is_idle for gate in (*self.gates.values(), self.turn))


class Engine:
    """Wakes records, and may lose them."""

    def __init__(self) -> None:
        self.parked: set[Record[Any, Any]] = set()
        self.ready: list[Record[Any, Any]] = []

    def wake(self, record: Record[Any, Any], seconds: float) -> bool:
        if record not in self.parked:
            return False
        self.ready.append(record)
        return True

    def is_waiting(self, record: Record[Any, Any]) -> bool:
        return record in self.parked

    is_coming = is_waiting


def names_of(chance: random.Random) -> str:
    """Of one gate or several, in any order, some perhaps twice."""
    return "".join(chance.choices(NAMES, k=chance.choice([1, 1, 2, 2, 3, 4, 6])))


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_all_get_through(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they want, in whatever order, and nobody waits for a look. Each comes again a few times at most, however
    many there are."""
    monkeypatch.setattr("aioparallel.engine.outcomes.gates._CHECK_INTERVAL", 60.0)
    loop, chance, handler = asyncio.get_running_loop(), random.Random(limit), Passing(limit)
    items = [names_of(chance) for _ in range(1_000)]
    began = loop.time()
    async for outcome in parallel_map(handler, items, max_concurrency=200):
        outcome.result()
    assert sorted(handler.done) == sorted(items)
    assert loop.time() - began < 0.001 * sum(map(len, items))  # faster than one after the other
    assert handler.attempts < 6 * len(items)
    assert handler.is_idle


async def test_opposite_orders() -> None:
    """Two that want the same two, each another one first."""
    handler = Passing(1)
    async with asyncio.timeout(1):
        async for outcome in parallel_map(handler, ["ab", "ba"] * 100, max_concurrency=20):
            outcome.result()
    assert handler.is_idle


@pytest.mark.parametrize("limit", [1, 3])
async def test_one_that_needs_several_is_not_passed_by_all_others(limit: int) -> None:
    """Two gates that always have enough to do: who needs both gets through before most of those that came later."""
    handler = Passing(limit)
    items = ["a", "b"] * 50 + ["ab"] + ["a", "b"] * 200
    async for outcome in parallel_map(handler, items, max_concurrency=20):
        outcome.result()
    assert handler.done.index("ab") < 150


async def test_who_needs_one_is_not_passed_by_all_that_need_several() -> None:
    """Nor the other way round: who needs several has stood in line too before its turn."""
    handler = Passing(1)
    items = ["ab"] * 5 + ["b"] * 10 + ["ab", "ba"] * 200
    async for outcome in parallel_map(handler, items, max_concurrency=20):
        outcome.result()
    assert max(place for place, names in enumerate(handler.done) if names == "b") < 50


async def test_where_one_is_shut_no_place_is_kept_elsewhere() -> None:
    """Those who need the others only go on at their pace; who needs it goes on when it opens."""
    loop, handler, times = asyncio.get_running_loop(), Passing(1), dict[str, float]()
    items = ["ab", "ba", "a"] * 30
    handler.gates["b"].shut(60)
    async for outcome in parallel_map(handler, items, max_concurrency=20):
        outcome.result()
        times[outcome.item] = loop.time()
    assert times["a"] < 1
    assert 60 < times["ab"] < 62
    assert 60 < times["ba"] < 62


async def test_who_was_woken_and_finds_another_shut_keeps_nothing() -> None:
    """Also where it is the only one that wants several."""
    loop, handler, times = asyncio.get_running_loop(), Passing(1), dict[str, float]()
    gates = handler.gates

    async def shuts(names: str) -> None:
        if names != "c":
            await handler(names)
            return
        gates["a"].enter()
        await asyncio.sleep(1)
        gates["b"].shut(60)
        gates["a"].leave()

    async for outcome in parallel_map(shuts, ["c", "ab", "a"], max_concurrency=3):
        outcome.result()
        times[outcome.item] = loop.time()
    assert times["a"] < 1.1
    assert 60 < times["ab"] < 62


async def test_a_gate_that_shuts_gets_back_the_places_that_were_kept_for_it() -> None:
    """One waits for it, with a place elsewhere: that is free at once."""
    loop, handler, times = asyncio.get_running_loop(), Passing(1), dict[str, float]()
    gates = handler.gates

    async def shuts(names: str) -> None:
        if names != "b":
            await handler(names)
            return
        gates["b"].enter()
        await asyncio.sleep(1)
        assert list(gates["a"]._woken)  # by "ab", which has been woken there before, and is first in line here
        gates["b"].shut(60)
        gates["b"].leave()

    async for outcome in parallel_map(shuts, ["b", "a", "ab", "a"], max_concurrency=4):
        outcome.result()
        times[outcome.item] = loop.time()
    assert times["a"] < 1.1
    assert 60 < times["ab"] < 62


async def test_who_comes_too_late_to_keep_its_turn_keeps_nothing() -> None:
    """Something may be awaited between the moment at which it finds no room and that at which it waits."""
    turn, here, there, engine = Gate("several", 1), Gate("here", 1), Gate("there", 2), Engine()
    here.enter()
    records = [Record[Any, Any]("t", 0, number) for number in range(2)]
    for record in records:
        history_of(record)
        here.wait(record, engine, None, [turn, there])
    assert [history_of(record).kept_at for record in records] == [(turn, there), ()]
    for gate in (turn, here, there):
        gate.close()


@pytest.mark.parametrize("seed", range(20))
async def test_any_trouble_leaves_no_place_behind(seed: int) -> None:
    """They fail, take their time, are cancelled, are told to wait, and want others than before: all end, within a
    bound, and then nobody has a place, and no task is left."""
    loop, chance = asyncio.get_running_loop(), random.Random(seed)
    handler = Passing(chance.randint(1, 3), chance)
    items = [names_of(chance) for _ in range(300)]
    began, tasks = loop.time(), asyncio.all_tasks()
    retry = RetryPolicy(first_delay=0.01, max_attempts=3, max_wait=chance.choice([None, 5.0]))
    ended = Counter[bool]()
    async for outcome in parallel_map(
        handler, items, max_concurrency=chance.choice([3, 30]), retry=retry, on_error="emit"
    ):
        ended[outcome.error is None] += 1
    assert ended.total() == 300
    assert ended[True] > (200 if retry.max_wait is None else 20)  # waits end for most, in a second
    assert loop.time() - began < 400
    await asyncio.sleep(5)  # what was told to wait
    assert asyncio.all_tasks() == tasks
    assert handler.is_idle


async def test_who_goes_in_the_middle_leaves_nothing() -> None:
    """The map ends while some wait: nobody is inside any more."""
    handler, tasks = Passing(1), asyncio.all_tasks()
    ended = 0
    outcomes = parallel_map(handler, ["abcd", "ab", "cd", "a", "dcba"] * 20, max_concurrency=20)
    async for _ in outcomes:
        ended += 1
        if ended == 10:
            break
    await outcomes.aclose()
    await until(lambda: asyncio.all_tasks() == tasks)
    assert not any(gate.under_way for gate in handler.gates.values())


class Course:
    """Records that begin, come again when they are woken, end, or are lost, by chance."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.engine = Engine()
        self.gates = [Gate(name, chance.randint(1, 2)) for name in NAMES]
        self.turn = Gate("several", 1)
        self.fresh = [Record[Any, Any]("t", 0, number) for number in range(60)]
        self.wanted = {record: chance.sample(self.gates, chance.randint(1, 4)) for record in self.fresh}
        self.inside: list[Record[Any, Any]] = []
        self.done = 0
        self.lost = 0

    def possible(self) -> list[Callable[[], None]]:
        """What may happen next."""
        found: list[Callable[[], None]] = [self.shut] if self.chance.random() < 0.02 else []
        found += [self.lose] if self.engine.parked and self.chance.random() < 0.02 else []
        return (
            found
            + [self.start] * bool(self.fresh)
            + [self.end] * bool(self.inside)
            + [self.again] * bool(self.engine.ready)
        )

    def start(self) -> None:
        """A newcomer."""
        self.attempt(self.fresh.pop())

    def again(self) -> None:
        """One that was woken."""
        self.attempt(self.engine.ready.pop(self.chance.randrange(len(self.engine.ready))))

    def attempt(self, record: Record[Any, Any]) -> None:
        """It enters, or is parked."""
        self.engine.parked.discard(record)
        name_woken(record)
        try:
            enter_all(self.wanted[record], self.turn)
        except NoRoom as no_room:
            record._parks += 1
            self.engine.parked.add(record)
            no_room.gate.wait(record, self.engine, None, no_room.reserving)
        else:
            self.inside.append(record)
        give_back()
        now = Counter(gate for one in self.inside for gate in self.wanted[one])
        assert all(count == gate.under_way <= gate.limit for gate, count in now.items())

    def end(self) -> None:
        """One of those inside has done its work."""
        self.done += 1
        for gate in self.wanted[self.inside.pop(self.chance.randrange(len(self.inside)))]:
            gate.leave()

    def lose(self) -> None:
        """Its partition is taken away."""
        record = self.chance.choice(sorted(self.engine.parked, key=lambda one: one.offset))
        self.engine.parked.discard(record)
        if record in self.engine.ready:
            self.engine.ready.remove(record)
        self.lost += 1

    def shut(self) -> None:
        """One asks for patience."""
        self.chance.choice(self.gates).shut(self.chance.choice([0.001, 0.5]))


@pytest.mark.parametrize("seed", range(20))
async def test_places_of_those_who_never_come_are_found_again(seed: int) -> None:
    """Partitions are taken away while their records wait, keep places, or were woken: all others get through, and
    never more than the limit are inside."""
    loop, course = asyncio.get_running_loop(), Course(random.Random(seed))
    began = loop.time()
    while course.done + course.lost < 60:
        await asyncio.sleep(0)
        if possible := course.possible():
            contextvars.copy_context().run(course.chance.choice(possible))
        else:
            await asyncio.sleep(0.1)
        assert loop.time() - began < 60
    assert course.lost < 30
    for gate in (*course.gates, course.turn):
        gate._check()
        assert not gate._woken
        gate.close()
