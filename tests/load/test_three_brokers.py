"""Process and produce on three brokers that die and hang, alone and in a group. All of it: ``make load-brokers``."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from aioparallel.testing import LocalKafka
from tests.support.copying.figures import Figures
from tests.support.copying.trial import Trial, trial

pytestmark = [pytest.mark.real, pytest.mark.timeout(420)]

RECORDS = int(os.environ.get("LOAD_RECORDS", "200000"))
LONG, SHORT = 120.0, 2.0
"""Seconds the brokers have to take an output."""
HANG = 14.0
END = 150.0
"""Seconds in which the rest is copied, once all is well again."""

Tell = Callable[[str], None]


def check_no_duplicates(figures: Figures) -> None:
    """No member was killed, so each record is there once, and once more at most for each time that its own delivery
    gave up: that may have been written all the same, and its record was tried again."""
    figures.check()
    assert (figures.unexplained[:5], figures.lost_sessions) == ([], 0)


async def other_than(number: int, run: Trial) -> int:
    """A broker that is not this one."""
    return next(one for one in run.kafka.numbers if one != number)


async def begun(run: Trial, which: str) -> int:
    """Let it run for a while; the broker that is "the coordinator" of its group then, or "another"."""
    await run.begin()
    await run.hold(3)
    coordinator = await run.coordinator()
    return coordinator if which == "the coordinator" else await other_than(coordinator, run)


@pytest.mark.slow
async def test_a_killed_and_a_hung_broker_lose_and_repeat_nothing(
    kafka_cluster: LocalKafka, tmp_path: Path, tell: Tell
) -> None:
    """20,000 records, SIGKILL of the group's coordinator, its restart, then 4 s of SIGSTOP of another broker: each is
    in the target once, where its acknowledgement said, in the order of its key."""
    rng = random.Random(20_000)
    async with trial(kafka_cluster, tmp_path, records=20_000, seconds=20, delivery_timeout=120) as run:
        await run.begin()
        killed = await run.coordinator()
        async with run.fault(f"SIGKILL of {killed}", killed):
            await asyncio.to_thread(kafka_cluster.kill, killed)
            await run.hold(rng.uniform(1, 3))
            await asyncio.to_thread(kafka_cluster.restart, killed)
            await run.whole()
        coordinator = await run.coordinator()
        hung = rng.choice([number for number in kafka_cluster.numbers if number != coordinator])
        async with run.fault(f"SIGSTOP of {hung}", hung):
            await asyncio.to_thread(kafka_cluster.pause, hung)
            await run.hold(4)
            await asyncio.to_thread(kafka_cluster.resume, hung)
        figures = await run.end(90)
    tell(str(figures))
    figures.check()
    assert (figures.duplicates, figures.gave_up) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["the coordinator", "another"])
async def test_one_is_killed_and_comes_back(kafka_cluster: LocalKafka, tmp_path: Path, tell: Tell, which: str) -> None:
    """SIGKILL of one broker, the group's coordinator or another, and its restart: nothing lost, reordered or twice."""
    async with trial(kafka_cluster, tmp_path, records=RECORDS, seconds=60, delivery_timeout=LONG) as run:
        victim = await begun(run, which)
        async with run.fault(f"SIGKILL of {victim}", victim):
            await asyncio.to_thread(kafka_cluster.kill, victim)
            await run.hold(8)
            await asyncio.to_thread(kafka_cluster.restart, victim)
            await run.whole()
        figures = await run.end(END)
    tell(str(figures))
    check_no_duplicates(figures)


@pytest.mark.slow
async def test_two_are_killed_and_come_back(kafka_cluster: LocalKafka, tmp_path: Path, tell: Tell) -> None:
    """SIGKILL of two brokers at once, the coordinator among them: nothing is acknowledged until one is back, and
    nothing lost, reordered or twice."""
    async with trial(kafka_cluster, tmp_path, records=RECORDS, seconds=60, delivery_timeout=LONG) as run:
        await run.begin()
        await run.hold(3)
        first = await run.coordinator()
        victims = [first, await other_than(first, run)]
        async with run.fault(f"SIGKILL of {victims}", *kafka_cluster.numbers):
            await asyncio.gather(*(asyncio.to_thread(kafka_cluster.kill, number) for number in victims))
            await run.hold(5)
            await asyncio.gather(*(asyncio.to_thread(kafka_cluster.restart, number) for number in victims))
            await run.whole()
        figures = await run.end(END)
    tell(str(figures))
    check_no_duplicates(figures)


@pytest.mark.slow
async def test_a_rolling_restart(kafka_cluster: LocalKafka, tmp_path: Path, tell: Tell) -> None:
    """Each broker restarted cleanly, one after the other: nothing lost, reordered or twice."""
    async with trial(kafka_cluster, tmp_path, records=RECORDS, seconds=90, delivery_timeout=LONG) as run:
        await run.begin()
        await run.hold(2)
        for number in kafka_cluster.numbers:
            async with run.fault(f"restart of {number}", number):
                await asyncio.to_thread(kafka_cluster.restart, number)
                await run.whole()
            await run.hold(2)
        figures = await run.end(END)
    tell(str(figures))
    check_no_duplicates(figures)


@pytest.mark.slow
@pytest.mark.parametrize("delivery_timeout", [SHORT, LONG])
@pytest.mark.parametrize("which", ["the coordinator", "another"])
async def test_one_hangs_and_goes_on(
    kafka_cluster: LocalKafka, tmp_path: Path, tell: Tell, which: str, delivery_timeout: float
) -> None:
    """SIGSTOP of one broker for 14 s, with little patience and with much: nothing lost or reordered; twice is only what
    was given up."""
    async with trial(kafka_cluster, tmp_path, records=RECORDS, seconds=60, delivery_timeout=delivery_timeout) as run:
        victim = await begun(run, which)
        async with run.fault(f"SIGSTOP of {victim}", victim):
            await asyncio.to_thread(kafka_cluster.pause, victim)
            await run.hold(HANG)
            await asyncio.to_thread(kafka_cluster.resume, victim)
        await run.whole()
        figures = await run.end(END)
    tell(f"delivery timeout {delivery_timeout:g} s: {figures}")
    check_no_duplicates(figures)


@pytest.mark.slow
async def test_two_hang_and_go_on(kafka_cluster: LocalKafka, tmp_path: Path, tell: Tell) -> None:
    """SIGSTOP of two brokers for 14 s, with little patience: the third one writes what it cannot acknowledge, and the
    deliveries give up. Nothing is lost or reordered; twice is only what was given up."""
    async with trial(kafka_cluster, tmp_path, records=RECORDS, seconds=60, delivery_timeout=SHORT) as run:
        await run.begin()
        await run.hold(3)
        alive = await run.coordinator()
        victims = [number for number in kafka_cluster.numbers if number != alive]
        async with run.fault(f"SIGSTOP of {victims}", *kafka_cluster.numbers):
            await asyncio.gather(*(asyncio.to_thread(kafka_cluster.pause, number) for number in victims))
            await run.hold(HANG)
            await asyncio.gather(*(asyncio.to_thread(kafka_cluster.resume, number) for number in victims))
        await run.whole()
        figures = await run.end(END)
    tell(str(figures))
    check_no_duplicates(figures)
    assert figures.gave_up


@pytest.mark.slow
@pytest.mark.parametrize("which", ["the coordinator", "another"])
async def test_one_hangs_for_good(kafka_cluster: LocalKafka, tmp_path: Path, tell: Tell, which: str) -> None:
    """SIGSTOP of one broker up to the end, the target read back while it still hangs: nothing lost, reordered or twice,
    and the partitions led by others are never silent for 3 s."""
    async with trial(kafka_cluster, tmp_path, records=RECORDS, seconds=60, delivery_timeout=LONG) as run:
        victim = await begun(run, which)
        async with run.fault(f"SIGSTOP of {victim}", victim):
            await asyncio.to_thread(kafka_cluster.pause, victim)
            await run.hold(35)
        figures = await run.end(END, [number for number in kafka_cluster.numbers if number != victim])
    tell(str(figures))
    check_no_duplicates(figures)
    assert max(silence for _, silence in figures.silences) < 3.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_members_and_brokers_are_killed(kafka_cluster: LocalKafka, tmp_path: Path, tell: Tell, seed: int) -> None:
    """Three members, six times SIGKILL of a member or a broker or both, all replaced: nothing lost or reordered."""
    rng = random.Random(seed)
    async with trial(
        kafka_cluster, tmp_path, records=RECORDS, seconds=450, delivery_timeout=LONG, session_timeout=6
    ) as run:
        await run.begin(3)
        await run.hold(2)
        for what in rng.sample(["member", "member", "broker", "broker", "both", "both"], 6):
            victim = rng.choice(kafka_cluster.numbers) if what != "member" else 0
            async with run.fault(f"SIGKILL of {what} {victim}", victim):
                if what != "broker":
                    await rng.choice(run.members.living).kill()
                if victim:
                    await asyncio.to_thread(kafka_cluster.kill, victim)
                await run.hold(rng.uniform(1, 6))
                if what != "broker":
                    await run.members.start()
                if victim:
                    await asyncio.to_thread(kafka_cluster.restart, victim)
                    await run.whole()
            await run.hold(rng.uniform(0, 3))
        figures = await run.end(END)
    tell(str(figures))
    figures.check()
