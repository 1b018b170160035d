from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from aioparallel.cli import console
from aioparallel.cli.bench.progress import Board, Shown, Step, steps_of
from aioparallel.cli.bench.settings import Settings
from aioparallel.errors import ConfigurationError
from tests.support.command_line import invoke


def test_help_teaches() -> None:
    """It names every option, the cases, examples and files."""
    result = invoke("bench", "--help", environment={"COLUMNS": "140"})
    assert result.exit_code == 0
    options = "--cases --only --peers --no-peers --rounds --quick --seed --bootstrap-servers --output"
    for expected in (*options.split(), "aioparallel bench --quick", "offset maps", "results.json", "results.md"):
        assert expected in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cases", "axz"], "ERROR --cases='axz': must be letters of abcdefghi"),
        (["--rounds", "0"], "ERROR --rounds=0: must be from 1 to 100"),
        (["--only", "kotlin"], "ERROR --only='kotlin': must be one of async-for"),
        (["--only", "java", "--no-peers"], "leave --no-peers away"),
        (["--only", "java", "--cases", "e"], "takes part in none of the cases e"),
    ],
)
def test_wrong_options_are_a_sentence(arguments: list[str], said: str, tmp_path: Path) -> None:
    """Exit code 2 and the option's name, before anything is started or written."""
    result = invoke("bench", *arguments, "--output", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


def test_without_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names what is missing and what to install."""
    find_spec = importlib.util.find_spec

    def found(name: str) -> ModuleSpec | None:
        return None if name == "matplotlib" else find_spec(name)

    monkeypatch.setattr(console, "find_spec", found)
    result = invoke("bench")
    assert result.exit_code == 1
    assert "needs matplotlib" in result.output
    assert "pip install 'aioparallel[bench]'" in result.output


def test_quick_is_small_and_beside_the_real_results() -> None:
    """One warm round, no peers, and a folder of its own, unless something else is asked for."""
    quick = Settings(quick=True)
    assert (quick.rounds, quick.scale, quick.peers) == (1, 20, [])
    assert quick.output == Path("benchmarks/results/quick")
    asked = Settings(quick=True, asked_rounds=3, asked_peers=True, asked_output=Path("here"))
    assert (asked.rounds, asked.output) == (3, Path("here"))
    assert asked.peers == ["java", "java-256m", "faststream", "pyrallel"]
    assert Settings(quick=True, only=("java",)).peers == ["java"]


def test_java_gets_a_real_broker() -> None:
    """The embedded broker serves a quick run as long as no Java peer takes part."""
    assert Settings(quick=True).embedded
    assert Settings(quick=True, only=("faststream",)).embedded
    assert not Settings(quick=True, only=("java-256m",)).embedded
    assert not Settings(quick=True, bootstrap_servers="localhost:9092").embedded
    assert not Settings().embedded


def test_full_size_has_peers() -> None:
    """Five warm rounds and everybody; --no-peers leaves out those outside this package."""
    assert (Settings().rounds, Settings().scale, Settings().output) == (5, 1, Path("benchmarks/results"))
    assert "java" in Settings().peers
    assert Settings(asked_peers=False).peers == []


def test_only_leaves_out_what_nobody_takes_part_in() -> None:
    """Cases without that contestant do not run, and the measurements are about ours."""
    java = Settings(only=("java",))
    assert {spec.group for spec in java.specs} == {"a", "b", "c", "d"}
    assert java.measured == ""
    assert Settings(only=("ours",)).measured == "fghi"
    with pytest.raises(ConfigurationError):
        Settings(cases="fg", only=("java",))


def test_the_board_counts_runs_and_time() -> None:
    """Each run moves it on, a case that ends early jumps to its end, and the pace seen corrects what is left."""
    now, shown = [0.0], list[Shown]()
    settings = Settings(cases="c", only=("ours", "ceiling"), asked_rounds=1)
    (spec,) = settings.specs
    steps = [*(Step(spec.name, 60.0) for _ in range(4)), Step("g", 60.0)]
    assert len(steps_of(settings)) == 4
    board = Board(steps, shown.append, lambda: now[0])
    board.say("producing")
    assert (shown[-1].number, shown[-1].left) == (0, 300.0)
    board.run(spec, "ours", 0)
    assert (shown[-1].number, shown[-1].text) == (1, "c-sleep: ours, cold round")
    now[0] = 120.0
    board.run(spec, "ceiling", 0)
    assert (shown[-1].number, shown[-1].done, shown[-1].left) == (2, 60.0, 480.0)
    board.over(spec.name)
    board.measurement("g")
    assert (shown[-1].number, shown[-1].total, shown[-1].done) == (5, 5, 240.0)
