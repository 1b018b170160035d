"""The pulse of an event loop, for a thread beside it that waits for what does not come.

A thread that wakes by itself, twenty times a second, is dear to a loop that is busy: it must have the interpreter's
lock, and asks for it; the loop gives it away at each system call and takes it again before the other thread has got up,
for which it was woken in vain, again and again. Measured: 9 microseconds at each turn of the loop, for as long as half
a second. So here the loop is the one who wakes the thread, and lets it have the lock until it waits again; while
pulses come in time it never wakes by itself.

Beside threads that compute the lock comes back late, 5 ms for each of them: then a beat costs more than what it saves.
So after a slow one the next are not waited for.
"""

from __future__ import annotations

import threading
import time
from typing import Final

__all__ = ["Pulse"]

# Seconds that a beat waits for the thread, at most: it may have no processor.
_HEARD: Final = 0.002
# Seconds of a beat that was slow, and how many after it wait for nobody.
_SLOW: Final = 0.003
_HASTY: Final = 100


class Pulse:
    """Beaten in the loop, waited for in one thread."""

    def __init__(self) -> None:
        # Both are open for as long as somebody is to pass.
        self._beat, self._heard = threading.Lock(), threading.Lock()
        self._beat.acquire()
        self._heard.acquire()
        self._owes = False
        self._hasty = 0
        self.ended = False

    def beat(self) -> None:
        """Wake the thread, and wait until it waits again."""
        self._heard.acquire(blocking=False)  # said too late, of the one before
        if self._hasty:
            self._hasty -= 1
            self._open(self._beat)
            return
        began = time.perf_counter()
        self._open(self._beat)
        self._heard.acquire(timeout=_HEARD)
        if time.perf_counter() - began > _SLOW:
            self._hasty = _HASTY

    def wait(self, timeout: float) -> bool:
        """In the thread: for the next beat, or the end; False: it did not come within so many seconds."""
        if self._owes:
            self._open(self._heard)
        self._owes = self._beat.acquire(timeout=timeout)
        return self._owes

    def end(self) -> None:
        """There will be no more."""
        self.ended = True
        self._open(self._beat)

    @staticmethod
    def _open(lock: threading.Lock) -> None:
        if lock.locked():
            lock.release()
