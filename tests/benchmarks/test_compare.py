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

from aioparallel.errors import AioparallelError
from aioparallel.testing import LocalKafka
from benchmarks.cases import Case
from benchmarks.compare import command, instructions, pairs, revisions
from benchmarks.compare.cases import COMPARED
from benchmarks.compare.pairs import Comparison, PairFailed, compare, play_pair, prepare
from benchmarks.compare.revisions import Revision, extract
from benchmarks.contest import Arena, Field
from benchmarks.intervals import least_rounds
from benchmarks.workload import Shape

CASE = replace(COMPARED["no-op-key"], shape=Shape(20_000, 200, 2))


@pytest.fixture
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One warm run of each process, and as few pairs as have an interval of 75 %."""
    monkeypatch.setattr(pairs, "TURNS", 1)
    monkeypatch.setattr(pairs, "CONFIDENCE", 0.75)


@pytest.fixture
def tree(tmp_path: Path) -> Revision:
    return extract(revisions.WORKING_TREE, tmp_path / "tree")


@asynccontextmanager
async def prepared(kafka: LocalKafka, case: Case) -> AsyncIterator[Field]:
    arena = Arena(kafka.bootstrap_servers, kafka.create_topic, {}, 0, 1, 1, lambda _: None, seconds=0.0)
    async with Field.of(case, arena) as place:
        await prepare(place)
        yield place


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
    assert command.verdict(found, "not counted", 2.0).startswith("MORE ")


@pytest.mark.usefixtures("few_runs")
async def test_another_library_is_no_comparison(local_kafka: LocalKafka, tree: Revision, tmp_path: Path) -> None:
    """Whatever the environment says, what is measured is what was asked for."""
    (tmp_path / "empty").mkdir()
    async with prepared(local_kafka, CASE) as place:
        with pytest.raises(PairFailed, match="is imported, which is not in"):
            await play_pair(place, [tree, Revision("nothing", tmp_path / "empty")], random.Random(1))


@pytest.mark.usefixtures("few_runs")
@pytest.mark.parametrize("name", ["batches", "sleep-1000", "produce", "transactions", "map", "queue"])
async def test_each_kind_of_case_runs_and_is_checked(local_kafka: LocalKafka, tree: Revision, name: str) -> None:
    """On few records: both sides have their runs, without a problem."""
    case = COMPARED[name]
    case = replace(case, shape=replace(case.shape, records=2_000, keys=200, partitions=2), concurrency=100)
    async with prepared(local_kafka, case) as place:
        for side in await play_pair(place, [tree, tree], random.Random(1)):
            assert [run.ended for run in side] == [2_000]


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
    subprocess.run((sys.executable, str(instructions.PROGRAM), said, "500"), check=True, timeout=120)


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
    ("seconds", "words"),
    [
        ([1.05] * 8, "MORE time, by 5.0%"),
        ([0.9] * 8, "less time, by 10.0%"),
        ([0.999, 1.001] * 4, "no difference"),
        ([0.8, 1.25] * 4, "no difference"),  # the CPU says it
    ],
)
def test_verdicts(seconds: list[float], words: str) -> None:
    """An interval that leaves 1 out is a difference; none is told only where one of them is narrow enough."""
    found = Comparison(CASE, {"seconds": seconds, "cpu_per_record": [1.0] * len(seconds)})
    assert command.verdict(found, "not counted", 2.0) == words
    found.ratios["cpu_per_record"] = [0.8, 1.25] * 4
    assert command.verdict(found, "not counted", 2.0) == words if words != "no difference" else True


@pytest.mark.parametrize(
    ("counts", "words"), [([1000, 1004], "no difference"), ([1000, 1021], "MORE instructions, by 2.1%")]
)
def test_instructions_tell_what_time_does_not(counts: list[float], words: str) -> None:
    """Where they differ by more than those of the same code."""
    assert command.verdict(Comparison(CASE, {"seconds": [1.0] * 8, "cpu_per_record": [1.0] * 8}), counts, 2.0) == words


def test_what_is_wide_is_not_resolved() -> None:
    """It says how wide it is."""
    found = Comparison(CASE, {"seconds": [0.95, 1.05] * 4, "cpu_per_record": [0.95, 1.05] * 4})
    assert command.verdict(found, "not counted", 2.0).startswith("not resolved (")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["HEAD", "--cases", "z"], "invalid choice: 'z'"),
        (["HEAD", "--width", "0"], "--width above 0"),
        (["HEAD", "--times", "0"], "--times from 1"),
        ([], "required: REV"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is started."""
    with pytest.raises(SystemExit):
        command.options(arguments)
    assert problem in capsys.readouterr().err
