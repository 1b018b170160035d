"""Rows as handlers get and return them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["MAX_TEXT", "Row", "as_mapping", "fresh", "shown", "text_of", "writable"]

Row = dict[str, Any]
"""A row as a handler gets it: values by the names of columns."""


_SHOWN = 80
MAX_TEXT: Final = 65_536
"""Characters of the text of an error, at most."""


def fresh(value: Any) -> Any:
    """A copy of what a handler may change: dicts and lists, and those within them."""
    if type(value) is dict:
        return {name: fresh(one) if type(one) in (dict, list, tuple) else one for name, one in value.items()}
    if type(value) is list:
        return [fresh(one) if type(one) in (dict, list, tuple) else one for one in value]
    if type(value) is tuple:
        return tuple([fresh(one) if type(one) in (dict, list, tuple) else one for one in value])
    return value.fresh()  # SinkRow


def shown(value: object) -> str:
    """In a message: a value and its type, whatever it is."""
    try:
        text = f"{value!r:.{_SHOWN}}"
    except Exception as error:
        text = f"a value whose repr() raises {type(error).__name__}"
    return f"{text} ({type(value).__name__})"


def text_of(error: BaseException) -> str:
    """Of an error, as "ValueError: what it said"; text that can be written, whatever it is."""
    try:
        said = str(error)
    except BaseException as another:
        said = f"(its str() raises {type(another).__name__})"
    return writable(f"{type(error).__name__}: {said}")


def writable(text: str, most: int = MAX_TEXT) -> str:
    """As it is, if it is UTF-8 and not longer than so many characters; else with its lone surrogates as they are
    written in Python, and without its middle."""
    left_out = len(text) - most
    if left_out > 0:
        text = f"{text[: most // 2]} ... ({left_out:,} characters left out) ... {text[-(most // 2) :]}"
    return text.encode("utf-8", "backslashreplace").decode()


def as_mapping(value: object) -> Mapping[str, Any]:
    """The fields of a row by name. Raises TypeError for what has none."""
    if isinstance(value, Mapping):
        return dict(value)  # one that makes up what it has not would hide what is missing
    if isinstance(value, tuple):
        # Spark's Row has the one, a named tuple the other.
        names = getattr(value, "__fields__", None) or getattr(value, "_fields", None)
        if names is not None:
            return dict(zip(names, value, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(
        f"is no row: a dict (or a Row, a named tuple, a dataclass) with the declared columns, but {shown(value)}"
    )
