"""Deadlines of requests: what ``asyncio.timeout`` does, with one timer for all that have the same time.

A timer for each, as clients set them, costs 15 of the 100 microseconds of a request.
"""

from __future__ import annotations

import asyncio
from typing import Final

__all__ = ["Deadline", "Deadlines"]

# Seconds by which a timer may come before its time.
_EARLY: Final = 0.001


# Lengths whose timer stays though nothing is open: it would be set anew by the next request.
_LENGTHS: Final = 16


class Deadline:
    """Of one request, in the task that has begun it."""

    __slots__ = ("_cancels", "_task", "is_over", "seconds", "until")

    def __init__(self, task: asyncio.Task[object], seconds: float, until: float) -> None:
        self._task = task
        self._cancels = task.cancelling()
        self.seconds = seconds
        self.until = until
        self.is_over = False

    def pass_(self) -> None:
        """Its time is up."""
        self.is_over = True
        self._task.cancel()

    def take_back(self) -> bool:
        """After it was over: whether nobody else has cancelled the task."""
        return self._task.uncancel() <= self._cancels

    def passed_too_late(self) -> None:
        """There is an answer all the same: the cancellation was none."""
        if self.is_over:
            self._task.uncancel()


class Deadlines:
    """Those that are open, by their length."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._open: dict[float, dict[Deadline, None]] = {}  # in the order in which they pass
        self._timers: dict[float, asyncio.TimerHandle] = {}

    def begin(self, seconds: float) -> Deadline:
        """From now on."""
        task = asyncio.current_task()
        assert task is not None
        one = Deadline(task, seconds, self._loop.time() + seconds)
        same = self._open.get(seconds)
        if same is None:
            same = self._open[seconds] = {}
        same[one] = None
        if seconds not in self._timers:
            self._timers[seconds] = self._loop.call_at(one.until, self._pass, seconds)
        return one

    def end(self, one: Deadline) -> None:
        """The request has ended, whatever way."""
        if one.is_over:
            return
        same = self._open[one.seconds]
        del same[one]
        if not same and len(self._open) > _LENGTHS and one.seconds in self._timers:
            self._timers.pop(one.seconds).cancel()
            del self._open[one.seconds]

    def close(self) -> None:
        """No more requests come."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _pass(self, seconds: float) -> None:
        now, same = self._loop.time() + _EARLY, self._open[seconds]
        while same and (one := next(iter(same))).until <= now:
            del same[one]
            one.pass_()
        if same:
            self._timers[seconds] = self._loop.call_at(next(iter(same)).until, self._pass, seconds)
        else:  # lengths may be many
            del self._timers[seconds], self._open[seconds]
