"""A tiny contest on the embedded broker: real processes, real topics, and what is told of programs that fail."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from aioparallel.cli.bench.cases import CaseSpec
from aioparallel.cli.bench.contest import run_case
from aioparallel.cli.bench.contestants import builtin_contestants
from aioparallel.cli.bench.filling import fill, read_back
from aioparallel.cli.bench.model import Case, Contestant
from aioparallel.cli.bench.program import REAPER_SCRIPT
from aioparallel.cli.bench.workload import Shape
from aioparallel.errors import AioparallelError
from aioparallel.testing import EmbeddedBroker

SHAPE = Shape(records=400, keys=20, partitions=2, sleep=(0, 1_000))
NAMES = ("ours", "getmany", "async-for", "task-per-record")
STOPPED = ("ours", "getmany", "task-per-record", "ceiling")  # 400 sleeps of 0.1 s, 20 at once, take 2 s


@pytest.fixture
async def broker() -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker() as found:
        yield found


async def play(
    broker: EmbeddedBroker, contestants: dict[str, Contestant | str], shape: Shape = SHAPE, limit: float = 120.0
) -> tuple[Case, list[tuple[str, int]]]:
    """One warm round of these; the case, and the progress told."""
    told: list[tuple[str, int]] = []
    spec = CaseSpec("x", "x-tiny", "Tiny", shape, "key", 20, tuple(contestants), limit)
    case = await run_case(
        spec,
        contestants,
        bootstrap_servers=broker.bootstrap_servers,
        create_topic=broker.create_topic,
        rounds=1,
        seed=1,
        progress=lambda of, name, number: told.append((name, number)) if of is spec else None,
    )
    return case, told


def program(code: str) -> Contestant:
    """A program of these lines, which are given the orders."""
    return Contestant("made", "Made up", (sys.executable, "-c", code), keeps_key_order=True)


async def test_contestants_do_the_same_work(broker: EmbeddedBroker) -> None:
    """Each runs cold and warm in turns, handles every record once, commits all, and is measured. None is quicker than
    the sleeps allow in the order that it keeps; each may be a millisecond short: uvloop's timers count whole ones."""
    contestants: dict[str, Contestant | str] = {name: builtin_contestants()[name] for name in NAMES}
    shape = replace(SHAPE, sleep=(0,) * 19 + (20_000,))
    case, told = await play(broker, contestants | {"java": "no Java here"}, shape)
    assert told == [(name, 0) for name in NAMES] + [(name, 1) for name in (*NAMES[1:], NAMES[0])]
    workload = shape.workload(1)
    in_order, without_order = workload.bound("key", 20), workload.bound("unordered", 20)
    assert case.bound == in_order
    assert in_order is not None
    assert without_order is not None
    assert case.problems == []
    for entry in case.entries[:-1]:
        assert [run.problems for run in entry.runs] == [(), ()]
        assert [run.ended for run in entry.runs] == [400, 400]
        assert entry.seconds is not None
        bound = in_order if builtin_contestants()[entry.contestant].keeps_key_order else without_order
        assert entry.seconds.lowest >= bound * 19 / 20
    assert case.entries[-1].missing == "no Java here"


async def test_runs_beyond_the_limit_are_stopped(broker: EmbeddedBroker) -> None:
    """They are reported as far as they came, without problems."""
    shape = Shape(records=400, keys=400, partitions=2, sleep=(100_000,))
    case, _ = await play(broker, {name: builtin_contestants()[name] for name in STOPPED}, shape, limit=0.8)
    for entry in case.entries:
        assert [(run.stopped, run.problems) for run in entry.runs] == [(True, ()), (True, ())]
        assert all(run.ended < 400 for run in entry.runs)


async def test_an_order_that_was_not_kept_is_told(broker: EmbeddedBroker) -> None:
    """A contestant that promises more than it does."""
    careless = builtin_contestants()["task-per-record"]
    boaster = Contestant("made", "Made up", careless.command, keeps_key_order=True)
    case, _ = await play(broker, {"made": boaster})
    assert "of the same key" in case.entries[0].runs[0].problems[0]
    assert case.entries[0].rate is None


async def test_a_topic_that_is_not_as_planned_is_refused(broker: EmbeddedBroker) -> None:
    """Its order would be held against the contestants."""
    await broker.create_topic("other", SHAPE.partitions)
    await fill(broker.bootstrap_servers, "other", SHAPE.workload(1))
    read_back(broker.bootstrap_servers, "other", SHAPE.workload(1))
    with pytest.raises(AioparallelError, match=r"partition \d, offset \d+ of other is not the record planned"):
        read_back(broker.bootstrap_servers, "other", SHAPE.workload(2))


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import sys; input(); sys.exit('no luck today')", "exit code 1; its last line: no luck today"),
        ("print(input() and 'ready')", "its answer is not understood"),
        ("""while input(): print('{"round": 0, "error": "broken"}', flush=True)""", "its run failed: broken"),
    ],
)
async def test_programs_that_fail_are_told_of(broker: EmbeddedBroker, code: str, problem: str) -> None:
    """With what they said last; the contest goes on."""
    case, told = await play(broker, {"made": program(code)})
    assert problem in case.entries[0].runs[0].problems[0]
    assert told == [("made", 0), ("made", 1)]


async def test_a_program_that_cannot_be_started_is_told_of(broker: EmbeddedBroker) -> None:
    """As a problem of its run."""
    case, _ = await play(broker, {"made": Contestant("made", "Made up", ("/no/such/program",), keeps_key_order=True)})
    assert "could not be started" in case.entries[0].runs[0].problems[0]


async def test_nobody_is_left_behind_when_it_is_cancelled(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Not even a program that never looks up."""
    pid = tmp_path / "pid"
    code = f"import os, pathlib, time; pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(600)"
    playing = asyncio.create_task(play(broker, {"made": program(code)}))
    async with asyncio.timeout(120):
        while not (pid.exists() and pid.read_text()):
            await asyncio.sleep(0.01)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_nobody_is_left_behind_when_the_benchmark_is_killed() -> None:
    """The reaper ends whoever was started and has not ended, as soon as its pipe closes."""
    sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
    known, left_alone = (subprocess.Popen(sleeping, start_new_session=True) for _ in range(2))
    try:
        orders = f"+{known.pid}\n+{left_alone.pid}\n-{left_alone.pid}\n"
        subprocess.run([sys.executable, str(REAPER_SCRIPT)], input=orders, text=True, check=True, timeout=120)
        assert known.wait(20) == -signal.SIGKILL
        assert left_alone.poll() is None
    finally:
        for process in (known, left_alone):
            process.kill()
            process.wait()
