"""Checks which functions can be blocking handlers."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from aioparallel.config.callables import check_arguments, is_async
from aioparallel.records.errors import ConfigurationError

__all__ = ["check_plain_handler", "name_of"]


def check_plain_handler(function: Callable[..., object], where: str) -> None:
    """Raise ConfigurationError unless it is a plain function of one argument. ``where``: ``"in_threads"``, for
    example."""
    name = f"{where} handler"
    given: object = function
    if inspect.iscoroutine(given):
        given.close()
        raise ConfigurationError(name, given, "is a call of a function: give the function itself, without ()")
    if not callable(given):
        raise ConfigurationError(name, given, "must be a plain function of one argument, the record or the item")
    if is_async(given):
        raise ConfigurationError(
            name, given, "must be a plain function that blocks; an `async def` function is a handler by itself"
        )
    called: object = getattr(given, "__call__", None)  # noqa: B004 - of an object
    inner = given.func if hasattr(given, "func") else given
    if any(inspect.isgeneratorfunction(one) for one in (given, called, inner)):
        raise ConfigurationError(name, given, "must be a plain function without `yield`: return a list")
    check_arguments(function, name, "one argument, the record or the item", 1)


def name_of(function: object) -> str:
    """The name of a function, or of what a partial or object calls, for messages."""
    inner = getattr(function, "func", function)
    return getattr(inner, "__name__", type(inner).__name__)
