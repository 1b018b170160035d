"""Deadlines: one timeout and one timer for all."""

from __future__ import annotations

import asyncio
import random

import pytest

from aioparallel.engine.watch.deadlines import Deadlines


class Passed:
    """Deadlines of 5 seconds, and those that have passed, with the time since the test began."""

    def __init__(self, at_most: int = 1_000) -> None:
        self.time = asyncio.get_running_loop().time
        self.began = self.time()
        self.seen: list[tuple[list[str], float]] = []
        self.deadlines = Deadlines[str](5.0, self._note, at_most)

    def _note(self, passed: list[str]) -> None:
        self.seen.append((passed, round(self.time() - self.began, 3)))


async def test_a_deadline_passes_once_after_its_seconds() -> None:
    """What has passed may leave all the same."""
    passed = Passed()
    passed.deadlines.enter("a")
    await asyncio.sleep(4.9)
    assert passed.seen == []
    await asyncio.sleep(0.2)
    assert passed.seen == [(["a"], 5.0)]
    passed.deadlines.leave("a")
    await asyncio.sleep(100)
    assert passed.seen == [(["a"], 5.0)]


async def test_so_many_pass_in_one_turn_of_the_loop() -> None:
    """The earliest of them; the others at once after that."""
    passed = Passed(at_most=2)
    for number in range(5):
        passed.deadlines.enter(f"{number}")
    await asyncio.sleep(6)
    assert passed.seen == [(["0", "1"], 5.0), (["2", "3"], 5.0), (["4"], 5.0)]


async def test_what_has_left_never_passes() -> None:
    """The one after it passes at its own time."""
    passed = Passed()
    passed.deadlines.enter("a")
    await asyncio.sleep(2)
    passed.deadlines.enter("b")
    passed.deadlines.leave("a")
    await asyncio.sleep(100)
    assert [one for one in passed.seen if one[0]] == [(["b"], 7.0)]


async def test_closed_deadlines_never_pass() -> None:
    passed = Passed()
    passed.deadlines.close()
    passed.deadlines.enter("a")
    passed.deadlines.close()
    await asyncio.sleep(100)
    assert passed.seen == []


@pytest.mark.parametrize("seed", range(20))
async def test_against_a_table(seed: int) -> None:
    """In any order of entering and leaving each passes 5 seconds after it entered last, unless it has left."""
    chance, passed, expected = random.Random(seed), Passed(), dict[str, float]()
    seen = list[tuple[str, float]]()
    for _ in range(200):
        await asyncio.sleep(chance.choice((0, 0.5, 3)))
        now = round(passed.time() - passed.began, 3)
        seen += [(name, when) for name, when in expected.items() if when <= now]
        expected = {name: when for name, when in expected.items() if when > now}
        one = f"worker {chance.randrange(4)}"
        if one in expected:
            del expected[one]
            passed.deadlines.leave(one)
        else:
            expected[one] = now + 5
            passed.deadlines.enter(one)
    await asyncio.sleep(10)
    seen += expected.items()
    assert sorted((name, when) for names, when in passed.seen for name in names) == sorted(seen)
