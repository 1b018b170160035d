"""Tiny contests on the embedded broker: real processes, real topics, and what is told of programs that fail."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import psutil
import pytest

from aioparallel.testing import EmbeddedBroker
from benchmarks import contest
from benchmarks.answers import Watch, unbelievable
from benchmarks.cases import Case
from benchmarks.checks import check_commits
from benchmarks.contest import Arena, Field
from benchmarks.contestant import Work
from benchmarks.intervals import least_rounds
from benchmarks.measures import Result, Run, cpu_over
from benchmarks.programs import CONTESTANTS, Contestant
from benchmarks.rounds import play
from benchmarks.workload import Shape

SHAPE = Shape(records=400, keys=20, partitions=2, sleep=(0, 1_000))
NAMES = ("ours", "getmany", "async-for", "task-per-record")


@pytest.fixture
async def broker() -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker() as found:
        yield found


def case_of(*names: str, shape: Shape = SHAPE, limit: float = 120.0) -> Case:
    return Case("x-tiny", "Tiny", shape, names, concurrency=20, handler="sleep", limit=limit)


def arena_of(broker: EmbeddedBroker, *made: Contestant | str, said: list[str] | None = None) -> Arena:
    contestants = {**CONTESTANTS, **{"java" if isinstance(one, str) else one.name: one for one in made}}
    say = (said if said is not None else []).append
    return Arena(broker.bootstrap_servers, broker.create_topic, contestants, 1, 1, 1, say, 0.03, 0.0)


async def rounds(case: Case, arena: Arena) -> Result:
    """Of one case by itself."""
    (result,) = await play([case], arena)
    return result


def program(code: str) -> Contestant:
    """A program of these lines, which are given the orders."""
    return Contestant("made", "Made up", (sys.executable, "-c", code))


async def runs_of(broker: EmbeddedBroker, made: Contestant) -> list[Run]:
    return (await rounds(case_of("made"), arena_of(broker, made))).entries[0].runs


async def test_contestants_do_the_same_work(broker: EmbeddedBroker) -> None:
    """Each runs cold and warm in turns, handles every record once, commits all, and is measured. None is quicker than
    the sleeps allow in the order that it keeps; each may be a millisecond short: uvloop's timers count whole ones."""
    said: list[str] = []
    shape = replace(SHAPE, sleep=(0,) * 19 + (20_000,))
    case = await rounds(case_of(*NAMES, "java", shape=shape), arena_of(broker, "no Java here", said=said))
    for each, which in (said[:4], "cold round"), (said[4:], "warm round 1"):
        assert sorted(line.rpartition(" (")[0] for line in each) == sorted(f"x-tiny: {name}, {which}" for name in NAMES)
    workload = shape.workload(1)
    bounds = workload.bound("key", 20), workload.bound("unordered", 20)
    assert case.bound == bounds[0]
    assert not case.failed
    for entry in case.entries[:-1]:
        assert [run.ended for run in entry.runs] == [400, 400]
        bound = bounds[0] if CONTESTANTS[entry.contestant].keeps_key_order else bounds[1]
        assert bound is not None
        assert min(run.seconds for run in entry.warm) >= bound * 19 / 20
        assert {run.peak_in_flight for run in entry.runs} <= set(range(1, 21))
    assert case.entries[-1].missing == "no Java here"


@pytest.mark.slow
@pytest.mark.parametrize("handler", ["return", "json", "produce"])
async def test_other_handlers_are_checked_too(
    broker: EmbeddedBroker, handler: Literal["return", "json", "produce"]
) -> None:
    """Those that return at once, read decoded values, or produce one record for each, whose topic is read then."""
    shape = Shape(records=300, keys=20, partitions=2, source="flights" if handler == "json" else "made")
    contestants = ("ours", "producer") if handler == "produce" else ("ours", "getmany")
    case = replace(case_of(*contestants, shape=shape), handler=handler)
    result = await rounds(case, arena_of(broker))
    assert not result.failed, result
    assert [len(entry.warm) for entry in result.entries] == [1, 1]


@pytest.mark.slow
async def test_a_round_in_which_the_machine_moved_is_repeated(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runs are kept and count for nothing; a ratio has both its sides in each round that counts."""
    answers = iter((True, False))
    monkeypatch.setattr("benchmarks.rounds.moved", lambda seen: next(answers, False))
    case = replace(case_of("ours", "getmany"), bounded_by="getmany")
    result = await rounds(case, replace(arena_of(broker), seconds=60.0, width=math.inf))
    assert (result.rounds, result.repeated, result.unquiet) == (1, 1, 0)
    for entry in result.entries:
        assert [(run.round, run.repeated) for run in entry.runs] == [(0, False), (1, True), (2, False)]
        assert [run.round for run in entry.warm] == [2]
        assert all(run.machine is not None for run in entry.runs)


@pytest.mark.slow
async def test_where_no_round_is_quiet_all_count(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is an answer in the time that was given, and it says so."""
    monkeypatch.setattr("benchmarks.rounds.moved", lambda seen: True)
    result = await rounds(case_of("ours"), replace(arena_of(broker), rounds=2))
    assert (result.rounds, result.repeated, result.unquiet) == (2, 0, 2)
    assert [run.round for run in result.entries[0].warm] == [1, 2]


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that never moves."""
    monkeypatch.setattr("benchmarks.rounds.moved", lambda seen: False)


@pytest.mark.usefixtures("quiet")
@pytest.mark.slow
async def test_rounds_go_on_until_the_ratio_is_known(broker: EmbeddedBroker) -> None:
    """Of those alone whose ratio is wide: others have had their rounds. With too few rounds there is no interval, which
    is as wide as can be; with as many as it needs any interval here is narrow enough."""
    case = replace(case_of("ours", "getmany", "async-for"), bounded_by="getmany")
    result = await rounds(case, replace(arena_of(broker), seconds=100.0, width=100.0))
    warm = {entry.contestant: len(entry.warm) for entry in result.entries}
    assert warm == {"ours": least_rounds(), "getmany": least_rounds(), "async-for": 1}


@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
async def test_cases_that_are_compared_run_in_the_same_rounds(broker: EmbeddedBroker) -> None:
    """Each on records of its own; the CPU of the second over that of the first is a ratio of rounds."""
    cases = [
        replace(case_of("ours"), name="e-keys-1000", together="e"),
        replace(case_of("ours", shape=replace(SHAPE, keys=400)), name="e-keys-1000000", together="e"),
    ]
    found = await play(cases, replace(arena_of(broker), seconds=100.0, width=100.0))
    assert [one.name for one in found] == ["e-keys-1000", "e-keys-1000000"]
    assert not any(one.failed for one in found)
    seen = cpu_over("e-keys-1000")(found[1], {one.name: one for one in found})
    assert 0 < seen.low <= seen.median <= seen.high < math.inf


@pytest.mark.slow
async def test_runs_beyond_the_limit_are_stopped(broker: EmbeddedBroker) -> None:
    """They are reported as far as they came, without problems."""
    shape = Shape(records=400, keys=400, partitions=2, sleep=(100_000,))
    case = case_of("ours", "getmany", "task-per-record", "ceiling", shape=shape, limit=0.8)
    for entry in (await rounds(case, arena_of(broker))).entries:
        assert [(run.stopped, run.problems) for run in entry.runs] == [(True, ()), (True, ())]
        assert all(run.ended < 400 for run in entry.runs)


@pytest.mark.slow
async def test_an_order_that_was_not_kept_is_told(broker: EmbeddedBroker) -> None:
    """A contestant that promises more than it does counts for nothing."""
    boaster = replace(CONTESTANTS["task-per-record"], name="made", keeps_key_order=True)
    result = await rounds(case_of("made"), arena_of(broker, boaster))
    assert any("of the same key" in problem for problem in result.entries[0].runs[0].problems)
    assert result.entries[0].warm == []


async def test_what_was_not_committed_is_told(broker: EmbeddedBroker) -> None:
    """By partition; here of a group that never was."""
    async with Field.of(case_of("ours"), arena_of(broker)) as place:
        found = await check_commits(broker.bootstrap_servers, place.work.topic, "nobody", place.workload)
    assert [problem.split(":")[0] for problem in found] == ["partition 0", "partition 1"]
    assert all("committed up to offset 0 of" in problem for problem in found)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import sys; input(); sys.exit('no luck today')", "ended with exit code 1: no luck today"),
        ("print(input() and 'ready')", "its answer is not understood"),
        ("print(input() and '[1]')", "its answer is not understood"),
        ("""while input(): print('{"round": 0, "error": "broken"}', flush=True)""", "its run failed: broken"),
        ("""while input(): print('{"round": 7}', flush=True)""", "its answer is not understood"),
    ],
)
async def test_programs_that_fail_are_told_of(broker: EmbeddedBroker, code: str, problem: str) -> None:
    """With what they said last; the contest goes on."""
    assert problem in (await runs_of(broker, program(code)))[0].problems[0]


def test_what_is_stopped_may_go_on_in_its_log() -> None:
    """Records end while it closes, and their entries are seen after the seconds that it counts."""
    work = Work("x:1", "t", 1, 400, "key", 20, "return", "sleeps", 30.0)
    watch = Watch(Path("log"), 400)
    watch.longest, watch.shortest = 32.0, 30.2
    run = Run(1, 30.02, 30.5, 380, 1.0, 1_000, stopped=True)
    assert not list(unbelievable(run, 390, work, SHAPE.workload(1), "key", watch))
    found = list(unbelievable(replace(run, seconds=29.5), 390, work, SHAPE.workload(1), "key", watch))
    assert found == ["it reports that it took 29.500 s, but it took 30.000 s at least"]


def two_quick(*cases: tuple[object, ...]) -> list[object]:
    """All but the first two are slow: each starts a program."""
    return [*cases[:2], *(pytest.param(*case, marks=pytest.mark.slow) for case in cases[2:])]


HONEST = {
    "round": 0, "seconds": 0.05, "whole_seconds": 0.06, "ended": 400, "cpu_seconds": 0.01, "peak_memory": 1_000,
    "stopped": False,
}  # fmt: skip


def liar(figures: dict[str, object], log: str = "b''", before: str = "pass") -> Contestant:
    """A program that does nothing of what it says: an answer with these figures, and a log of these bytes."""
    return program(f"""
import json, struct, sys, time
for line in sys.stdin:
    order = json.loads(line)
    {before}
    with open(order["log"], "wb") as log:
        log.write({log})
    print(json.dumps({{**{HONEST | figures!r}, "round": order["round"]}}), flush=True)
""")


@pytest.mark.parametrize(
    ("log", "problem"),
    two_quick(
        ("struct.pack('<3Q', 1, 1 << 62, 5)", "is of no kind"),
        ("b'hello world, this is text'", "no whole words"),
        ("struct.pack('<2Q', 1, 1 << 62) + b'abc'", "no whole words"),
        ("struct.pack('<2Q', 1 << 60, 1 << 62)", "words of an event"),
        ("b''", "was never handled"),
    ),
)
async def test_a_wrong_log_is_a_problem_of_its_run(broker: EmbeddedBroker, log: str, problem: str) -> None:
    """Not of the case, in which others go on."""
    for run in await runs_of(broker, liar({}, log)):
        assert any(problem in found for found in run.problems)


@pytest.mark.parametrize(
    ("figures", "problem"),
    two_quick(
        ({"seconds": "0.5"}, "seconds is '0.5', not a number of seconds"),
        ({"seconds": float("nan")}, "seconds is nan, not"),
        ({"whole_seconds": float("inf")}, "whole_seconds is inf, not"),
        ({"cpu_seconds": -1.0}, "cpu_seconds is -1.0, not"),
        ({"ended": 10**400}, "not a whole number"),
        ({"ended": True}, "ended is True, not a whole number"),
        ({"peak_memory": None}, "peak_memory is None, not"),
        ({"stopped": "yes"}, "stopped is 'yes', not true or false"),
        ({"problems": []}, "it has unknown values: problems"),
    ),
)
async def test_a_wrong_answer_is_a_problem_of_its_run(
    broker: EmbeddedBroker, figures: dict[str, object], problem: str
) -> None:
    """It names the figure."""
    for run in await runs_of(broker, liar(figures, before="nan, inf = float('nan'), float('inf')")):
        assert problem in run.problems[0]


SLEEPERS = "struct.pack('<801Q', 1, *(kind << 62 | at // 200 << 44 | at % 200 for at in range(400) for kind in (1, 2)))"


@pytest.mark.parametrize(
    ("log", "figures", "problem"),
    two_quick(
        ("b''", {"stopped": True, "ended": 10**9, "seconds": 0.5}, "1,000,000,000 records ended, but only 0 did"),
        ("struct.pack('<2Q', 1, 1 << 62)", {"stopped": True, "ended": 1}, "1 records ended, but only 0 did"),
        ("b''", {"stopped": True, "ended": 0}, "took 0.050 s, but it took 120.000 s at least"),
        ("b''", {"ended": 399}, "399 of 400 records ended"),
        ("b''", {"seconds": 500.0, "whole_seconds": 500.0}, "took 500.000 of 500.000 s, but its answer came after"),
        ("b''", {"seconds": 500.0}, "took 500.000 of 0.060 s"),
        (SLEEPERS, {"seconds": 0.001}, "took 0.001 s, but it took"),
    ),
)
async def test_a_run_that_cannot_be_true_is_told(
    broker: EmbeddedBroker, log: str, figures: dict[str, object], problem: str
) -> None:
    """More records than its log holds, and times that neither the sleeps nor the benchmark's clock allow."""
    case = case_of("made", shape=replace(SHAPE, sleep=(50_000,)))
    result = await rounds(case, arena_of(broker, liar(figures, log)))
    for run in result.entries[0].runs:
        assert any(problem in found for found in run.problems), run.problems


@pytest.mark.slow
async def test_a_log_that_fills_slowly_is_watched(broker: EmbeddedBroker) -> None:
    """A program cannot have been quicker than the benchmark saw it write."""
    slowly = """
    with open(order["log"], "wb", buffering=0) as log:
        log.write(struct.pack("<2Q", 1, 1 << 62))
        time.sleep(1)
    """
    case = replace(case_of("made"), handler="return")
    result = await rounds(case, arena_of(broker, liar({"whole_seconds": 1.0}, before=slowly.strip())))
    for run in result.entries[0].runs:
        assert any("took 0.050 s, but it took" in found for found in run.problems), run.problems


async def test_a_program_that_cannot_be_started_is_told_of(broker: EmbeddedBroker) -> None:
    """As a problem of its run."""
    found = await runs_of(broker, Contestant("made", "Made up", ("/no/such/program",)))
    assert "could not be started" in found[0].problems[0]


async def test_a_program_that_hangs_is_ended(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the work's limit and some grace; it has one run, with a problem."""
    monkeypatch.setattr(contest, "GRACE", 0.5)
    case = case_of("made", limit=0.5)
    result = await rounds(case, arena_of(broker, program("import time; time.sleep(600)")))
    (run,) = result.entries[0].runs
    assert "said nothing for 1 s" in run.problems[0]


def of_a_sleeper(pid: Path) -> str:
    return f"import os, pathlib, time; pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(600)"


def said_by(path: Path) -> int | None:
    """The process id in the file, once it is there."""
    return int(path.read_text()) if path.exists() and path.read_text() else None


async def until_started(path: Path) -> int:
    async with asyncio.timeout(120):
        while (pid := said_by(path)) is None:
            await asyncio.sleep(0.01)
    return pid


async def until_gone(pid: int) -> None:
    async with asyncio.timeout(60):
        with contextlib.suppress(psutil.NoSuchProcess):
            while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                await asyncio.sleep(0.01)


async def test_nobody_is_left_behind_when_it_is_cancelled(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Not even a program that never looks up."""
    playing = asyncio.create_task(runs_of(broker, program(of_a_sleeper(tmp_path / "pid"))))
    pid = await until_started(tmp_path / "pid")
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    await until_gone(pid)


async def test_nobody_is_left_behind_when_the_benchmark_is_killed(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """With SIGKILL, in the middle of a run."""
    code = f"""
import asyncio
from benchmarks.cases import Case
from benchmarks.contest import Arena
from benchmarks.programs import Contestant
from benchmarks.rounds import play
from benchmarks.workload import Shape

async def create(name, partitions):
    pass

case = Case("x-tiny", "Tiny", Shape(10, 1, 1), ("made",))
made = Contestant("made", "Made up", {(sys.executable, "-c", of_a_sleeper(tmp_path / "pid"))!r})
asyncio.run(play([case], Arena({broker.bootstrap_servers!r}, create, {{"made": made}}, 1, 1, 1, print, 0.03, 0.0)))
"""
    folder = tmp_path / "tmp"
    folder.mkdir()
    benchmark = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(folder)})
    try:
        pid = await until_started(tmp_path / "pid")
    finally:
        benchmark.send_signal(signal.SIGKILL)
        benchmark.wait()
    await until_gone(pid)


async def test_a_topic_that_cannot_be_filled_ends_the_case(broker: EmbeddedBroker) -> None:
    """With the reason; nobody runs on other records than those planned."""
    await broker.create_topic("taken")

    async def refuse(name: str, partitions: int) -> None:
        await broker.create_topic("taken")

    with pytest.raises(Exception, match="there were no records to run on: topic 'taken'"):
        await rounds(case_of("ours"), replace(arena_of(broker), create_topic=refuse))
