"""An event loop pings a thread, which notices when no ping comes.

A thread that wakes by itself twenty times a second is expensive for a busy loop. It requests the interpreter lock; the
loop releases the lock at each system call and takes it back before the thread has woken up, again and again. This cost
9 microseconds in each turn of the loop, for up to half a second (measured). So the loop wakes the thread, and lets it
have the lock until it waits again. While pings come in time the thread never wakes by itself.

Next to threads that compute, the loop gets the lock back late, 5 ms for each of them. A ping then costs more than it
saves. So after a slow one the loop does not wait during the next ones.
"""

from __future__ import annotations

import threading
import time
from typing import Final

__all__ = ["Ping"]

# The most seconds that a ping waits for the thread: it may have no processor.
_HEARD: Final = 0.002
# A ping that takes so many seconds is slow, and how many after it do not wait.
_SLOW: Final = 0.003
_HASTY: Final = 100


class Ping:
    """The loop sends, one thread waits."""

    def __init__(self) -> None:
        # Each is released while the other side may go on.
        self._ping, self._heard = threading.Lock(), threading.Lock()
        self._ping.acquire()
        self._heard.acquire()
        self._owes = False
        self._hasty = 0
        self.ended = False

    def ping(self) -> None:
        """Wake the thread, and wait until it waits again."""
        self._heard.acquire(blocking=False)  # a late answer to the ping before
        if self._hasty:
            self._hasty -= 1
            self._open(self._ping)
            return
        began = time.perf_counter()
        self._open(self._ping)
        self._heard.acquire(timeout=_HEARD)
        if time.perf_counter() - began > _SLOW:
            self._hasty = _HASTY

    def wait(self, timeout: float) -> bool:
        """In the thread: wait for the next ping, or the end. Return False if none came within ``timeout`` seconds."""
        if self._owes:
            self._open(self._heard)
        self._owes = self._ping.acquire(timeout=timeout)
        return self._owes

    def end(self) -> None:
        """Send no more pings."""
        self.ended = True
        self._open(self._ping)

    @staticmethod
    def _open(lock: threading.Lock) -> None:
        if lock.locked():
            lock.release()
