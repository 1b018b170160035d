"""Two revisions side by side."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from aioparallel.records.errors import AioparallelError
from aioparallel.testing import LocalKafka
from benchmarks.cases import Case
from benchmarks.compare import command, instructions, pairs, revisions
from benchmarks.compare.cases import COMPARED
from benchmarks.compare.pairs import Comparison, PairFailed, compare, play_pair, prepare
from benchmarks.compare.revisions import Revision, extract
from benchmarks.contest import Arena, Field
from benchmarks.intervals import least_rounds
from benchmarks.programs import ROOT
from benchmarks.workload import Shape

CASE = replace(COMPARED["no-op-key"], shape=Shape(20_000, 200, 2))


@pytest.fixture
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One warm run of each process, and as few pairs as have an interval of 75 %."""
    monkeypatch.setattr(pairs, "TURNS", 1)
    monkeypatch.setattr(pairs, "CONFIDENCE", 0.75)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Revision:
    """Copied and compiled once."""
    return extract(revisions.WORKING_TREE, tmp_path_factory.mktemp("revisions") / "tree")


@asynccontextmanager
async def prepared(kafka: LocalKafka, case: Case) -> AsyncIterator[Field]:
    arena = Arena(kafka.bootstrap_servers, kafka.create_topic, {}, 0, 1, 1, lambda _: None, 0.02, 0.0)
    async with Field.of(case, arena) as place:
        await prepare(place)
        yield place


@pytest.mark.slow
@pytest.mark.usefixtures("few_runs")
async def test_a_slower_revision_is_found(local_kafka: LocalKafka, tree: Revision, tmp_path: Path) -> None:
    """Each side runs its own library, and the one that does more takes more CPU."""
    slow = extract(revisions.WORKING_TREE, tmp_path / "slow")
    ledger = slow.folder / "aioparallel" / "offsets" / "ledger.py"
    body, line = ledger.read_text(), "        self.position = next_offset\n"
    assert body.count(line) == 1
    ledger.write_text(body.replace(line, f"{line}        sum(range(500 * len(offsets)))\n"))
    async with prepared(local_kafka, CASE) as place:
        found = await compare(place, [tree, slow], seed=1)
    assert len(found.ratios["cpu_per_record"]) == least_rounds(0.75)
    assert found.interval("cpu_per_record").low > 1.5
    assert command.verdict(found, "cpu_per_record", 2.0).startswith("MORE CPU, by ")


@pytest.mark.slow
@pytest.mark.usefixtures("few_runs")
async def test_another_library_is_no_comparison(local_kafka: LocalKafka, tree: Revision, tmp_path: Path) -> None:
    """Whatever the environment says, what is measured is what was asked for."""
    (tmp_path / "empty").mkdir()
    async with prepared(local_kafka, CASE) as place:
        with pytest.raises(PairFailed, match="is imported, which is not in"):
            await play_pair(place, [tree, Revision("nothing", tmp_path / "empty")], random.Random(1))


@pytest.mark.usefixtures("few_runs")
@pytest.mark.parametrize(
    "name",
    [
        "batches",
        *[
            pytest.param(one, marks=pytest.mark.slow)
            for one in ("produce", "sleep-1000", "transactions", "map", "queue")
        ],
    ],
)
async def test_each_kind_of_case_runs_and_is_checked(local_kafka: LocalKafka, tree: Revision, name: str) -> None:
    """On few records: both sides have their runs, without a problem."""
    case = COMPARED[name]
    case = replace(case, shape=replace(case.shape, records=2_000, keys=200, partitions=2), concurrency=100)
    async with prepared(local_kafka, case) as place:
        pair = await play_pair(place, [tree, tree], random.Random(1))
    assert [[run.ended for run in turn] for turn in pair.turns] == [[2_000, 2_000]]
    assert pair.ratio("cpu_per_record") > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moves", "seen"),
    [
        ([False], (1, 0, 0)),
        ([True, False], (1, 1, 0)),
        ([True, True], (1, 1, 1)),
    ],
)
async def test_a_turn_in_which_the_machine_moved_is_repeated(
    local_kafka: LocalKafka, few_runs: None, tree: Revision, monkeypatch: pytest.MonkeyPatch, moves: list[bool],
    seen: tuple[int, int, int],
) -> None:  # fmt: skip
    """In the same processes; where too few are quiet, those that are not count, and are told."""
    answers = iter(moves)
    monkeypatch.setattr(pairs, "moved", lambda machines: next(answers))
    async with prepared(local_kafka, replace(CASE, shape=Shape(400, 20, 2))) as place:
        pair = await play_pair(place, [tree, tree], random.Random(1))
    assert (len(pair.turns), pair.repeated, pair.unquiet) == seen


def test_revisions_come_from_git(tmp_path: Path) -> None:
    """As they were committed, compiled, under their names; a name that is none is told."""
    found = extract("HEAD", tmp_path / "head")
    assert found.title.startswith("HEAD (")
    assert list(found.folder.glob("aioparallel/__pycache__/consumer.*.pyc"))
    with pytest.raises(AioparallelError, match="no-such-branch"):
        extract("no-such-branch", tmp_path / "none")
    with pytest.raises(AioparallelError, match="--help"):
        extract("--help", tmp_path / "option")


@pytest.mark.parametrize("name", ["no-op-key", "no-op-unordered", "batches", "produce", "transactions", "map", "queue"])
def test_each_case_runs_in_memory(name: str) -> None:
    """What is counted handles each record once."""
    said = json.dumps(instructions.told(replace(COMPARED[name], concurrency=100)))
    subprocess.run((sys.executable, str(instructions.PROGRAM), said, "500", str(ROOT)), check=True, timeout=120)


def test_another_library_is_not_counted(tmp_path: Path) -> None:
    """It must come from the folder of its revision."""
    command = (sys.executable, str(instructions.PROGRAM), json.dumps(instructions.told(CASE)), "5", str(tmp_path))
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "is imported, which is not in" in ran.stderr


@pytest.mark.parametrize(
    ("said", "count"),
    [
        ("==7== I   refs:      2,588,546,388\n", 2_588_546_388),
        ("2588546388,,instructions:u,1000,100.00,,\n", 2_588_546_388),
        ("<not supported>,,instructions:u,0,100.00,,\n", None),
        ("", None),
    ],
)
def test_counts_are_read(said: str, count: int | None) -> None:
    """Of cachegrind and of perf stat; where perf counts nothing there is none."""
    assert instructions.count_in(said) == count


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ([1.05] * 8, "MORE CPU, by 5.0%"),
        ([0.9] * 8, "less CPU, by 10.0%"),
        ([0.999, 1.001] * 4, "CPU the same"),
        ([0.95, 1.05] * 4, "CPU not resolved"),
    ],
)
def test_verdicts(ratios: list[float], words: str) -> None:
    """An interval that leaves 1 out is a difference; that there is none is told only where the interval is narrow.
    Each value has its own."""
    found = Comparison({"cpu_per_record": ratios, "seconds": [1.0] * len(ratios)})
    assert command.verdict(found, "cpu_per_record", 2.0) == words
    assert command.verdict(found, "seconds", 2.0) == "time the same"


@pytest.mark.slow
async def test_a_row_is_compared_as_often_as_asked(local_kafka: LocalKafka, few_runs: None, tree: Revision) -> None:
    """Each time on new processes, in groups of their own, though all have the same seed; a case that cannot be compared
    takes no other with it."""
    said: list[str] = []
    asked = command.options([".", "--times", "2", "--seconds", "0"])
    arena = Arena(local_kafka.bootstrap_servers, local_kafka.create_topic, {}, 0, 1, 1, lambda _: None, 0.02, 0.0)
    row = command.Row(CASE)
    await command.compare_row(row, arena, [tree, tree], asked, said.append)
    assert [len(one.ratios["seconds"]) for one in row.comparisons] == [least_rounds(0.75)] * 2
    assert "holds 1 in" in said[-1]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--cases", "map,z", "HEAD"], "--cases z: there are no-op-key, "),
        (["HEAD", "--width", "0"], "--width 0.0: above 0"),
        (["HEAD", "--seconds", "-1"], "--seconds -1.0: from 0"),
        (["HEAD", "--times", "0"], "--times 0: from 1"),
        (["HEAD", "--scale", "0"], "--scale 0: from 1"),
        (["HEAD", "--json", "/no/such/folder/x"], "there is no folder /no/such/folder"),
        ([], "required: REV"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is started."""
    with pytest.raises(SystemExit):
        command.options(arguments)
    assert problem in capsys.readouterr().err
