"""Measures how long each callback holds the event loop, and which ones hold it longest.

asyncio runs every callback (a step of a task, a timer, received data) through ``Handle._run``. Timing that with the CPU
clock of the thread measures the program alone, without the time that the operating system gives to other processes.
uvloop's handles cannot be timed like this, but its callbacks are the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator, Mapping
from typing import Final

__all__ = ["Hold", "LoopHolds"]

Hold = tuple[float, float, float, str]
"""CPU seconds, wall seconds, seconds of garbage collection among the CPU seconds, and the callback."""

_KEPT: Final = 20


class LoopHolds:
    """The longest holds of the loop, in CPU seconds of its thread.

    A garbage collection runs within the callback that triggers it, and its time is listed separately. Holds shorter
    than ``noted`` seconds are ignored.
    """

    def __init__(self, noted: float = 0.002) -> None:
        self._noted = noted
        self._longest: list[Hold] = []
        self._callbacks = 0
        self._total = 0.0
        self._collecting = 0.0
        self._collection_began = 0.0
        self._longest_collections = [0.0, 0.0, 0.0]
        self._collections = [0, 0, 0]

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Time every callback of every asyncio loop during the block."""
        original = asyncio.Handle._run
        clock, wall = time.thread_time, time.perf_counter

        def timed(handle: asyncio.Handle) -> None:
            began, wall_began, collecting = clock(), wall(), self._collecting
            original(handle)
            took = clock() - began
            self._callbacks += 1
            self._total += took
            if took >= self._noted:
                self._note(took, wall() - wall_began, self._collecting - collecting, handle)

        asyncio.Handle._run = timed  # type: ignore[method-assign,assignment]
        gc.callbacks.append(self._on_collection)
        try:
            yield
        finally:
            asyncio.Handle._run = original  # type: ignore[method-assign]
            gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._collection_began = time.thread_time()
        else:
            took = time.thread_time() - self._collection_began
            self._collecting += took
            generation = info["generation"]
            self._collections[generation] += 1
            self._longest_collections[generation] = max(self._longest_collections[generation], took)

    def _note(self, took: float, wall: float, collecting: float, handle: asyncio.Handle) -> None:
        self._longest.append((took, wall, collecting, _name(handle)))
        if len(self._longest) > 10 * _KEPT:
            self._longest = sorted(self._longest, reverse=True)[:_KEPT]

    def longest(self) -> list[Hold]:
        """The longest holds, longest first; a hold of 0 s if there are none."""
        return sorted(self._longest, reverse=True)[:_KEPT] or [(0.0, 0.0, 0.0, "nothing")]

    def report(self) -> dict[str, object]:
        """The longest holds, and the number and longest time of collections by generation."""
        return {
            "callbacks": self._callbacks,
            "total": self._total,
            "collections": self._collections,
            "longest_collections": self._longest_collections,
            "longest": self.longest(),
        }


def _name(handle: asyncio.Handle) -> str:
    callback = getattr(handle, "_callback", None)
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        coroutine = owner.get_coro()
        return f"task {owner.get_name()} {getattr(coroutine, '__qualname__', coroutine)!s}"
    return getattr(callback, "__qualname__", repr(callback))
