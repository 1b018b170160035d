"""Stored results of a program, ``results/<name>.json``: tables of rows with named columns."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from aioparallel.records.errors import AioparallelError
from benchmarks.facts import Facts

__all__ = ["GOALS", "Kept", "Row", "Tables", "read", "write"]

Row = Mapping[str, str | float | None]
"""Values by column, whose name has the unit. None: not measured."""
Tables = Mapping[str, Sequence[Row]]
"""Rows by title of the table."""
GOALS: Final = "Goals"
"""Title of the table of goals, with the columns goal, seen, must, verdict."""


@dataclass(frozen=True, slots=True)
class Kept:
    """``command``: the command line. ``options``: their values. ``load``: the machine's load average of the minute
    before, which is other work."""

    command: str
    options: Mapping[str, Any]
    facts: Facts
    load: float
    tables: Tables


def write(kept: Kept, path: Path) -> None:
    """Write atomically, so that an interruption keeps the old file."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(kept), indent=1) + "\n")
    os.replace(new, path)


def read(path: Path) -> Kept | None:
    """The stored results; None without a file. Raises AioparallelError for another format."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
        return Kept(**{**found, "facts": Facts(**found["facts"])})
    except (ValueError, KeyError, TypeError) as error:
        raise AioparallelError(f"{path} is not what a program of the benchmark keeps ({error!r})") from error
