"""Errors that say what the process, or its machine, has run out of: file descriptors, memory, threads, disk."""

from __future__ import annotations

import errno
import os
import random
import socket
from typing import Final

from aioparallel.errors import OutOfResources, Reject, RetryLater, UndecodableRecord

__all__ = ["out_of_resources", "shortage_of"]

_NUMBERS: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
)
_NO_THREAD: Final = "can't start new thread"  # CPython's text; it has no class of its own
# Errors of one chain that are looked at: chains may be circles.
_DEEPEST: Final = 100
# Seconds until a record is tried again, and by what part they vary: all would ask for what is short at once.
_LATER, _SPREAD = 1.0, 0.5


def shortage_of(error: BaseException) -> str | None:
    """What was short, in the words of the system, where this error says so, or one that it comes of; None: nothing.
    Of an error's own text nothing is taken: it may hold anything."""
    left: list[BaseException] = [error]
    for _ in range(_DEEPEST):
        if not left:
            break
        one = left.pop()
        if (what := _said_by(one)) is not None:
            return what
        if isinstance(one, BaseExceptionGroup):
            left.extend(one.exceptions)
        came_of = one.__cause__ if one.__suppress_context__ else one.__cause__ or one.__context__
        if came_of is not None:
            left.append(came_of)
    return None


def _said_by(error: BaseException) -> str | None:
    if isinstance(error, OutOfResources):
        return error.what
    if isinstance(error, socket.gaierror):  # numbers of its own; and the system's resolver does not say why
        return _no_socket()
    if isinstance(error, OSError):
        return _named(error)
    if isinstance(error, MemoryError):
        return "out of memory (MemoryError)"
    return _NO_THREAD if type(error) is RuntimeError and _is_no_thread(*error.args) else None


def _is_no_thread(*args: object) -> bool:
    return len(args) == 1 and type(args[0]) is str and args[0] == _NO_THREAD


def _named(error: OSError) -> str | None:
    # Of any type: it is the first of two arguments, whatever these are.
    return os.strerror(error.errno) if type(error.errno) is int and error.errno in _NUMBERS else None


def _no_socket() -> str | None:
    """Why there is no socket to be had just now."""
    try:
        socket.socket().close()
    except OSError as error:
        return _named(error)
    return None


def out_of_resources(error: Exception) -> OutOfResources | None:
    """In place of this error, where it comes of a shortage. What a handler has decided about its record stays."""
    if isinstance(error, OutOfResources):
        return error
    if isinstance(error, RetryLater | Reject | UndecodableRecord):
        return None
    what = shortage_of(error)
    return None if what is None else OutOfResources(what, _LATER * random.uniform(1 - _SPREAD, 1 + _SPREAD))
