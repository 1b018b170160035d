"""Checks functions that the user passes."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from aioparallel.records.errors import ConfigurationError

__all__ = ["check_arguments", "check_async", "check_interface", "check_plain", "is_async"]


def check_arguments(function: Callable[..., object], name: str, wanted: str, arguments: int) -> None:
    """Raises ConfigurationError unless the function takes this number of positional arguments. ``wanted`` describes
    them for the message."""
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError as error:
        raise ConfigurationError(name, function, f"must take {wanted} ({error})") from None
    except ValueError:
        pass  # a callable without a signature, e.g. one written in C


def check_interface(given: object, name: str, interface: type) -> None:
    """Raises ConfigurationError for what lacks methods of this Protocol, or is a class."""
    if isinstance(given, type):
        raise ConfigurationError(name, given, f"is a class: give an instance of it, {given.__name__}(...)")
    missing = [one for one in vars(interface) if not one.startswith("_") and not hasattr(given, one)]
    if missing:
        raise ConfigurationError(
            name, given, f"must be a {interface.__name__} ({interface.__module__}): it has no {', '.join(missing[:3])}"
        )


def check_plain(function: object, name: str, wanted: str) -> None:
    """Raises ConfigurationError for what is no plain function; ``wanted`` says of what."""
    if not callable(function):
        raise ConfigurationError(name, function, f"must be a plain function of {wanted}")
    if is_async(function):
        raise ConfigurationError(
            name,
            function,
            f"must be a plain function of {wanted}, and this one is async: its result is used at once, and nothing "
            "awaits it",
        )


def check_async(function: object, name: str, wanted: str, arguments: int) -> None:
    """Raises ConfigurationError unless it is an async function that takes this number of positional arguments.
    ``wanted`` describes them for the message."""
    if inspect.iscoroutine(function):
        function.close()
        raise ConfigurationError(name, function, "is a call of a function: give the function itself, without ()")
    if not callable(function):
        raise ConfigurationError(name, function, f"must be an async function of {wanted}")
    check_arguments(function, name, wanted, arguments)
    called: object = getattr(function, "__call__", None)  # noqa: B004 - of an object; a function has none of its own
    if inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(called):
        raise ConfigurationError(name, function, "must be an `async def` function, this is a plain one with `yield`")
    # Only for a plain function: a wrapper of a lambda may have copied its name.
    if type(function).__name__ == "function" and getattr(function, "__name__", None) == "<lambda>":
        raise ConfigurationError(
            name,
            function,
            "must be an `async def` function, or a partial of one: what a lambda returns is unknown until it is called",
        )
    if not is_async(function):
        raise ConfigurationError(
            name,
            function,
            "must be an `async def` function, or a partial, a method, a `__call__` or a wrapper (functools.wraps) of "
            "one; one that blocks, or computes, becomes a handler by in_threads(function), or in_processes(function)",
        )


def is_async(function: object) -> bool:
    """Whether a function is declared with ``async def``: itself, the function of a partial or a method, its
    ``__call__``, or the function that ``functools.wraps`` wrapped. The function is not called."""
    while function is not None:
        for one in (function, getattr(function, "__call__", None)):  # noqa: B004
            if inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one):
                return True
        function = getattr(function, "__wrapped__", None)
    return False
