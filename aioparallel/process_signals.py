"""Signals of the process, heard by several at once. What handled a signal before comes back as it was.

Python has one handler for each signal in the whole process. Here one of ours serves all who listen: it tells them, and
then calls the one that was there before. Whoever comes first places it, and when the last has gone the one before is
back, in whatever order they go. Where somebody has placed another handler over ours meanwhile, ours stays beneath it,
and passes on what it gets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from types import FrameType
from typing import Final

__all__ = ["ENDING", "beside_handlers", "in_place_of_the_loops"]

ENDING: Final = (signal.SIGINT, signal.SIGTERM)
"""What ends a server."""

_Handler = Callable[[int, FrameType | None], object]


class _Shared:
    """The handler of all who listen to one signal."""

    def __init__(self, there: _Handler) -> None:
        self.there = there
        self.listeners: dict[object, Callable[[], object]] = {}

    def __call__(self, number: int, frame: FrameType | None) -> None:
        for tell in tuple(self.listeners.values()):
            tell()
        self.there(number, frame)  # last: it may raise


@contextlib.contextmanager
def beside_handlers(numbers: Collection[signal.Signals], tell: Callable[[], object]) -> Iterator[None]:
    """Have ``tell`` called, in the running loop, at these signals, beside the handler that is there.

    Where nobody handles a signal, or Python itself does (Ctrl-C raises KeyboardInterrupt), all stays as it is; so it
    does outside the main thread.
    """
    loop, key = asyncio.get_running_loop(), object()

    def heard() -> None:
        with contextlib.suppress(RuntimeError):  # it has ended
            loop.call_soon_threadsafe(tell)

    placed: dict[signal.Signals, _Shared] = {}
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            there = signal.getsignal(number)
            if not callable(there) or there is signal.default_int_handler:
                continue
            shared = there if isinstance(there, _Shared) else _Shared(there)
            shared.listeners[key] = heard
            placed[number] = shared
            if shared is not there:
                _place(number, shared)
    try:
        yield
    finally:
        for number, shared in placed.items():
            del shared.listeners[key]
            if not shared.listeners and _is_placed(number, shared):
                _place(number, shared.there)


@contextlib.contextmanager
def in_place_of_the_loops(numbers: Collection[signal.Signals], tell: Callable[[], object]) -> Iterator[None]:
    """Have ``tell`` called, in the running loop, at these signals, in place of what ``loop.add_signal_handler`` has
    placed there. Other handlers are called beside it, as in :func:`beside_handlers`.

    No event loop tells its handlers, so they stay where they are: the loop does not hear of these signals meanwhile.
    """
    ours = [number for number in numbers if _is_a_loops(signal.getsignal(number))]
    others = [number for number in numbers if number not in ours]
    with beside_handlers(others, tell), _diverted(ours, tell):
        yield


@contextlib.contextmanager
def _diverted(numbers: Collection[signal.Signals], tell: Callable[[], object]) -> Iterator[None]:
    """Loops hear of signals by the bytes that Python writes to the process's wakeup fd; uvloop's by its handler too."""
    if not numbers or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    receiving, sending = socket.socketpair()
    receiving.setblocking(False)
    sending.setblocking(False)
    loops = signal.set_wakeup_fd(sending.fileno(), warn_on_full_buffer=False)

    def heard() -> None:
        found = receiving.recv(4_096)
        if any(number in numbers for number in found):
            tell()
        rest = bytes(number for number in found if number not in numbers)
        if rest and loops != -1:
            os.write(loops, rest)

    loop.add_reader(receiving, heard)
    there = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        _place(number, _nothing)
    try:
        yield
    finally:
        loop.remove_reader(receiving)
        signal.set_wakeup_fd(loops, warn_on_full_buffer=False)
        for number, handler in there.items():
            if _is_placed(number, _nothing):  # else somebody has placed another one
                _place(number, handler)
        receiving.close()
        sending.close()


def _nothing(number: int, frame: FrameType | None) -> None:
    """The byte in the wakeup fd tells."""


def _is_placed(number: signal.Signals, handler: object) -> bool:
    return signal.getsignal(number) is handler


def _is_a_loops(handler: object) -> bool:
    """Whether ``add_signal_handler`` of asyncio's or uvloop's event loop has placed it."""
    return callable(handler) and (getattr(handler, "__module__", "") or "").partition(".")[0] in ("asyncio", "uvloop")


def _place(number: signal.Signals, handler: object) -> None:
    signal.signal(number, handler)  # type: ignore[arg-type]
    if sys.platform != "win32":
        signal.siginterrupt(number, False)  # as event loops do: system calls go on after it
