"""The programs beside the benchmark print what they measure, and keep it at full size."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from aioparallel.records.errors import AioparallelError
from benchmarks import blocks, kept, pages, standalone
from benchmarks.kept import GOALS, Kept, Tables

from .results import FACTS

TABLES: Tables = {
    "Rows a second": [
        {"": "asyncpg", **standalone.median("rows/s", [90.0, 100.0, 1_234.5])},
        {"": "the store", "rows/s": 80.0, "of asyncpg": 0.8},
    ],
    GOALS: [standalone.goal("the store / asyncpg", 0.8, 0.9)],
}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results, with a page that shows a program."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("<!-- figures: kmq -->\n<!-- end of figures -->\n")
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str, problem: Exception | None = None) -> int:
    """A program with an option."""

    def measure(asked: argparse.Namespace) -> Tables:
        if problem is not None:
            raise problem
        return TABLES

    monkeypatch.setattr("sys.argv", ["kmq", *arguments])
    parser = standalone.parser_of("kmq", "What it does.")
    parser.add_argument("--rounds", type=int, default=3)
    return standalone.run("kmq", parser, parser.parse_args(), measure, beside="Apache Kafka")


def test_tables_are_printed(results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A column for each name that a row has, a dash where a row has it not."""
    assert run(monkeypatch, "--rounds", "1") == 0
    said = capsys.readouterr().out
    assert "|  | rows/s | lowest | highest | of asyncpg |\n| --- | ---: | ---: | ---: | ---: |\n" in said
    assert "| asyncpg | 100 | 90.0 | 1,234 | - |\n| the store | 80.0 | - | - | 0.800 |\n" in said
    assert "| the store / asyncpg | 0.800 | >= 0.9 | MISSED |\n" in said


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ([], "python -m benchmarks.kmq"),
        (["--rounds", "1"], None),
        (["--rounds", "1", "--keep"], "python -m benchmarks.kmq --rounds 1"),
    ],
)
def test_full_size_is_kept(
    results: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], command: str | None
) -> None:
    """So is what was asked for with --keep; the page shows it with the command. Less changes neither."""
    assert run(monkeypatch, *arguments) == 0
    found, page = kept.read(results / "kmq.json"), (results / "README.md").read_text()
    if command is None:
        assert (found, "rows/s" in page) == (None, False)
    else:
        assert found is not None
        assert (found.command, found.tables, found.facts.broker) == (command, TABLES, "Apache Kafka")
        assert f"by `{command}` with aioparallel" in page
        assert "| the store | 80.0 |" in page


@pytest.mark.parametrize("problem", [AioparallelError("two rows are missing"), TimeoutError()])
def test_what_is_wrong_is_not_kept(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], problem: Exception
) -> None:
    """A sentence, exit code 1, and no file."""
    assert run(monkeypatch, problem=problem) == 1
    assert capsys.readouterr().out.startswith("ERROR ")
    assert not (results / "kmq.json").exists()


@pytest.mark.parametrize("text", ["no JSON", "{}", "[]"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    """By its name."""
    (tmp_path / "kmq.json").write_text(text)
    with pytest.raises(AioparallelError, match=r"kmq\.json is not what a program of the benchmark keeps"):
        kept.read(tmp_path / "kmq.json")


def test_readme_names_the_goals_that_programs_miss(tmp_path: Path) -> None:
    """Beside those of the benchmark itself."""
    assert "the store / asyncpg" not in blocks.figures(tmp_path)["missed"]
    kept.write(Kept("python -m benchmarks.sql_store", {}, FACTS, 0.1, TABLES), tmp_path / "sql_store.json")
    assert "| the store / asyncpg | 0.800 | >= 0.9 | MISSED |" in blocks.figures(tmp_path)["missed"]


def test_a_page_says_when_the_machine_was_busy() -> None:
    """Two cores, and one of them had other work already."""
    of = {load: blocks.of_program("kmq", Kept("", {}, FACTS, load, TABLES)) for load in (0.2, 1.5)}
    assert ["Other work may have run beside it" in text for text in of.values()] == [False, True]


def test_one_command_runs_all_of_them() -> None:
    """``make bench-all`` and the blocks name the same programs: all that keep anything."""
    folder = Path(blocks.__file__).parent
    keeping = {path.stem for path in folder.glob("*.py") if "= standalone.parser_of(" in path.read_text()}
    made = re.search(r"^PROGRAMS := (.*)$", (folder.parent / "Makefile").read_text(), re.MULTILINE)
    assert made is not None
    assert set(made[1].split()) == set(blocks.PROGRAMS) == keeping
