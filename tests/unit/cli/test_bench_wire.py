"""What a contestant's program knows of its run."""

from __future__ import annotations

import asyncio
from array import array
from typing import NamedTuple

from aioparallel.cli.bench.model import Work
from aioparallel.cli.bench.wire import Job


class Place(NamedTuple):
    partition: int
    offset: int


def job(*, sleeps: bool, limit: float = 20.0) -> Job:
    """Of two records in one partition; the second one sleeps 50 ms."""
    work = Work("", "topic", 1, 2, "key", 10, sleeps, "", limit)
    return Job(work, "group", [array("I", [0, 50_000])])


async def test_a_run_is_measured_from_the_first_call_to_the_last_end() -> None:
    """Seconds and CPU; what was before is in the whole seconds alone."""
    found = job(sleeps=True)
    sum(range(1_000_000))
    begun = asyncio.gather(*(found.handle(Place(0, offset)) for offset in range(2)))
    assert await found.wait()
    await begun
    sum(range(1_000_000))
    report = found.report()
    assert (report["ended"], report["stopped"]) == (2, False)
    assert 0.05 <= report["seconds"] < report["whole_seconds"]
    assert 0 <= report["cpu_seconds"] < report["seconds"]
    assert found.events[0].tolist() == [0, 1, ~0, ~1]


async def test_the_limit_counts_from_the_first_call() -> None:
    """Without one from the start; a record that ends after it does not count."""
    early, late = job(sleeps=False, limit=0.01), job(sleeps=False, limit=0.2)
    waiting = asyncio.create_task(late.wait())
    assert not await early.wait()
    await late.handle(Place(0, 0))
    assert not await waiting
    await late.handle(Place(0, 1))
    assert (early.report()["ended"], early.report()["stopped"]) == (0, True)
    report = late.report()
    assert (report["ended"], report["stopped"]) == (1, True)
    assert 0.2 <= report["seconds"] < report["whole_seconds"] - 0.005
