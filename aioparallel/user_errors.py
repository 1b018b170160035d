"""What the code of a user raises: which of it is a failure, and its text, whatever the exception does."""

from __future__ import annotations

import asyncio
from typing import Final

__all__ = ["RAISED", "repr_of", "text_of"]

RAISED: Final = (Exception, asyncio.CancelledError)
"""What a plain function of a user's may fail with. Nothing is awaited in it, so a cancellation is its own: that of a
future that it has looked at, say."""


def text_of(error: BaseException) -> str:
    """What it says, also where its ``__str__`` raises."""
    try:
        return str(error)
    except RAISED as broken:
        return f"(its text could not be made: {type(broken).__name__})"


def repr_of(error: BaseException) -> str:
    """Its class and arguments, also where its ``__repr__``, or that of an argument, raises."""
    try:
        return repr(error)
    except RAISED as broken:
        return f"{type(error).__name__} (its text could not be made: {type(broken).__name__})"
