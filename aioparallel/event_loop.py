"""An event loop of the consumer's own, for scripts."""

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

# Objects that come to life, more than have died, until a young collection. What is in flight comes and goes in waves of
# thousands; by a small number each wave is walked again and again (1,000: at 2,000 in flight a fifth of all time;
# 20,000: the same at 20,000). So it grows with what may be in flight.
_YOUNG = 20_000
_YOUNG_BY_HANDLER = 5
# Objects by which a process may have grown since the last full collection, beside having doubled: about 100 MB, more
# than 20,000 handlers in flight take.
_MAY_GROW = 1_000_000
# Seconds between two looks at the memory that the process takes; bytes by which it may have grown since the last young
# collection; and since the last full one, beside having grown by a part of itself.
_LOOK = 0.1
_YOUNG_BYTES = 32 * 1024 * 1024
_MAY_GROW_BYTES = 64 * 1024 * 1024
_MAY_GROW_PART = 0.25


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Makes uvloop's event loop; None, for asyncio's own, on Windows, where uvloop does not exist."""
    if sys.platform == "win32":
        return None
    import uvloop  # noqa: PLC0415 - not on Windows

    return uvloop.new_event_loop


def quick_collections(handlers: int = 0) -> None:
    """Set the process's garbage collector up for a consumer: each object is looked at once, while it is young, and then
    left out of collections (``gc.freeze``). Otherwise a full collection, about one a second, holds the event loop for
    tens of milliseconds, and all that is in flight is looked at again and again.

    Cycles of objects that die old are found by a full collection, which runs on the event loop once twice as many
    objects are kept as after the last one (and a million more): a process that does not grow has none. Few objects may
    hold much: so there is a young collection, too, when the process has grown by 32 MB, and a full one when it has
    grown by a quarter and 64 MB (on Linux, where that is known).

    ``handlers``: how many may be in flight at once; matters above some thousands. It may be called at any time, more
    than once; the last call's ``handlers`` count.
    """
    with _lock:
        _freezer().stays_for(handlers)


@contextlib.contextmanager
def collecting_quickly(handlers: int = 0) -> Iterator[None]:
    """:func:`quick_collections` for the length of a block. Blocks may be several at once, also in threads: the last one
    to end leaves the collector as it was before the first, or as somebody has asked for it with
    :func:`quick_collections`, before them or meanwhile."""
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
    """The one that is there, or a new one."""
    found = next((callback for callback in gc.callbacks if isinstance(callback, _Freezer)), None)
    if found is None:
        found = _Freezer()
        gc.callbacks.append(found)
        gc.freeze()
    return found


class _Freezer:
    """Called by the collector around each collection."""

    def __init__(self) -> None:
        self._limit = 2 * _kept() + _MAY_GROW
        self._young_at = _resident()
        self._limit_bytes = self._bytes_from(self._young_at)
        self._looking: asyncio.AbstractEventLoop | None = None
        self._lookers = 0
        """Loops that have begun to look; the last one does."""
        self._stays = False
        self._handlers = 0
        """Of who has asked for it to stay."""
        self._blocks: list[int] = []
        """The handlers of each."""
        self._thresholds = gc.get_threshold()
        """After the last block."""
        self._froze = gc.get_freeze_count() > 0
        """Whether somebody had frozen objects before."""
        self._has_ended = False

    def stays_for(self, handlers: int) -> None:
        """It does not end any more."""
        self._stays = True
        self._handlers = handlers
        self._thresholds = _thresholds(handlers)
        gc.set_threshold(*self._thresholds)

    def begin(self, handlers: int) -> None:
        """A block."""
        if not self._blocks:
            self._thresholds = gc.get_threshold()
        self._blocks.append(handlers)
        self._follow()

    def end(self, handlers: int) -> None:
        """A block that has begun."""
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
        with contextlib.suppress(ValueError):  # somebody has removed it
            gc.callbacks.remove(self)
        gc.unfreeze()
        if self._froze:  # theirs cannot be told from ours
            gc.collect()
            gc.freeze()

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if phase != "stop":
            return
        gc.freeze()  # what has survived
        with contextlib.suppress(RuntimeError):  # of a thread without a loop: the next collection is soon
            loop = asyncio.get_running_loop()
            if _kept() > self._limit:
                loop.call_soon(self._collect_all)
            if self._young_at and (self._looking is None or not self._looking.is_running()):
                self._looking = loop
                self._lookers += 1
                loop.call_later(_LOOK, self._look, loop, self._lookers)

    def _look(self, loop: asyncio.AbstractEventLoop, looker: int) -> None:
        """Few objects may hold much memory, and the collector counts objects alone."""
        if self._has_ended or looker != self._lookers:
            return  # or another one looks, since this one has stood still, or this one has begun anew after that
        resident = _resident()
        if resident > self._young_at + _YOUNG_BYTES:
            gc.collect(0)
            self._young_at = resident = _resident()
        if resident > self._limit_bytes:
            self._collect_by_bytes()
        self._young_at = min(self._young_at, resident)
        loop.call_later(_LOOK, self._look, loop, looker)

    def _collect_by_bytes(self) -> None:
        self._unfreeze_and_collect()
        # What is free is used again; only what the process has given back tells how much it keeps.
        _give_back()
        self._young_at = _resident()
        self._limit_bytes = self._bytes_from(self._young_at)

    @staticmethod
    def _bytes_from(resident: int) -> int:
        return int(resident * (1 + _MAY_GROW_PART)) + _MAY_GROW_BYTES

    def _collect_all(self) -> None:
        if self._has_ended or _kept() <= self._limit:
            return  # or several young collections came in one step of the loop, and the first has been answered
        self._unfreeze_and_collect()

    def _unfreeze_and_collect(self) -> None:
        gc.unfreeze()
        gc.collect()  # freezes what is left
        self._limit = 2 * _kept() + _MAY_GROW


def _thresholds(handlers: int) -> tuple[int, int, int]:
    return max(_YOUNG, _YOUNG_BY_HANDLER * handlers), 1_000, 1_000


class GrowthWatch:
    """Collects garbage when the process has grown by 32 MB, for whoever has the collector count to large numbers: few
    objects may hold much memory, and the collector counts objects alone. Looks ten times a second, on an event loop.
    Where somebody has switched the collector off, it only looks."""

    def __init__(self) -> None:
        self._is_over = False
        self._looked_at = self._collected_at = _resident()

    def begin(self) -> None:
        """On the event loop. Ends after :meth:`end`, which any thread may call."""
        if self._is_over or not self._looked_at:
            return
        resident = _resident()
        if resident > self._looked_at + _YOUNG_BYTES and gc.isenabled() and gc.get_threshold()[0]:
            gc.collect(1)
            resident = _resident()
            if resident > self._collected_at * (1 + _MAY_GROW_PART) + _MAY_GROW_BYTES:
                gc.collect()
                self._collected_at = resident = _resident()
            self._looked_at = resident
        self._looked_at = min(self._looked_at, resident)
        asyncio.get_running_loop().call_later(_LOOK, self.begin)

    def end(self) -> None:
        """It looks no more."""
        self._is_over = True


def _kept() -> int:
    """Objects of this process. What is frozen alone would tell more, but to count it the collector walks all of it
    (100 ms for 700,000), while the allocator knows (0.1 ms): unless it is another one, as with PYTHONMALLOC=malloc."""
    return sys.getallocatedblocks() or gc.get_freeze_count()


def _resident() -> int:
    """Bytes of memory that the process takes; 0 where that is not known."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def _give_back() -> None:
    """Give memory that is free back to the system, where the allocator can do that."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def stopping_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` on SIGINT and SIGTERM, where the loop can listen to them. What was there before comes back."""
    there = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in there:
            loop.add_signal_handler(number, stop)
    except (NotImplementedError, RuntimeError, ValueError):
        there = {}  # Windows, or not the main thread: Ctrl-C then raises KeyboardInterrupt as usual
    try:
        yield
    finally:
        for number, handler in there.items():
            loop.remove_signal_handler(number)
            if handler is not None:  # of no Python code: it cannot be placed again
                signal.signal(number, handler)
