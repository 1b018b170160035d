"""Process and produce on three brokers: one is killed, another one hangs. The long form: ``make load-brokers``."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from aioparallel.testing import LocalKafka
from tests.support.copying.trial import trial

SEED = 20_000


@pytest.mark.real
async def test_a_killed_and_a_hung_broker_lose_and_repeat_nothing(kafka_cluster: LocalKafka, tmp_path: Path) -> None:
    """30,000 records, SIGKILL of the group's coordinator, its restart, then 4 s of SIGSTOP of another broker: each is
    in the target once, where its acknowledgement said, in the order of its key."""
    rng = random.Random(SEED)
    async with trial(kafka_cluster, tmp_path, records=30_000, seconds=30, delivery_timeout=120) as run:
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
    print(f"\n{figures}")
    figures.check()
    assert (figures.duplicates, figures.gave_up) == (0, 0)
