"""Type checkers accept the right uses of the public interface and refuse the wrong ones, line by line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USES = ROOT / "tests" / "support" / "typing_uses.py"


def by_mypy() -> dict[int, str]:
    """The first error of each line."""
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", str(USES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 1, done.stdout + done.stderr
    found: dict[int, str] = {}
    for line in done.stdout.splitlines():
        place = re.match(rf"(?:.*[/\\])?{USES.name}:(\d+): error: (.*)", line)
        if place:
            found.setdefault(int(place[1]), place[2])
        else:
            assert ": error:" not in line, line
    return found


def by_pyright() -> dict[int, str]:
    """The first error of each line."""
    pytest.importorskip("pyright")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(USES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 1, done.stdout + done.stderr
    found: dict[int, str] = {}
    for one in json.loads(done.stdout)["generalDiagnostics"]:
        if one["severity"] == "error":
            found.setdefault(one["range"]["start"]["line"] + 1, one["message"])
    return found


@pytest.mark.parametrize("checked", [by_mypy, by_pyright])
def test_errors_stand_in_the_marked_lines_and_nowhere_else(checked: Callable[[], dict[int, str]]) -> None:
    """A bytes handler beside a deserialiser, a handler that returns a dict or is not async, a wrong option: refused.
    Handlers of all kinds, headers as a list: accepted."""
    lines = USES.read_text().splitlines()
    refused = {number for number, line in enumerate(lines, 1) if line.endswith("# refused")}
    found = checked()
    assert found.keys() - refused == set(), {number: found[number] for number in found.keys() - refused}
    assert refused - found.keys() == set(), [lines[number - 1] for number in sorted(refused - found.keys())]
    assert len(refused) > 15
