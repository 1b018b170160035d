"""Where the package logs: found in its code, not by running it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import aioparallel

PACKAGE = Path(inspect.getfile(aioparallel)).parent
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class Line(NamedTuple):
    """A place that logs."""

    module: str
    number: int
    levels: frozenset[str]
    actions: frozenset[str]
    """More than one where it depends; none where there is no ``action``, or it is not written there as a text."""


def log_lines() -> Iterator[Line]:
    """Every place of the package that logs."""
    for file in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(file.read_text())
        module = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            for call in ast.walk(function):
                match call:
                    case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"), attr=method)) if method in {
                        "debug",
                        "info",
                        "warning",
                        "error",
                        "exception",
                        "log",
                    }:
                        yield Line(module, call.lineno, _levels(call, function), _actions_of(call))


def _levels(call: ast.Call, function: ast.AST) -> frozenset[str]:
    assert isinstance(call.func, ast.Attribute)
    if call.func.attr != "log":
        return frozenset({{"exception": "ERROR"}.get(call.func.attr, call.func.attr.upper())})
    places = [call.args[0]]
    if isinstance(variable := call.args[0], ast.Name):
        places += [
            one.value
            for one in ast.walk(function)
            if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == variable.id
        ]
    names = {one.attr for place in places for one in ast.walk(place) if isinstance(one, ast.Attribute)}
    return frozenset(names & set(LEVELS))


def _actions_of(call: ast.Call) -> frozenset[str]:
    for extra in (keyword.value for keyword in call.keywords if keyword.arg == "extra"):
        assert isinstance(extra, ast.Dict)
        for key, value in zip(extra.keys, extra.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "action":
                choices = (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)
                return frozenset(str(one.value) for one in choices if isinstance(one, ast.Constant))
    return frozenset()
