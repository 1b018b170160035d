"""The rooms whose code is changed, and the folder in which that happens."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FAILED", "KILLERS", "ROOT", "Room", "rooms"]

ROOT = Path(__file__).parents[2]
KILLERS = "killers.txt"
"""Among the mutants: a line for each that is killed, with the test."""
FAILED = "failed.txt"
"""Among the mutants: which test fails without one, and how."""
_LINKED = ("aioparallel", "tests", "examples", "benchmarks")
_NOISE = (r"^\s*raise \w", r"\blogger\.\w+\(")
"""Lines on which no expression is changed: messages of errors, log lines. (mutmut itself leaves out docstrings,
annotations, decorators, and whatever is decorated but for ``staticmethod`` and ``classmethod``.)"""


@dataclass(frozen=True)
class Room:
    """``code``: patterns of files, relative to the repository; ``leave``: of those that stay as they are; ``tests``:
    arguments for pytest."""

    name: str
    code: tuple[str, ...]
    leave: tuple[str, ...]
    tests: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Where mutmut works. Losing it costs time only."""
        return ROOT / ".mutations" / self.name

    @property
    def page(self) -> Path:
        """For reviewers."""
        return Path(__file__).with_name(f"{self.name}.md")

    def prepare(self) -> None:
        """Makes the folder: links to the code, and the project's settings with those of mutmut."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in _LINKED:
            link = self.folder / name
            if not link.is_symlink():
                link.symlink_to(ROOT / name, target_is_directory=True)
        settings = (ROOT / "pyproject.toml").read_text() + self._settings()
        (self.folder / "pyproject.toml").write_text(settings)

    def _settings(self) -> str:
        values = {
            "source_paths": ["aioparallel"],
            "only_mutate": list(self.code),
            "do_not_mutate": list(self.leave),
            "do_not_mutate_patterns": list(_NOISE),
            "also_copy": ["examples", "benchmarks"],
            "pytest_add_cli_args_test_selection": list(self.tests),
            "pytest_add_cli_args": ["-p", "no:cacheprovider", "-p", "tests.mutations.plugin"],
            "process_isolation": "forkserver",
            "track_dependencies": False,
            "use_git_change_detection": False,
        }
        return "\n[tool.mutmut]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())

    def fingerprint_of_tests(self) -> str:
        """Another one when tests of this room, or what they use, have changed: survivors are tried again then."""
        digest = hashlib.sha256()
        for place in ("tests/support", *self.tests):
            path = ROOT / place.partition("::")[0]
            for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
                digest.update(file.read_bytes())
        return digest.hexdigest()


def rooms() -> dict[str, Room]:
    """All, by name."""
    found = tomllib.loads(Path(__file__).with_name("rooms.toml").read_text())
    return {
        name: Room(name, tuple(one["code"]), tuple(one.get("leave", ())), tuple(one["tests"]))
        for name, one in found.items()
    }
