"""The messages to and from a process, and the child's side.

A call is one message to the process, the pickled argument of its function, and two back: an empty one when it begins,
and then a pickle of ``(True, value)`` or ``(False, error)`` with a :class:`RemoteError`.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol, runtime_checkable

from aioparallel.handlers.running_out import shortage_of
from aioparallel.records.errors import FailedInProcess, OutOfResources
from aioparallel.records.user_errors import RAISED, class_of, repr_of, text_of
from aioparallel.records.wording import kind_of

__all__ = [
    "Crossing",
    "NamedFunction",
    "Payload",
    "Wrapping",
    "crossing",
    "decoded",
    "encoded",
    "returned",
    "serve",
]


@runtime_checkable
class Crossing(Protocol):
    """An item that is sent to a process in another form."""

    def __cross__(self) -> object:
        """What to pickle instead: the function's argument, or a :class:`Payload`."""

    def __returned__(self, reply: Any) -> object:
        """Turn the reply into what the handler returns. May raise instead."""


@runtime_checkable
class Payload(Protocol):
    """An argument that calls the function itself, in the process."""

    def __run__(self, function: Callable[[Any], object]) -> object:
        """Call the function. Returns the reply to pickle."""


class Wrapping:
    """An object that replaces a decorated function under its name in a module."""

    wrapped: Callable[[Any], object]


class NamedFunction(NamedTuple):
    """A function by its name. Pickle would refuse a function whose name refers to its decorated form."""

    module: str
    name: str

    def found(self) -> Callable[[Any], object]:
        """Import the function. Raises ImportError or AttributeError if it does not exist."""
        value: Any = importlib.import_module(self.module)
        for part in self.name.split("."):
            value = getattr(value, part)
        return value.wrapped if isinstance(value, Wrapping) else value


class RemoteError(NamedTuple):
    """An exception on its way back."""

    pickled: bytes | None
    """None if it cannot be pickled, or not be unpickled."""
    type: str
    text: str
    traceback: str
    short: str | None
    """The resource that the process has run out of, if that caused the error: causes are not pickled."""


def crossing(item: object) -> object:
    """What to send to the process for this item."""
    return item.__cross__() if isinstance(item, Crossing) else item


def returned(item: object, reply: object) -> object:
    """What the handler returns for this item."""
    return item.__returned__(reply) if isinstance(item, Crossing) else reply


def encoded(item: object) -> bytes:
    """The message for an item. Raises TypeError if it cannot be pickled."""
    payload = crossing(item)
    try:
        return pickle.dumps(payload, pickle.HIGHEST_PROTOCOL)
    except RAISED as error:
        raise TypeError(
            f"{kind_of(payload)} cannot be sent to a process ({type(error).__name__}: {text_of(error)}); "
            "in_processes needs items that can be pickled"
        ) from error


def decoded(message: bytes) -> tuple[object, BaseException | None]:
    """The value in a reply, or the error with which the call failed."""
    try:
        succeeded, found = pickle.loads(message)
    except RAISED as error:
        return None, TypeError(f"what the handler returned cannot be unpickled: {repr_of(error)}")
    if succeeded:
        return found, None
    remote = FailedInProcess(found.type, found.text, found.traceback)
    if found.short is not None:
        remote.__cause__ = OutOfResources(found.short)
    if found.pickled is None:
        return None, remote
    try:
        failure: BaseException = pickle.loads(found.pickled)
        failure.__cause__ = remote
    except RAISED:
        return None, remote
    return None, failure


# -- in the process


def serve(connection: Connection, pickled_function: bytes) -> None:
    """The main function of a process: report that it is ready, then run calls until the parent closes the pipe or
    ends."""
    # Ctrl-C reaches all processes of a terminal, but the parent decides what happens to calls. SIGINT was blocked until
    # here, see children.py.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, name="aioparallel-parent", daemon=True).start()
    try:
        function = pickle.loads(pickled_function)
        if isinstance(function, NamedFunction):
            function = function.found()
    except BaseException as error:
        connection.send_bytes(_failed(error))
        return
    try:
        connection.send_bytes(pickle.dumps((True, None)))
        while True:
            message = connection.recv_bytes()
            connection.send_bytes(b"")  # the call begins: from now on the end of this process is its failure
            connection.send_bytes(_reply(function, message))
    except (EOFError, OSError):
        return


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        # At once: the result of the call has no receiver, and it might never end.
        os._exit(1)


def _reply(function: Callable[[Any], object], message: bytes) -> bytes:
    try:
        payload = pickle.loads(message)
        value = payload.__run__(function) if isinstance(payload, Payload) else function(payload)
    except BaseException as error:
        return _failed(error)
    try:
        return pickle.dumps((True, value), pickle.HIGHEST_PROTOCOL)
    except RAISED as error:
        kind = type(value).__qualname__
        return _failed(TypeError(f"a {kind}, which the handler returned, cannot be pickled: {text_of(error)}"))


def _failed(error: BaseException) -> bytes:
    name = class_of(error)
    text = text_of(error)
    lines = "".join(traceback.format_exception(error))
    return pickle.dumps((False, RemoteError(_pickled(error), name, text, lines, shortage_of(error))))


def _pickled(error: BaseException) -> bytes | None:
    """Pickle an exception. None also if it cannot be unpickled, because ``__init__`` takes other arguments than
    ``args``."""
    try:
        pickled = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
        return pickled if type(pickle.loads(pickled)) is type(error) else None
    except RAISED:
        return None
