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

__all__ = ["ENDING", "before_the_loops", "beside_handlers"]

ENDING: Final = (signal.SIGINT, signal.SIGTERM)
"""What ends a server."""

# Seconds from passing a signal on to a loop to hearing the next one: two at once are two steps of the loop.
_PAUSE: Final = 0.01

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
def before_the_loops(numbers: Collection[signal.Signals], take: Callable[[], bool]) -> Iterator[None]:
    """Have ``take`` called, in the running loop, at these signals, before what ``loop.add_signal_handler`` has placed
    there: that hears of a signal only where ``take`` returns False. Other handlers are called in any case, as in
    :func:`beside_handlers`.

    A loop's handler may end the run of its loop (aiohttp's raises GracefulExit), and whoever runs it may run it again.
    """
    ours = [number for number in numbers if _is_a_loops(signal.getsignal(number))]
    others = [number for number in numbers if number not in ours]
    with beside_handlers(others, take):
        if not ours or threading.current_thread() is not threading.main_thread():
            yield
            return
        diversion = _Diversion(ours, take)
        try:
            yield
        finally:
            diversion.end()


class _Diversion:
    """Loops hear of signals by the bytes that Python writes to the process's wakeup fd. Here they come first."""

    def __init__(self, numbers: Collection[signal.Signals], take: Callable[[], bool]) -> None:
        self._numbers = numbers
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._receiving, self._sending = socket.socketpair()
        self._receiving.setblocking(False)
        self._sending.setblocking(False)
        self._loops = -1
        self._there = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            _place(number, _nothing)
        self._listening: asyncio.TimerHandle | None = None
        self._listen()

    def _listen(self) -> None:
        # uvloop has a new one each time it is run.
        found = signal.set_wakeup_fd(self._sending.fileno(), warn_on_full_buffer=False)
        if found != self._sending.fileno():
            self._loops = found
        self._loop.add_reader(self._receiving, self._heard)

    def _heard(self) -> None:
        number = self._receiving.recv(1)[
            0
        ]  # one at a time: what the loop does at it may change what the next one means
        if number in self._numbers and self._take():
            return
        if self._loops != -1:
            os.write(self._loops, bytes([number]))
        if number in self._numbers:
            self._loop.remove_reader(self._receiving)
            self._listening = self._loop.call_later(_PAUSE, self._listen)

    def end(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
        self._loop.remove_reader(self._receiving)
        found = signal.set_wakeup_fd(self._loops, warn_on_full_buffer=False)
        if found != self._sending.fileno():  # the loop has placed another one meanwhile
            signal.set_wakeup_fd(found, warn_on_full_buffer=False)
        for number, handler in self._there.items():
            if _is_placed(number, _nothing):  # else somebody has placed another one
                _place(number, handler)
        self._receiving.close()
        self._sending.close()


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
