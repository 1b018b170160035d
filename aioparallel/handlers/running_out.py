"""Finds out whether an error means that the process is out of file descriptors, memory, threads or disk."""

from __future__ import annotations

import errno
import os
import random
import socket
from typing import Final

from aioparallel.records.errors import OutOfResources, Reject, RetryLater, UndecodableRecord

__all__ = ["out_of_resources", "shortage_of"]

_NUMBERS: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
)
_NO_THREAD: Final = "can't start new thread"  # the text of CPython's RuntimeError
# Most errors of a chain to check: a chain may be circular.
_DEEPEST: Final = 100
# Seconds until a record is tried again, and the part by which they vary so that records do not retry at once.
_LATER, _SPREAD = 1.0, 0.5


def shortage_of(error: BaseException) -> str | None:
    """The system's description of what was short, if this error or one of its causes reports that; else None. Texts of
    errors are not used, as they may hold anything."""
    left: list[BaseException] = [error]
    for _ in range(_DEEPEST):
        if not left:
            break
        one = left.pop()
        if (what := _shortage_in(one)) is not None:
            return what
        if isinstance(one, BaseExceptionGroup):
            left.extend(one.exceptions)
        cause = one.__cause__ if one.__suppress_context__ else one.__cause__ or one.__context__
        if cause is not None:
            left.append(cause)
    return None


def _shortage_in(error: BaseException) -> str | None:
    if isinstance(error, OutOfResources):
        return error.what
    if isinstance(error, socket.gaierror):  # the resolver hides the system's error
        return _no_socket()
    if isinstance(error, OSError):
        return _named(error)
    if isinstance(error, MemoryError):
        return "out of memory (MemoryError)"
    return _NO_THREAD if type(error) is RuntimeError and _is_no_thread(*error.args) else None


def _is_no_thread(*args: object) -> bool:
    return len(args) == 1 and type(args[0]) is str and args[0] == _NO_THREAD


def _named(error: OSError) -> str | None:
    # errno is the first of two arguments, of any type.
    return os.strerror(error.errno) if type(error.errno) is int and error.errno in _NUMBERS else None


def _no_socket() -> str | None:
    """Why a socket cannot be created now; None if it can."""
    try:
        socket.socket().close()
    except OSError as error:
        return _named(error)
    return None


def out_of_resources(error: Exception) -> OutOfResources | None:
    """The error to use instead if this one comes from a shortage. Decisions of the handler about its record stay."""
    if isinstance(error, OutOfResources):
        return error
    if isinstance(error, RetryLater | Reject | UndecodableRecord):
        return None
    what = shortage_of(error)
    return None if what is None else OutOfResources(what, _LATER * random.uniform(1 - _SPREAD, 1 + _SPREAD))
