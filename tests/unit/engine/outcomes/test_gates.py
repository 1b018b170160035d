"""Gates: bounds of what is under way at one place, for records that hold no worker while they wait."""

from __future__ import annotations

import asyncio
import contextvars
import math
import random
from collections.abc import Callable
from typing import Any, Literal

import pytest

from aioparallel import FailurePolicy, RetryPolicy, parallel_map
from aioparallel.engine.outcomes.failures import Failures
from aioparallel.engine.outcomes.gates import Gate, NoRoom, name_woken
from aioparallel.records.history import history_of
from aioparallel.records.record import Record
from tests.support.waiting import until


class Passing:
    """A handler of numbers: the even ones pass a gate."""

    def __init__(self, limit: int, seconds: float = 0.001) -> None:
        self.gate: Gate | None = None
        self.limit = limit
        self.seconds = seconds
        self.most = 0
        self.entered: list[int] = []
        self.others = 0

    async def __call__(self, number: int) -> int:
        if number % 2:
            self.others += 1
            return number
        gate = self.gate = self.gate or Gate("here", self.limit)
        gate.enter()
        try:
            self.entered.append(number)
            self.most = max(self.most, gate.under_way)
            await asyncio.sleep(self.seconds)
        finally:
            gate.leave()
        return number


@pytest.mark.parametrize("limit", [1, 3, 50])
async def test_so_many_at_once_and_all_of_them(limit: int) -> None:
    """Never more than the limit are under way, all get through, and nobody's attempts are counted."""
    handler = Passing(limit)
    outcomes = [o async for o in parallel_map(handler, range(600), max_concurrency=20)]
    assert sorted(o.item for o in outcomes) == list(range(600))
    assert {o.attempts for o in outcomes} == {1}
    assert handler.most == min(limit, 20)
    assert handler.gate is not None
    assert handler.gate.is_idle


async def test_who_has_waited_goes_first() -> None:
    """In the order in which they came."""
    handler = Passing(2, 0.002)
    async for _ in parallel_map(handler, range(200), max_concurrency=50):
        pass
    assert handler.entered == sorted(handler.entered)


async def test_who_waits_holds_no_worker() -> None:
    """Two workers, a hundred that wait at a gate of one: the others are done while the first is still in it."""
    handler = Passing(1, 0.2)
    async for outcome in parallel_map(handler, [0, 2, 4, *range(1, 201, 2)], max_concurrency=2):
        if outcome.item == 0:
            assert handler.others == 100
            break


async def test_a_shut_gate_opens_by_itself() -> None:
    """Nobody enters before its time, though there is room; a shorter time does not open it sooner."""
    loop = asyncio.get_running_loop()
    gate, entered = Gate("here", 5), list[float]()
    gate.shut(0.15)
    gate.shut(0.01)
    began = loop.time()

    async def handle(_number: int) -> None:
        gate.enter()
        entered.append(loop.time() - began)
        gate.leave()

    async for _ in parallel_map(handle, range(20)):
        pass
    assert len(entered) == 20
    assert min(entered) > 0.14
    assert max(entered) < 1.0  # not at the next look, a second later


async def test_patience_ends_at_a_gate_too() -> None:
    """``max_wait``: who has waited for so long has failed, with the word of the gate."""
    gate = Gate("https://busy", 1)
    gate.shut(60)

    async def handle(_number: int) -> None:
        gate.enter()

    retry = RetryPolicy(max_wait=0.2)
    outcomes = [o async for o in parallel_map(handle, range(3), retry=retry, on_error="emit")]
    assert [str(o.error) for o in outcomes] == ["no room at https://busy"] * 3


def test_it_counts_no_attempt_and_no_time_of_failures() -> None:
    """Seconds at a gate do not count for ``max_elapsed``."""
    loop = asyncio.new_event_loop()

    async def check() -> None:
        record: Record[Any, Any] = Record("t", 0, 0)
        policy = FailurePolicy(retry=RetryPolicy(jitter=0, max_elapsed=10, max_attempts=3), give_up="skip")
        failures = Failures(policy.retry_budget)
        assert failures.decide(record, ValueError(), 100.0, 100.0).delay == 1
        record._parks += 1
        gate = Gate("here", 1)
        decision = failures.decide(record, NoRoom(gate), 101.0, 101.0)
        assert decision.no_room is not None
        assert (decision.no_room.gate, decision.waits, decision.end) == (gate, True, None)
        record._parks += 1
        history_of(record).waited_at_gate(50.0)
        assert record.attempt == 2
        assert failures.decide(record, ValueError(), 152.0, 152.0).delay == 2

    loop.run_until_complete(check())
    loop.close()


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

    def is_coming(self, record: Record[Any, Any]) -> bool:
        return record in self.parked


async def test_the_place_of_one_that_never_comes_is_found_again() -> None:
    """Woken, and its partition is taken away before it starts: the next one is woken a second later at most."""
    gate, engine = Gate("here", 1), Engine()
    records: list[Record[Any, Any]] = [Record("t", 0, number) for number in range(3)]
    engine.parked.update(records)
    gate.enter()
    for record in records:
        gate.wait(record, engine, None)
    gate.leave()
    await until(lambda: engine.ready == records[:1])
    with pytest.raises(NoRoom):
        gate.enter()  # a newcomer, while one is on its way
    engine.parked.discard(records[0])
    await until(lambda: engine.ready == records[:2])
    gate.close()


async def test_any_course_of_events_keeps_the_bound_and_wakes_all() -> None:
    """Records come, are woken, start or are lost, and end, in any order: never more than the limit are under way, and
    whoever is not lost gets through."""
    for seed in range(30):
        await _course(random.Random(seed))


async def _course(chance: random.Random) -> None:
    gate, engine = Gate("here", chance.randint(1, 3)), Engine()
    fresh: list[Record[Any, Any]] = [Record("t", 0, number) for number in range(30)]
    under_way: list[Record[Any, Any]] = []
    done, lost = 0, 0

    def attempt(record: Record[Any, Any]) -> None:
        engine.parked.discard(record)
        name_woken(record)
        try:
            gate.enter()
        except NoRoom:
            record._parks += 1
            engine.parked.add(record)
            gate.wait(record, engine, None)
        else:
            under_way.append(record)
        assert len(under_way) <= gate.limit

    def start() -> None:
        attempt(fresh.pop())

    def start_woken() -> None:
        attempt(engine.ready.pop(chance.randrange(len(engine.ready))))

    def end() -> None:
        nonlocal done
        under_way.pop(chance.randrange(len(under_way)))
        gate.leave()
        done += 1

    def lose() -> None:
        nonlocal lost
        engine.parked.discard(engine.ready.pop())
        lost += 1

    def shut() -> None:
        gate.shut(0.001)

    for _ in range(2_000):
        await asyncio.sleep(0)
        possible: list[Callable[[], None]] = [shut] if chance.random() < 0.05 else []
        possible += [start] * bool(fresh) + [end] * bool(under_way) + [start_woken] * 2 * bool(engine.ready)
        possible += [lose] if engine.ready and chance.random() < 0.02 else []
        if possible:
            contextvars.copy_context().run(chance.choice(possible))
        elif done + lost == 30:
            break
        else:
            await until(lambda: bool(engine.ready))
    assert done + lost == 30
    gate.close()


async def test_it_opens_on_time_though_a_look_was_to_come_later() -> None:
    """What is told to wait for less than the next look does not wait for that."""
    gate, loop = Gate("here", 1), asyncio.get_running_loop()
    woken: list[float] = []

    class Woken:
        def wake(self, record: Record[Any, Any], seconds: float) -> bool:
            woken.append(loop.time())
            return True

        def is_waiting(self, record: Record[Any, Any]) -> bool:
            return True

        is_coming = is_waiting

    gate.enter()
    gate.wait(Record("t", 0, 0, None, None), Woken(), None)  # looks in a second
    gate.shut(0.3)
    gate.leave()
    began = loop.time()
    await until(lambda: woken)
    assert 0.29 <= woken[0] - began < 0.4


@pytest.mark.parametrize("limit", [1, 2])
async def test_who_is_woken_may_go_elsewhere(limit: int) -> None:
    """A handler that asks another place at each attempt, one of several mirrors say: the place that was kept for it is
    free at once. Nothing stands still, and nothing waits for looks."""
    chance, gates, loop = random.Random(5), list[Gate](), asyncio.get_running_loop()

    async def handle(number: int) -> int:
        if not gates:
            gates.extend(Gate(name, limit) for name in "abc")
        chosen = chance.sample(gates, k=chance.choice([1, 1, 2]))
        entered: list[Gate] = []
        try:
            for gate in chosen:
                gate.enter()
                entered.append(gate)
            await asyncio.sleep(0.001)
        finally:
            for gate in entered:
                gate.leave()
        return number

    began = loop.time()
    async with asyncio.timeout(60):
        found = [o.item async for o in parallel_map(handle, range(300), max_concurrency=20)]
    assert sorted(found) == list(range(300))
    assert loop.time() - began < 20
    assert all(gate.is_idle for gate in gates)


async def test_a_retry_function_is_not_asked_about_a_gate() -> None:
    """Who finds no room waits for it, for as long as it takes: it was never tried."""

    def retry(record: Record[Any, Any], error: Exception, attempts: int) -> Literal["skip"]:
        raise AssertionError("it was asked")

    decision = Failures(FailurePolicy(retry=retry).retry_budget).decide(
        Record("t", 0, 0), NoRoom(Gate("https://busy", 1)), 0.0, 0.0
    )
    assert (decision.waits, decision.delay, decision.end) == (True, math.inf, None)
