"""Rows of handlers and their results."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["MAX_TEXT", "Row", "as_mapping", "fresh", "shown", "text_of", "writable"]

Row = dict[str, Any]
"""A row for a handler: values by column names."""


_SHOWN = 80
MAX_TEXT: Final = 65_536
"""Most characters of an error's text."""


def fresh(value: Any) -> Any:
    """A deep copy of dicts, lists and tuples, which handlers may change."""
    if type(value) is dict:
        return {name: fresh(one) if type(one) in (dict, list, tuple) else one for name, one in value.items()}
    if type(value) is list:
        return [fresh(one) if type(one) in (dict, list, tuple) else one for one in value]
    if type(value) is tuple:
        return tuple([fresh(one) if type(one) in (dict, list, tuple) else one for one in value])
    return value.fresh()  # SinkRow


def shown(value: object) -> str:
    """A value and its type for messages; works for any value."""
    try:
        text = f"{value!r:.{_SHOWN}}"
    except Exception as error:
        text = f"a value whose repr() raises {type(error).__name__}"
    return f"{text} ({type(value).__name__})"


def text_of(error: BaseException) -> str:
    """An error as "ValueError: text", encodable in UTF-8; works for any error."""
    try:
        text = str(error)
    except BaseException as another:
        text = f"(its str() raises {type(another).__name__})"
    return writable(f"{type(error).__name__}: {text}")


def writable(text: str, most: int = MAX_TEXT) -> str:
    """The text with lone surrogates escaped, and without its middle if it is longer than ``most`` characters."""
    left_out = len(text) - most
    if left_out > 0:
        text = f"{text[: most // 2]} ... ({left_out:,} characters left out) ... {text[-(most // 2) :]}"
    return text.encode("utf-8", "backslashreplace").decode()


def as_mapping(value: object) -> Mapping[str, Any]:
    """The fields of a row by name. Raises TypeError for other values."""
    if isinstance(value, Mapping):
        return dict(value)  # a mapping with default values would hide missing fields
    if isinstance(value, tuple):
        # Spark's Row has __fields__, a named tuple _fields.
        names = getattr(value, "__fields__", None) or getattr(value, "_fields", None)
        if names is not None:
            return dict(zip(names, value, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(
        "is no row: it must be a dict (or a Row, a named tuple, a dataclass) with the declared columns, not "
        f"{shown(value)}"
    )
