"""Failures of user code, and texts of its errors and objects that never raise."""

from __future__ import annotations

import asyncio
from types import CoroutineType
from typing import Final

__all__ = ["RAISED", "class_of", "refuse_coroutine", "repr_of", "text_of"]

RAISED: Final = (Exception, asyncio.CancelledError)
"""What counts as a failure of a plain user function. It awaits nothing, so a CancelledError comes from inside, for
example from the result of a cancelled future."""


def refuse_coroutine(value: object) -> None:
    """Raises TypeError if a plain function of a user has returned a coroutine, which nothing would await. Closes it."""
    if type(value) is CoroutineType:
        value.close()
        raise TypeError("it returned a coroutine, which nothing awaits: it must be a plain function")


def text_of(value: object) -> str:
    """``str(value)``, or a substitute if that raises."""
    try:
        return str(value)
    except RAISED as broken:
        return f"(its text could not be made: {type(broken).__name__})"


def repr_of(value: object) -> str:
    """``repr(value)``, or a substitute if that raises."""
    try:
        return repr(value)
    except RAISED as broken:
        return f"{type(value).__name__} (its text could not be made: {type(broken).__name__})"


def class_of(error: BaseException) -> str:
    """The exception's class as stored in dead letters: with its module, except for builtins. Errors of this library are
    stored with the module ``aioparallel.errors``, independently of their file."""
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    module = "aioparallel.errors" if kind.__module__ == "aioparallel.records.errors" else kind.__module__
    return f"{module}.{kind.__qualname__}"
