"""The event loop of scripts, the settings of the garbage collector, and the signals that stop a consumer."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import mmap
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Final

__all__ = ["GrowthWatch", "collecting_quickly", "loop_factory", "quick_collections", "stopping_signals"]

# Threshold of a young collection: objects created minus objects freed. Records in flight come and go in waves of
# thousands, and a small threshold walks each wave repeatedly: 1,000 takes a fifth of all time with 2,000 in flight, and
# so does 20,000 with 20,000. So the threshold grows with the number in flight.
_YOUNG = 20_000
_YOUNG_BY_HANDLER = 5
# Objects by which a process may grow between full collections, besides doubling: about 100 MB, more than 20,000
# handlers in flight take.
_MAY_GROW = 1_000_000
# Seconds between two checks of the process's memory; bytes of growth that cause a young collection; bytes and part of
# growth that cause a full one.
_CHECK = 0.1
_YOUNG_BYTES = 32 * 1024 * 1024
_MAY_GROW_BYTES = 64 * 1024 * 1024
_MAY_GROW_PART = 0.25


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The factory of uvloop's event loop; None (asyncio's own) on Windows, where uvloop does not exist."""
    if sys.platform == "win32":
        return None
    import uvloop  # noqa: PLC0415 - not on Windows

    return uvloop.new_event_loop


def quick_collections(handlers: int = 0) -> None:
    """Configure the process's garbage collector for a consumer. Each object is checked once while it is young, and then
    excluded from collections (``gc.freeze``). Without this a full collection blocks the event loop for tens of
    milliseconds about once a second, and everything in flight is checked again and again.

    Cycles of old objects are found by a full collection on the event loop, once the number of objects has doubled and
    grown by a million since the last one: a process that does not grow has none. As few objects may hold much memory,
    growth by 32 MB also causes a young collection, and growth by a quarter plus 64 MB a full one (on Linux, where the
    size of the process is known).

    ``handlers``: most handlers in flight; matters above some thousands. May be called repeatedly; the last call's
    ``handlers`` counts.
    """
    with _lock:
        _freezer().stay(handlers)


@contextlib.contextmanager
def collecting_quickly(handlers: int = 0) -> Iterator[None]:
    """:func:`quick_collections` for the length of a block. Blocks may overlap, also in threads. The last one to end
    restores the settings from before the first, or those that :func:`quick_collections` has set before or
    meanwhile."""
    with _lock:
        freezer = _freezer()
        freezer.begin(handlers)
    try:
        yield
    finally:
        with _lock:
            freezer.end(handlers)


_lock: Final = threading.RLock()


def _freezer() -> _Freezer:
    found = next((callback for callback in gc.callbacks if isinstance(callback, _Freezer)), None)
    if found is None:
        found = _Freezer()
        gc.callbacks.append(found)
        gc.freeze()
    return found


class _Freezer:
    """A callback of the collector: freezes what has survived, and collects when the process has grown."""

    def __init__(self) -> None:
        self._limit = 2 * _kept() + _MAY_GROW
        self._young_at = _resident()
        self._limit_bytes = self._bytes_from(self._young_at)
        self._checking: asyncio.AbstractEventLoop | None = None
        self._checkers = 0
        """Loops that have begun to check; only the last one goes on."""
        self._stays = False
        self._handlers = 0
        """As given to :meth:`stay`."""
        self._blocks: list[int] = []
        """The ``handlers`` of each open block."""
        self._thresholds = gc.get_threshold()
        """To be set after the last block."""
        self._froze = gc.get_freeze_count() > 0
        """Whether objects were frozen before."""
        self._has_ended = False

    def stay(self, handlers: int) -> None:
        """Never end."""
        self._stays = True
        self._handlers = handlers
        self._thresholds = _thresholds(handlers)
        gc.set_threshold(*self._thresholds)

    def begin(self, handlers: int) -> None:
        """Enter a block."""
        if not self._blocks:
            self._thresholds = gc.get_threshold()
        self._blocks.append(handlers)
        self._follow()

    def end(self, handlers: int) -> None:
        """Leave a block."""
        self._blocks.remove(handlers)
        if self._blocks:
            self._follow()
            return
        gc.set_threshold(*self._thresholds)
        if not self._stays:
            self._leave()

    def _follow(self) -> None:
        gc.set_threshold(*_thresholds(max(self._handlers, *self._blocks)))

    def _leave(self) -> None:
        self._has_ended = True
        with contextlib.suppress(ValueError):  # other code has removed it
            gc.callbacks.remove(self)
        gc.unfreeze()
        if self._froze:  # the objects frozen before cannot be told from ours
            gc.collect()
            gc.freeze()

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if phase != "stop":
            return
        gc.freeze()
        with contextlib.suppress(RuntimeError):  # a thread without an event loop: one with a loop will collect soon
            loop = asyncio.get_running_loop()
            if _kept() > self._limit:
                loop.call_soon(self._collect_all)
            if self._young_at and (self._checking is None or not self._checking.is_running()):
                self._checking = loop
                self._checkers += 1
                loop.call_later(_CHECK, self._check, loop, self._checkers)

    def _check(self, loop: asyncio.AbstractEventLoop, checker: int) -> None:
        """Collect by memory: few objects may hold much, and the collector counts only objects."""
        if self._has_ended or checker != self._checkers:
            return  # another loop checks now, or this one began anew after it had stopped for a while
        resident = _resident()
        if resident > self._young_at + _YOUNG_BYTES:
            gc.collect(0)
            self._young_at = resident = _resident()
        if resident > self._limit_bytes:
            self._collect_by_bytes()
        self._young_at = min(self._young_at, resident)
        loop.call_later(_CHECK, self._check, loop, checker)

    def _collect_by_bytes(self) -> None:
        self._unfreeze_and_collect()
        # Freed memory stays with the allocator. Only after a trim does the process's size show what is in use.
        _give_back()
        self._young_at = _resident()
        self._limit_bytes = self._bytes_from(self._young_at)

    @staticmethod
    def _bytes_from(resident: int) -> int:
        return int(resident * (1 + _MAY_GROW_PART)) + _MAY_GROW_BYTES

    def _collect_all(self) -> None:
        if self._has_ended or _kept() <= self._limit:
            return  # several young collections in one step of the loop have each scheduled this
        self._unfreeze_and_collect()

    def _unfreeze_and_collect(self) -> None:
        gc.unfreeze()
        gc.collect()  # freezes what is left
        self._limit = 2 * _kept() + _MAY_GROW


def _thresholds(handlers: int) -> tuple[int, int, int]:
    return max(_YOUNG, _YOUNG_BY_HANDLER * handlers), 1_000, 1_000


class GrowthWatch:
    """Collects garbage when the process has grown by 32 MB, for code that raises the collector's thresholds: few
    objects may hold much memory, and the collector counts only objects. Checks ten times a second on an event loop.
    While the collector is disabled it collects nothing."""

    def __init__(self) -> None:
        self._has_ended = False
        self._checked_at = self._collected_at = _resident()

    def begin(self) -> None:
        """Check now and from now on. Call it on the event loop; any thread may call :meth:`end`."""
        if self._has_ended or not self._checked_at:
            return
        resident = _resident()
        if resident > self._checked_at + _YOUNG_BYTES and gc.isenabled() and gc.get_threshold()[0]:
            gc.collect(1)
            resident = _resident()
            if resident > self._collected_at * (1 + _MAY_GROW_PART) + _MAY_GROW_BYTES:
                gc.collect()
                _give_back()  # else the next garbage fills what is free, and the process does not grow
                self._collected_at = resident = _resident()
            self._checked_at = resident
        self._checked_at = min(self._checked_at, resident)
        asyncio.get_running_loop().call_later(_CHECK, self.begin)

    def end(self) -> None:
        """Stop checking."""
        self._has_ended = True


def _kept() -> int:
    """Objects of this process, by the allocator's count of blocks (0.1 ms). The number of frozen objects would be more
    exact, but counting takes 100 ms for 700,000; it serves with other allocators (PYTHONMALLOC=malloc)."""
    return sys.getallocatedblocks() or gc.get_freeze_count()


def _resident() -> int:
    """Resident memory of the process in bytes; 0 if unknown."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def _give_back() -> None:
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def stopping_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` on SIGINT and SIGTERM, if the loop can handle them. Restores the handlers at the end."""
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in previous:
            loop.add_signal_handler(number, stop)
    except (NotImplementedError, RuntimeError, ValueError):
        previous = {}  # Windows, or not the main thread: Ctrl-C raises KeyboardInterrupt as usual
    try:
        yield
    finally:
        for number, handler in previous.items():
            loop.remove_signal_handler(number)
            if handler is not None:  # None: not set by Python, so it cannot be restored
                signal.signal(number, handler)
