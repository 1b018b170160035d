"""``results.json``: every run of every case, with the machine and versions of each; written, read and merged."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from aioparallel.cli.bench.goals import judge
from aioparallel.cli.bench.model import Case, Entry, Run
from aioparallel.cli.bench.report.facts import Facts
from aioparallel.errors import AioparallelError

__all__ = ["FILE", "Result", "merge", "read", "write", "write_text"]

FILE: Final = "results.json"
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Result:
    """A case and what it was measured with."""

    case: Case
    facts: Facts


def merge(old: Iterable[Result], new: Iterable[Result]) -> list[Result]:
    """The old ones, each replaced by the new one of the same name, in the order of groups and names.

    A case is replaced as a whole: contestants that did not run side by side are not put into one row.
    """
    by_name = {result.case.name: result for result in (*old, *new)}
    return sorted(by_name.values(), key=lambda result: (result.case.group, natural(result.case.name)))


def natural(name: str) -> list[tuple[int, str]]:
    """Sorts ``b-key-20`` before ``b-key-100``."""
    return [(int(digits), "") if digits else (-1, text) for digits, text in re.findall(r"(\d+)|(\D+)", name)]


def write(results: Sequence[Result], folder: Path) -> None:
    """Write ``results.json``, beside the goals as they come out of it."""
    document = {
        "format": FORMAT,
        "results": [asdict(result) for result in results],
        "goals": [
            {
                "group": judgement.goal.group,
                "text": judgement.goal.text,
                "relation": judgement.goal.relation,
                "must": judgement.goal.must,
                "stretch": judgement.goal.stretch,
                "unit": judgement.goal.unit,
                "value": judgement.value,
                "verdict": judgement.verdict,
                "remark": judgement.remark,
            }
            for judgement in judge([result.case for result in results])
        ],
    }
    write_text(folder / FILE, json.dumps(document, indent=1, default=plain) + "\n")


def plain(value: object) -> object:
    """A number of numpy's, among the figures, as Python's. Raises TypeError for what is none."""
    if not hasattr(value, "item"):
        raise TypeError(f"{value!r} is nothing that JSON knows")
    return value.item()


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step: somebody who stops the command keeps the old one or gets the new one."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    os.replace(new, path)


def read(folder: Path) -> list[Result]:
    """What :func:`write` wrote into this folder; nothing where it did not.

    Raises AioparallelError when the file is something else.
    """
    path = folder / FILE
    if not path.exists():
        return []
    try:
        return results_of(json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError) as error:
        raise AioparallelError(
            f"{path} is not what this version of the benchmark writes ({error!r}); move it away, or choose another "
            "--output"
        ) from error


def results_of(document: Mapping[str, Any]) -> list[Result]:
    """What stands in the document. Raises ValueError, KeyError or TypeError when it is something else."""
    if document["format"] != FORMAT:
        raise ValueError(f"its format is {document['format']}, not {FORMAT}")
    return [Result(case_of(found["case"]), Facts(**found["facts"])) for found in document["results"]]


def case_of(found: Mapping[str, Any]) -> Case:
    """A case as it was written."""
    return Case(**{**found, "entries": [entry_of(entry) for entry in found["entries"]]})


def entry_of(found: Mapping[str, Any]) -> Entry:
    """An entry as it was written."""
    runs = [Run(**{**run, "problems": tuple(run["problems"])}) for run in found["runs"]]
    return Entry(**{**found, "runs": runs})
