"""An event loop of the consumer's own, for scripts."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Callable, Iterator, Mapping

__all__ = ["loop_factory", "quick_collections", "stopping_signals"]

# Objects that come to life, more than have died, until a young collection. What is in flight comes and goes in waves of
# thousands; by a small number each wave is walked again and again (1,000: at 2,000 in flight a fifth of all time;
# 20,000: the same at 20,000). So it grows with what may be in flight.
_YOUNG = 20_000
_YOUNG_BY_HANDLER = 5
# Objects by which a process may have grown since the last full collection, beside having doubled: about 100 MB, more
# than 20,000 handlers in flight take.
_MAY_GROW = 1_000_000


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

    Cycles of objects that die old are found by a full collection, which runs on the event loop once twice as much is
    kept as after the last one (and a million objects more): a process whose memory does not grow has none.

    ``handlers``: how many may be in flight at once; matters above some thousands. It may be called at any time, more
    than once; the last call's ``handlers`` count.
    """
    if not any(isinstance(callback, _Freezer) for callback in gc.callbacks):
        gc.callbacks.append(_Freezer())
        gc.freeze()
    gc.set_threshold(max(_YOUNG, _YOUNG_BY_HANDLER * handlers), 1_000, 1_000)


class _Freezer:
    """Called by the collector around each collection."""

    def __init__(self) -> None:
        self._limit = 2 * _kept() + _MAY_GROW

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if phase != "stop":
            return
        gc.freeze()  # what has survived
        if _kept() > self._limit:
            with contextlib.suppress(RuntimeError):  # of a thread without a loop: the next look is soon
                asyncio.get_running_loop().call_soon(self._collect_all)

    def _collect_all(self) -> None:
        if _kept() <= self._limit:
            return  # several young collections came in one step of the loop, and the first has been answered
        gc.unfreeze()
        gc.collect()  # freezes what is left
        self._limit = 2 * _kept() + _MAY_GROW


def _kept() -> int:
    """Objects of this process. What is frozen alone would tell more, but to count it the collector walks all of it
    (100 ms for 700,000), while the allocator knows (0.1 ms): unless it is another one, as with PYTHONMALLOC=malloc."""
    return sys.getallocatedblocks() or gc.get_freeze_count()


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
