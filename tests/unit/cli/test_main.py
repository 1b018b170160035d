from __future__ import annotations

import importlib.metadata
import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from aioparallel import cli
from aioparallel.cli import console
from tests.support.command_line import invoke


def hide(monkeypatch: pytest.MonkeyPatch, module: object, *names: str) -> None:
    """Let these packages look as if they were not installed."""
    find_spec = importlib.util.find_spec

    def found(name: str) -> ModuleSpec | None:
        return None if name in names else find_spec(name)

    monkeypatch.setattr(module, "find_spec", found)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without cyclopts the command ends with a sentence naming the extras, and no traceback."""
    hide(monkeypatch, cli, "cyclopts")
    with pytest.raises(SystemExit) as ended:
        cli.main()
    message = str(ended.value)
    assert "needs cyclopts" in message
    assert "pip install 'aioparallel[cli]'" in message
    assert "pip install 'aioparallel[demo]'" in message


def test_demo_without_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what the demo needs it names the missing packages and the extra."""
    hide(monkeypatch, console, "matplotlib", "httpx")
    result = invoke("demo")
    assert result.exit_code == 1
    assert "needs httpx, matplotlib" in result.output
    assert "pip install 'aioparallel[demo]'" in result.output


def test_help_names_every_option() -> None:
    """The help of the demo has its options, examples and files."""
    result = invoke("demo", "--help", environment={"COLUMNS": "120"})
    assert result.exit_code == 0
    options = (
        "--records --plain-records --concurrency --partitions --broker --bootstrap-servers --output --kill --kills "
        "--seed"
    )
    for expected in (*options.split(), "demo.png", "enriched.jsonl", "aioparallel demo --kill", "Examples"):
        assert expected in result.output


def test_wrong_option_is_a_sentence(tmp_path: Path) -> None:
    """An option out of range ends with exit code 2 and the option's name, before anything is started."""
    result = invoke("demo", "--records", "0", "--output", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert "ERROR --records=0: must be from 1 to 336,776" in result.output
    assert not (tmp_path / "out").exists()


def test_unwritable_output_is_a_sentence(tmp_path: Path) -> None:
    """An output folder that cannot be made ends with exit code 1 and its name, without a traceback."""
    (tmp_path / "file").touch()
    result = invoke("demo", "--output", str(tmp_path / "file" / "out"))
    assert result.exit_code == 1
    assert "ERROR" in result.output
    assert "Traceback" not in result.output


def test_version() -> None:
    """--version prints the version of the package."""
    result = invoke("--version")
    assert result.output == f"aioparallel {importlib.metadata.version('aioparallel')}\n"
