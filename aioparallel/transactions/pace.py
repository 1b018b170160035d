"""How much one transaction takes: no more than the brokers take in a part of its time. No I/O, no clock."""

from __future__ import annotations

from typing import Final

__all__ = ["Pace"]

_FIRST: Final = 1024 * 1024
_LEAST: Final = 64 * 1024
"""Bytes of the first one, and those that it takes however slow they are."""
_PART: Final = 0.25
"""Of the time for sending, that sending should take: the rest is for what goes slower now and then."""


class Pace:
    """``most``: bytes of one at most. ``seconds``: after which a transaction is aborted that is not sent.

    Brokers may be slow for good (a quota, a narrow link). Cut as large as before, what was not done in time would not
    be the next time.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._aim = seconds * _PART
        self.bytes = min(most, _FIRST)
        """That the next one takes."""

    def in_time(self, size: int, seconds: float) -> None:
        """So many bytes were acknowledged after so many seconds: all of a transaction."""
        fits = int(size * self._aim / max(seconds, 1e-6))
        if seconds > self._aim:
            self.bytes = max(_LEAST, min(self.bytes, fits))
        elif size > self.bytes // 2:
            self.bytes = min(self._most, 2 * self.bytes, max(self.bytes, fits))

    def late(self, size: int, acknowledged: int) -> None:
        """Its time was over when that much of ``size`` was acknowledged."""
        fits = int(acknowledged * _PART)
        self.bytes = max(_LEAST, min(self.bytes, max(fits, size // 8)))
