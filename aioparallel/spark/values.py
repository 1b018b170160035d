"""Rows as handlers get and return them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = ["Row", "as_mapping"]

Row = dict[str, Any]
"""A row as a handler gets it: values by the names of columns."""


def as_mapping(value: object) -> Mapping[str, Any]:
    """The fields of a row by name. Raises TypeError for what has none."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, tuple):
        # Spark's Row has the one, a named tuple the other.
        names = getattr(value, "__fields__", None) or getattr(value, "_fields", None)
        if names is not None:
            return dict(zip(names, value, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(
        f"is no row: a dict (or a Row, a named tuple, a dataclass) with the declared columns, but {value!r:.80} "
        f"({type(value).__name__})"
    )
