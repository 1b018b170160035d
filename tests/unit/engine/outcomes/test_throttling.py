"""A place that refuses most requests: what of the last minute it has refused, and what is left."""

from __future__ import annotations

import asyncio

from aioparallel.engine.outcomes.gates import Gate, NoRoom
from tests.support.virtual_time import VirtualLoop


async def ask(gate: Gate, seconds: float | None, *, refuse: bool = False) -> bool:
    """A request that is refused with this delay, without one, or answered. Returns whether it was sent."""
    try:
        gate.enter()
    except NoRoom:
        return False
    try:
        await asyncio.sleep(0.01)
        if refuse:
            gate.refused()
            if seconds is not None:
                gate.shut(seconds)
    finally:
        gate.leave()
    return True


def test_a_place_that_answers_is_not_throttled() -> None:
    """Requests that are answered cost no samples."""

    async def play() -> None:
        gate = Gate("here", 5)
        for _ in range(500):
            await ask(gate, None)
        assert gate.throttled is None

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(play())


def test_a_tenth_that_is_answered() -> None:
    """Nine of ten are refused without a delay: the share and the rate are said, from 20 s on, of a minute at most."""

    async def play() -> None:
        gate = Gate("here", 5)
        loop = asyncio.get_running_loop()
        first_said = None
        for number in range(1_000):
            await asyncio.sleep(0.09)
            await ask(gate, None, refuse=number % 10 != 0)
            if first_said is None and gate.throttled is not None:
                first_said = loop.time()
        assert first_said is not None
        assert 20 <= first_said <= 21
        said = gate.throttled
        assert said is not None
        assert said.is_mostly
        assert 58 <= said.seconds <= 60
        assert abs(said.refused / (said.refused + said.answered) - 0.9) < 0.02
        assert 0.9 < said.answered / said.seconds < 1.1
        assert str(said).endswith("requests a second succeed")
        await asyncio.sleep(61)
        assert gate.throttled is None

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(play())


def test_delays_that_fill_most_of_the_time() -> None:
    """One refusal every 10 s closes the place for 8 s: few requests are refused, and most of the time is gone."""

    async def play() -> None:
        gate = Gate("here", 5)
        loop = asyncio.get_running_loop()
        sent = 0
        while loop.time() < 100:
            sent += await ask(gate, 8, refuse=sent % 100 == 99)
            await asyncio.sleep(0.01)
        said = gate.throttled
        assert said is not None
        assert said.is_mostly
        assert said.refused < said.answered / 50
        assert 0.7 < said.delayed / said.seconds < 0.9
        assert "requested delays for" in str(said)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(play())


def test_a_few_refusals_are_no_throttling() -> None:
    """A tenth of the requests is refused, each with a short delay."""

    async def play() -> None:
        gate = Gate("here", 5)
        for number in range(1_000):
            await asyncio.sleep(0.09)
            await ask(gate, 0.1, refuse=number % 10 == 0)
        said = gate.throttled
        assert said is not None
        assert not said.is_mostly

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(play())
