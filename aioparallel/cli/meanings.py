"""Help texts of options that the library has as well: taken from the library's docstrings."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TypeVar

import aioparallel
from aioparallel.config.option_docs import attribute_docstrings, described, options_of

__all__ = ["in_class", "means", "of_dataclass"]

T = TypeVar("T")
Meanings = Callable[[], Mapping[str, str]]
"""By the name of an option."""


def means(meanings: Meanings, **names: str) -> Callable[[type[T]], type[T]]:
    """A decorator for a dataclass of command options: fields without a docstring get their meaning from ``meanings``.

    ``names``: the library's name of an option, by the name of the field, where they differ.
    """

    def decorate(kind: type[T]) -> type[T]:
        kind.__doc__ = _Docstring(kind, meanings, names)  # type: ignore[assignment]
        return kind

    return decorate


def of_dataclass(kind: type) -> Meanings:
    """The meanings of a dataclass's fields."""
    return lambda: {one.name: one.meaning for one in options_of(kind)}


def in_class(file: str, name: str) -> Meanings:
    """The meanings in the docstring of a class. It is not imported, because that would load Kafka clients.

    ``file``: the path of its module within the package.
    """

    def meanings() -> dict[str, str]:
        module = ast.parse((Path(aioparallel.__file__).parent / file).read_text())
        (found,) = (one for one in module.body if isinstance(one, ast.ClassDef) and one.name == name)
        return {one: meaning for names, meaning in described(ast.get_docstring(found)) for one in names}

    return meanings


class _Docstring:
    """A docstring with a line for each field that has none, built when help reads it."""

    def __init__(self, kind: type, meanings: Meanings, names: Mapping[str, str]) -> None:
        self._kind = kind
        self._text = kind.__doc__ or ""
        self._meanings = meanings
        self._names = names

    def __get__(self, instance: object, owner: type) -> str:
        meanings, flags = self._meanings(), {one.name for one in dataclasses.fields(self._kind)}
        lines = [
            f":param {option}: {_as_help(meanings[self._names.get(option, option)], flags)}"
            for statement, below in attribute_docstrings(self._kind)
            if below is None and isinstance(statement, ast.AnnAssign)
            for option in [ast.unparse(statement.target)]
        ]
        return "\n".join([self._text, "", *lines])


def _as_help(meaning: str, flags: Collection[str]) -> str:
    """The meaning in Markdown, on one line, with flags instead of options."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", " ".join(meaning.split())).replace("``", "`")
    text = re.sub(rf"`({'|'.join(flags)})`", lambda found: f"`--{found[1].replace('_', '-')}`", text)
    return text[0].upper() + text[1:].replace("None:", "Not given:")
