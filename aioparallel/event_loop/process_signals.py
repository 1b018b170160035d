"""Several listeners for one signal of the process. The previous handler is called as well, and restored at the end.

Python has one handler for each signal in the process. This module installs one that calls all listeners and then the
previous handler. The first listener installs it, and when the last one leaves, the previous handler is restored, in
whatever order they leave. If other code has installed a handler on top meanwhile, ours stays in place beneath and
passes signals on.
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
"""The signals that end a server."""

# Seconds between passing a signal on to a loop and reading the next: two signals must be two steps of the loop.
_PAUSE: Final = 0.01
# Seconds between two checks that the wakeup fd is ours.
_CHECK: Final = 0.1

_Handler = Callable[[int, FrameType | None], object]


class _Shared:
    """The handler that calls all listeners of one signal, and the previous handler."""

    def __init__(self, previous: _Handler) -> None:
        self.previous = previous
        self.listeners: dict[object, Callable[[], object]] = {}

    def __call__(self, number: int, frame: FrameType | None) -> None:
        for listener in tuple(self.listeners.values()):
            listener()
        self.previous(number, frame)  # last, as it may raise


@contextlib.contextmanager
def beside_handlers(numbers: Collection[signal.Signals], listener: Callable[[], object]) -> Iterator[None]:
    """Call ``listener`` in the running loop at these signals, in addition to their handlers.

    Signals without a handler, or with Python's own (Ctrl-C raises KeyboardInterrupt), stay as they are. Outside the
    main thread nothing is changed.
    """
    loop, key = asyncio.get_running_loop(), object()

    def call_soon() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(listener)

    placed: dict[signal.Signals, _Shared] = {}
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            previous = signal.getsignal(number)
            if not callable(previous) or previous is signal.default_int_handler:
                continue
            shared = previous if isinstance(previous, _Shared) else _Shared(previous)
            shared.listeners[key] = call_soon
            placed[number] = shared
            if shared is not previous:
                _place(number, shared)
    try:
        yield
    finally:
        for number, shared in placed.items():
            del shared.listeners[key]
            if not shared.listeners and _is_placed(number, shared):
                _place(number, shared.previous)


@contextlib.contextmanager
def before_the_loops(numbers: Collection[signal.Signals], take: Callable[[], bool]) -> Iterator[None]:
    """Call ``take`` in the running loop at these signals, before a handler set by ``loop.add_signal_handler``. That
    handler is called only if ``take`` and all other listeners here return False. Other handlers are called in any case,
    as in :func:`beside_handlers`.

    A handler of a loop may end the loop's run (aiohttp's raises GracefulExit), and the loop may be run again.
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
    """Reads signals before the loop does. Python writes a byte for each to the process's wakeup fd, and loops set
    handlers for what they read there; here the wakeup fd is ours, and bytes are passed on to the loop's.

    There is one for each loop, and it is the handler of each of its signals.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._takes: dict[int, dict[object, Callable[[], bool]]] = {}
        self._replaced: dict[int, object] = {}
        self._receiving, self._sending = socket.socketpair()
        self._receiving.setblocking(False)
        self._sending.setblocking(False)
        self._loops = -1  # the loop's own wakeup fd
        self._listening: asyncio.Handle | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Does nothing: the byte in the wakeup fd reports the signal."""

    @contextlib.contextmanager
    def asking(self, numbers: Collection[signal.Signals], take: Callable[[], bool]) -> Iterator[None]:
        """Call ``take`` at these signals."""
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
                    _replace(number, self, self._replaced.pop(number))
            if not self._takes:
                self._end()

    def _listen(self) -> None:
        # Repeated, as uvloop sets a new fd for each run, and asyncio sets its own with each handler.
        self._take_place()
        self._place_fd()
        self.loop.add_reader(self._receiving, self._read)
        self._listening = self.loop.call_later(_CHECK, self._listen)

    def _take_place(self) -> None:
        for number in self._takes:
            beneath = _beneath(number)
            if beneath is not self and _is_a_loops(beneath):
                self._replaced[number] = beneath
                _replace(number, beneath, self)

    def _place_fd(self) -> None:
        ours = self._sending.fileno()
        found = signal.set_wakeup_fd(ours, warn_on_full_buffer=False)
        if found != ours:
            self._loops = found

    def _read(self) -> None:
        self._place_fd()
        byte = self._receiving.recv(1)  # one at a time: the loop's reaction to it may change what the next one means
        taken = [take() for take in tuple(self._takes.get(byte[0], {}).values())]  # calls every listener
        if any(taken):
            return
        self._pass_on(byte)
        if taken:
            self._stop_listening()
            self._pause(self.loop.time() + _PAUSE)

    def _pause(self, until: float) -> None:
        # In each step, as any of them may end the loop's run and a new run of uvloop takes the fd back.
        self._place_fd()
        if self.loop.time() < until:
            self._listening = self.loop.call_soon(self._pause, until)
        else:
            self._listen()

    def _pass_on(self, signals: bytes) -> None:
        if self._loops != -1:
            os.write(self._loops, signals)

    def _stop_listening(self) -> None:
        assert self._listening is not None
        self._listening.cancel()
        if not self.loop.is_closed():
            self.loop.remove_reader(self._receiving)

    def _end(self) -> None:
        del _diversions[self.loop]
        self._stop_listening()
        self._place_fd()  # updates self._loops
        signal.set_wakeup_fd(self._loops, warn_on_full_buffer=False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._pass_on(self._receiving.recv(64))  # signals that were not read yet
        self._receiving.close()
        self._sending.close()


_diversions: Final[dict[asyncio.AbstractEventLoop, _Diversion]] = {}


def _diversion() -> _Diversion:
    loop = asyncio.get_running_loop()
    if loop not in _diversions:
        _diversions[loop] = _Diversion(loop)
    return _diversions[loop]


def _beneath(number: int) -> object:
    handler: object = signal.getsignal(number)
    while isinstance(handler, _Shared):
        handler = handler.previous
    return handler


def _replace(number: int, old: object, new: Any) -> None:
    """Replace a handler, also beneath ours. If other code has set another one instead, that stays."""
    found: object = signal.getsignal(number)
    if found is old:
        _place(number, new)
    while isinstance(found, _Shared):
        if found.previous is old:
            found.previous = new
        found = found.previous


def _is_placed(number: int, handler: object) -> bool:
    return signal.getsignal(number) is handler


def _is_a_loops(handler: object) -> bool:
    """Whether it was set by ``add_signal_handler`` of asyncio's or uvloop's event loop, or is the diversion of the
    running loop, which has replaced such a handler."""
    if isinstance(handler, _Diversion):
        return handler.loop is asyncio.get_running_loop()
    return callable(handler) and (getattr(handler, "__module__", "") or "").partition(".")[0] in ("asyncio", "uvloop")


def _place(number: int, handler: object) -> None:
    signal.signal(number, handler)  # type: ignore[arg-type]
    if sys.platform != "win32":
        signal.siginterrupt(number, False)  # system calls are restarted, as with event loops' handlers
