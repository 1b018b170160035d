"""What a program of its own measured, as it is kept in ``results/<name>.json``: tables of rows with named columns."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from aioparallel.errors import AioparallelError
from benchmarks.facts import Facts

__all__ = ["GOALS", "Kept", "Row", "Tables", "read", "write"]

Row = Mapping[str, str | float | None]
"""Values by the name of their column, which says the unit. None: not measured there."""
Tables = Mapping[str, Sequence[Row]]
"""Rows by the title of their table."""
GOALS: Final = "Goals"
"""The title of the table of goals: columns goal, seen, must, verdict."""


@dataclass(frozen=True, slots=True)
class Kept:
    """``command``: as typed. ``options``: each with its value. ``load``: processes that ran or waited for a core on
    average in the minute before; what is above 0 is other work."""

    command: str
    options: Mapping[str, Any]
    facts: Facts
    load: float
    tables: Tables


def write(kept: Kept, path: Path) -> None:
    """In one step, so that stopping the program leaves the old file or the new one."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(kept), indent=1) + "\n")
    os.replace(new, path)


def read(path: Path) -> Kept | None:
    """None where there is no file. Raises AioparallelError when it is something else."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
        return Kept(**{**found, "facts": Facts(**found["facts"])})
    except (ValueError, KeyError, TypeError) as error:
        raise AioparallelError(f"{path} is not what a program of the benchmark keeps ({error!r})") from error
