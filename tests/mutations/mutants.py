"""The mutants of a room as a reviewer reads them: where, and what was changed into what."""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Key", "Mutant", "first_tried", "is_noise", "mutants_of", "sample"]

_SEPARATOR = "ǁ"
"""Stands around the name of a class in the names that mutmut gives."""

_NOISY_FUNCTIONS = {"__repr__", "__str__"}


@dataclass(frozen=True)
class Key:
    """Which mutant it is, wherever its function moves. ``turn`` counts those of a function that read the same."""

    file: str
    function: str
    removed: tuple[str, ...]
    added: tuple[str, ...]
    turn: int

    def drawn(self, seed: int) -> str:
        """Its place in the draw of this seed: the same one whatever other mutants come and go."""
        text = json.dumps([seed, self.file, self.function, self.removed, self.added, self.turn])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Mutant:
    """``name`` is mutmut's; ``line`` counts from 1, in the file as it is now."""

    name: str
    key: Key
    line: int


def is_noise(key: Key) -> bool:
    """Texts for people; and the first argument of ``cast``, which nobody looks at when the code runs."""
    return key.function.rpartition(".")[2] in _NOISY_FUNCTIONS or any("cast(None," in line for line in key.added)


def sample(mutants: Iterable[Mutant], size: int | None, seed: int) -> list[Mutant]:
    """So many of them, or all."""
    return sorted(mutants, key=lambda mutant: mutant.key.drawn(seed))[:size]


def first_tried(drawn: Iterable[Mutant], known: Container[str]) -> list[Mutant]:
    """Those up to the first that was not tried: they are a draw themselves. Behind it some are known from earlier runs,
    and mostly killed, for survivors are tried again."""
    return list(itertools.takewhile(lambda mutant: mutant.name in known, drawn))


def mutants_of(folder: Path, files: Iterable[str]) -> list[Mutant]:
    """Those that mutmut has made there of these files, without noise."""
    found: list[Mutant] = []
    for file in sorted(files):
        spans = json.loads((folder / "mutants" / f"{file}.spans").read_text())
        found += _of_file(folder, file, spans["spans"])
    return [mutant for mutant in found if not is_noise(mutant.key)]


def _of_file(folder: Path, file: str, spans: dict[str, list[int]]) -> Iterator[Mutant]:
    mutated = (folder / "mutants" / file).read_text().splitlines()
    begins = _begins(ast.parse((folder / file).read_text()))
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    turns: Counter[tuple[object, ...]] = Counter()
    for name, (start, end) in spans.items():
        base, _, number = name.rpartition("__mutmut_")
        if number == "orig":
            continue
        first, last = spans[f"{base}__mutmut_orig"]
        original = _unmangled(mutated[first - 1 : last], f"{base}__mutmut_orig")
        at, removed, added = _difference(original, _unmangled(mutated[start - 1 : end], name))
        function = base.removeprefix("x" + _SEPARATOR).removeprefix("x_").replace(_SEPARATOR, ".")
        turns[function, removed, added] += 1
        key = Key(file, function, removed, added, turns[function, removed, added])
        line = begins[function] - _line_of_def(original) + at
        yield Mutant(f"{module}.{name}", key, line)


def _begins(module: ast.Module) -> dict[str, int]:
    """The lines of ``def``, of functions and methods."""
    found: dict[str, int] = {}
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = node.lineno
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    found[f"{node.name}.{inner.name}"] = inner.lineno
    return found


def _unmangled(lines: list[str], name: str) -> list[str]:
    return [re.sub(rf"\bdef {name}\(", "def (", line) for line in lines]


def _line_of_def(lines: list[str]) -> int:
    return next(number for number, line in enumerate(lines) if "def (" in line)


def _difference(original: list[str], mutated: list[str]) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """Index of the first line that differs; the lines there were, and those that are there instead."""
    same = _same(original, mutated)
    original, mutated = original[same:], mutated[same:]
    after = _same(original[::-1], mutated[::-1])
    return same, tuple(original[: len(original) - after]), tuple(mutated[: len(mutated) - after])


def _same(one: list[str], other: list[str]) -> int:
    """How many lines are equal before the first that differs."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (left, right) in pairs if left != right), min(len(one), len(other)))
