"""What the code of a user raises: which of it is a failure; and texts of its errors and objects, whatever they do."""

from __future__ import annotations

import asyncio
from types import CoroutineType
from typing import Final

__all__ = ["RAISED", "class_of", "refuse_coroutine", "repr_of", "text_of"]

RAISED: Final = (Exception, asyncio.CancelledError)
"""What a plain function of a user's may fail with. Nothing is awaited in it, so a cancellation is its own: that of a
future that it has looked at, say."""


def refuse_coroutine(value: object) -> None:
    """Raises TypeError if a plain function of a user has returned a coroutine, which nothing would await. Closes it."""
    if type(value) is CoroutineType:
        value.close()
        raise TypeError("it returned a coroutine, which nothing awaits: it must be a plain function")


def text_of(value: object) -> str:
    """What it says, an exception of a user's or any other object, also where its ``__str__`` raises."""
    try:
        return str(value)
    except RAISED as broken:
        return f"(its text could not be made: {type(broken).__name__})"


def repr_of(value: object) -> str:
    """Of an exception its class and arguments, also where its ``__repr__``, or that of an argument, raises."""
    try:
        return repr(value)
    except RAISED as broken:
        return f"{type(value).__name__} (its text could not be made: {type(broken).__name__})"


def class_of(error: BaseException) -> str:
    """Its class, with the module where that is not ``builtins``: as dead letters have it. An error of this library is
    stored as one of ``aioparallel.errors``, whatever file has it."""
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    module = "aioparallel.errors" if kind.__module__ == "aioparallel.records.errors" else kind.__module__
    return f"{module}.{kind.__qualname__}"
