"""What the code defines, for a look at what the pages name."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from .blocks import ROOT

__all__ = ["files", "members", "module_file", "targets", "words", "words_of"]

_FOLDERS = ("aioparallel", "tests", "examples", "benchmarks", "docs")


@cache
def files() -> frozenset[str]:
    """Files and folders, as paths from the root; folders end with a slash."""
    found = [path for name in _FOLDERS for path in [ROOT / name, *(ROOT / name).rglob("*")]]
    found += [path for path in ROOT.iterdir() if path.is_file()]
    return frozenset(str(path.relative_to(ROOT)) + "/" * path.is_dir() for path in found)


@cache
def words() -> frozenset[str]:
    """All that stand in code, and the names of files."""
    code = [ROOT / "Makefile", ROOT / "pyproject.toml"]
    code += [path for name in _FOLDERS[:-1] for path in (ROOT / name).rglob("*.py")]
    text = "\n".join(path.read_text() for path in code) + "\n".join(files())
    return frozenset(re.findall(r"\w+", text))


@cache
def words_of(module: str) -> frozenset[str]:
    """All that stand in the code of an installed library, and in its stubs."""
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    code = [path for path in Path(found.origin).parent.rglob("*.py*") if path.suffix in (".py", ".pyi")]
    return frozenset(re.findall(r"\w+", "\n".join(path.read_text() for path in code)))


@cache
def members() -> dict[str, frozenset[str]]:
    """By class of the package: attributes and methods, those of its bases among them. Classes of one name are one."""
    own: defaultdict[str, set[str]] = defaultdict(set)
    bases: defaultdict[str, set[str]] = defaultdict(set)
    for path in (ROOT / "aioparallel").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                own[node.name] |= set(_defined(node))
                bases[node.name] |= {name for base in node.bases for name in re.findall(r"\w+", ast.unparse(base))}

    def whole(name: str) -> set[str]:
        return own[name].union(*(whole(base) for base in bases[name] - {name}))

    return {name: frozenset(whole(name)) for name in list(own)}


def _defined(node: ast.ClassDef) -> Iterator[str]:
    for child in ast.walk(node):
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name
            case ast.Constant(value=str(name)):  # of __slots__
                yield name


def targets() -> frozenset[str]:
    """Of the Makefile."""
    return frozenset(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def module_file(name: str) -> Path:
    """Where ``python -m name`` finds it."""
    path = ROOT.joinpath(*name.split("."))
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
