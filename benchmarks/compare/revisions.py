"""The library of a commit in a folder of its own."""

from __future__ import annotations

import compileall
import io
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aioparallel.records.errors import AioparallelError
from benchmarks.facts import without_git_variables
from benchmarks.programs import ROOT

__all__ = ["WORKING_TREE", "Revision", "extract"]

WORKING_TREE: Final = "."
"""Instead of a revision: the current files."""
PACKAGE: Final = "aioparallel"
PROGRAMS: Final = "benchmarks"
PROGRAM: Final = "benchmarks.contestants.ours"
"""Runs the library of a revision."""


@dataclass(frozen=True, slots=True)
class Revision:
    """``title``: with the short hash of the commit. ``folder``: contains the package. If modules have moved since, so
    that the programs of this checkout cannot run the package, it also contains the programs of the revision."""

    title: str
    folder: Path


def extract(name: str, folder: Path) -> Revision:
    """Extract and compile the package of a revision, in any form that Git knows. Raises AioparallelError."""
    folder.mkdir(parents=True)
    if name == WORKING_TREE:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / PACKAGE, folder / PACKAGE, ignore=ignored)
        title = "the working tree"
    else:
        commit = _commit(name)
        _unpack(commit, PACKAGE, folder)
        if not _runs_here(folder):
            _unpack(commit, PROGRAMS, folder)
        title = f"{name} ({commit[:9]})" if not commit.startswith(name) else commit[:9]
    # Otherwise the first process of each side would compile it while it is timed.
    compileall.compile_dir(folder, quiet=2)
    return Revision(title, folder)


def _unpack(commit: str, what: str, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit, what))) as archive:
        archive.extractall(folder, filter="data")


def _runs_here(folder: Path) -> bool:
    """Whether this checkout's program can import that library."""
    command = (sys.executable, "-P", "-c", f"import {PROGRAM}")
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
    return subprocess.run(command, capture_output=True, check=False, env=environment).returncode == 0


def _commit(name: str) -> str:
    """The hash of a commit."""
    try:
        return _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").decode().strip()
    except AioparallelError as error:
        raise AioparallelError(f"{name!r} is no commit, branch or tag of the repository in {ROOT}") from error


def _git(*arguments: str) -> bytes:
    try:
        ran = subprocess.run(
            ("git", "-C", str(ROOT), *arguments), capture_output=True, check=False, env=without_git_variables()
        )
    except FileNotFoundError as error:
        raise AioparallelError("git is not on the PATH, and it is needed to read revisions") from error
    if ran.returncode:
        raise AioparallelError(f"git {' '.join(arguments)}: {ran.stderr.decode(errors='replace').strip()}")
    return ran.stdout
