"""The command: what is asked for, and which runs fill the pages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import pages, report

from .results import entry, measured, result


@pytest.mark.parametrize(
    ("arguments", "is_full"),
    [
        ([], True),
        (["--rounds", "9", "--width", "1"], True),
        (["--quick"], False),
        (["--cases", "ac"], False),
        (["--only", "ours"], False),
        (["--no-peers"], False),
        (["--rounds", "5"], False),
        (["--width", "10"], False),
        (["--bootstrap-servers", "localhost:9092"], False),
        (["--report"], False),
    ],
)
def test_pages_are_filled_by_full_runs_alone(arguments: list[str], is_full: bool) -> None:
    """Every case and contestant, at full size, as exact as asked; others write into a folder of their own."""
    asked = command.options(arguments)
    assert command.is_full(asked) == is_full
    assert (asked.output == pages.RESULTS) == (arguments == ["--report"])


def test_a_full_run_takes_the_place_of_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plot that the new run does not have goes; what programs have kept is not the run's and stays."""
    stored, new = tmp_path / "results", tmp_path / "latest"
    for folder in (stored, new):
        folder.mkdir()
    (stored / "a-throughput.svg").write_text("old")
    (stored / "kmq.json").write_text("kept")
    (new / "b-keys.svg").write_text("new")
    report.write([measured(result("a-key", entry("ours", 5)))], new)
    monkeypatch.setattr("benchmarks.__main__.RESULTS", stored)
    command.publish(new)
    assert {path.name for path in stored.iterdir()} == {"kmq.json", "b-keys.svg", "results.json", "results.md"}


def test_results_of_another_version_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one sentence; no page is touched."""
    (tmp_path / "results.json").write_text(json.dumps({"format": 1, "results": []}))
    monkeypatch.setattr(pages, "write", lambda *_: pytest.fail("pages were written"))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--report", "--output", str(tmp_path)])
    assert command.main() == 1
    said = capsys.readouterr().out
    assert said.startswith("ERROR ")
    assert "its format is 1" in said


def test_a_report_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the folder, and makes none."""
    with pytest.raises(SystemExit):
        command.options(["--report", "--output", str(tmp_path / "none")])
    assert "there is no results.json in" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
