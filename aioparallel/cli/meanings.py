"""What help says of an option that the library has, too: the library's own words."""

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
    """Decorate a dataclass of options of a command: its fields without a docstring mean what ``meanings`` has.

    ``names``: by the name of a field, the library's name of the option, where the two differ.
    """

    def decorate(kind: type[T]) -> type[T]:
        kind.__doc__ = _Docstring(kind, meanings, names)  # type: ignore[assignment]
        return kind

    return decorate


def of_dataclass(kind: type) -> Meanings:
    """The meanings of its fields."""
    return lambda: {one.name: one.meaning for one in options_of(kind)}


def in_class(file: str, name: str) -> Meanings:
    """The meanings in the docstring of a class, which is not imported: that would load Kafka clients.

    ``file``: the path of its module within the package.
    """

    def meanings() -> dict[str, str]:
        module = ast.parse((Path(aioparallel.__file__).parent / file).read_text())
        (found,) = (one for one in module.body if isinstance(one, ast.ClassDef) and one.name == name)
        return {one: meaning for names, meaning in described(ast.get_docstring(found)) for one in names}

    return meanings


class _Docstring:
    """A docstring with a line for each field that has none, put together when help asks for it."""

    def __init__(self, kind: type, meanings: Meanings, names: Mapping[str, str]) -> None:
        self._kind = kind
        self._text = kind.__doc__ or ""
        self._meanings = meanings
        self._names = names

    def __get__(self, instance: object, owner: type) -> str:
        meanings, flags = self._meanings(), {one.name for one in dataclasses.fields(self._kind)}
        lines = [
            f":param {option}: {_said(meanings[self._names.get(option, option)], flags)}"
            for statement, below in attribute_docstrings(self._kind)
            if below is None and isinstance(statement, ast.AnnAssign)
            for option in [ast.unparse(statement.target)]
        ]
        return "\n".join([self._text, "", *lines])


def _said(meaning: str, flags: Collection[str]) -> str:
    """In Markdown, on one line, in the words of a command line."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", " ".join(meaning.split())).replace("``", "`")
    text = re.sub(rf"`({'|'.join(flags)})`", lambda found: f"`--{found[1].replace('_', '-')}`", text)
    return text[0].upper() + text[1:].replace("None:", "Not given:")
