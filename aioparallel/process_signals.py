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
from typing import Any, Final

__all__ = ["ENDING", "before_the_loops", "beside_handlers"]

ENDING: Final = (signal.SIGINT, signal.SIGTERM)
"""What ends a server."""

# Seconds from passing a signal on to a loop to hearing the next one: two at once are two steps of the loop.
_PAUSE: Final = 0.01
# Seconds between two looks at whose the wakeup fd is.
_LOOK: Final = 0.1

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
    there: that hears of a signal only where ``take`` returns False, and so does that of each other who listens here.
    Other handlers are called in any case, as in :func:`beside_handlers`.

    A loop's handler may end the run of its loop (aiohttp's raises GracefulExit), and whoever runs it may run it again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [number for number in numbers if _is_a_loops(_beneath(number))]
    others = [number for number in numbers if number not in ours]
    with beside_handlers(others, take):
        if not ours:
            yield
            return
        with _diversion().asking(ours, take):
            yield


class _Diversion:
    """Loops hear of signals by the bytes that Python writes to the process's wakeup fd. Here they come first.

    A loop has one, for all who take signals from it: the handler of each of these.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._takes: dict[int, dict[object, Callable[[], bool]]] = {}
        self._there: dict[int, object] = {}
        self._receiving, self._sending = socket.socketpair()
        self._receiving.setblocking(False)
        self._sending.setblocking(False)
        self._loops = -1
        self._listening: asyncio.Handle | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """The byte in the wakeup fd tells."""

    @contextlib.contextmanager
    def asking(self, numbers: Collection[signal.Signals], take: Callable[[], bool]) -> Iterator[None]:
        """Ask ``take`` at these signals."""
        key = object()
        for number in numbers:
            self._takes.setdefault(number, {})[key] = take
        if self._listening is None:
            self._listen()
        self._take_place()
        try:
            yield
        finally:
            for number in numbers:
                del self._takes[number][key]
                if not self._takes[number]:
                    del self._takes[number]
                    _replace(number, self, self._there.pop(number))
            if not self._takes:
                self._end()

    def _listen(self) -> None:
        # Again and again: uvloop has a new fd each time it is run, and asyncio places its own with each handler.
        self._take_place()
        self._place_fd()
        self.loop.add_reader(self._receiving, self._heard)
        self._listening = self.loop.call_later(_LOOK, self._listen)

    def _take_place(self) -> None:
        for number in self._takes:
            beneath = _beneath(number)
            if beneath is not self and _is_a_loops(beneath):
                self._there[number] = beneath
                _replace(number, beneath, self)

    def _place_fd(self) -> None:
        ours = self._sending.fileno()
        found = signal.set_wakeup_fd(ours, warn_on_full_buffer=False)
        if found != ours:
            self._loops = found

    def _heard(self) -> None:
        self._place_fd()
        byte = self._receiving.recv(1)  # one at a time: what the loop does at it may change what the next one means
        taken = [take() for take in tuple(self._takes.get(byte[0], {}).values())]  # each is asked
        if any(taken):
            return
        self._pass_on(byte)
        if taken:
            self._stop_listening()
            self._pause(self.loop.time() + _PAUSE)

    def _pause(self, until: float) -> None:
        # In each step: the loop may be run again in any of them, and uvloop hears of what comes until the fd is ours.
        self._place_fd()
        if self.loop.time() < until:
            self._listening = self.loop.call_soon(self._pause, until)
        else:
            self._listen()

    def _pass_on(self, heard: bytes) -> None:
        if self._loops != -1:
            os.write(self._loops, heard)

    def _stop_listening(self) -> None:
        assert self._listening is not None
        self._listening.cancel()
        if not self.loop.is_closed():
            self.loop.remove_reader(self._receiving)

    def _end(self) -> None:
        del _diversions[self.loop]
        self._stop_listening()
        self._place_fd()  # so that the loop's is known
        signal.set_wakeup_fd(self._loops, warn_on_full_buffer=False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._pass_on(self._receiving.recv(64))  # what has come and was not heard
        self._receiving.close()
        self._sending.close()


_diversions: Final[dict[asyncio.AbstractEventLoop, _Diversion]] = {}


def _diversion() -> _Diversion:
    """That of the running loop."""
    loop = asyncio.get_running_loop()
    if loop not in _diversions:
        _diversions[loop] = _Diversion(loop)
    return _diversions[loop]


def _beneath(number: int) -> object:
    """The handler that is there, beneath ours."""
    handler: object = signal.getsignal(number)
    while isinstance(handler, _Shared):
        handler = handler.there
    return handler


def _replace(number: int, old: object, new: Any) -> None:
    """Also beneath ours. Where somebody has placed another one instead, that stays."""
    there: object = signal.getsignal(number)
    if there is old:
        _place(number, new)
    while isinstance(there, _Shared):
        if there.there is old:
            there.there = new
        there = there.there


def _is_placed(number: int, handler: object) -> bool:
    return signal.getsignal(number) is handler


def _is_a_loops(handler: object) -> bool:
    """Whether ``add_signal_handler`` of asyncio's or uvloop's event loop has placed it, or the running loop's diversion
    stands in its place."""
    if isinstance(handler, _Diversion):
        return handler.loop is asyncio.get_running_loop()
    return callable(handler) and (getattr(handler, "__module__", "") or "").partition(".")[0] in ("asyncio", "uvloop")


def _place(number: int, handler: object) -> None:
    signal.signal(number, handler)  # type: ignore[arg-type]
    if sys.platform != "win32":
        signal.siginterrupt(number, False)  # as event loops do: system calls go on after it
