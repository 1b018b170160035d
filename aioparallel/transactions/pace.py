"""How much one transaction takes: no more than the brokers take in a part of its time. No I/O, no clock."""

from __future__ import annotations

from typing import Final

__all__ = ["Pace"]

_FIRST: Final = 8 * 1024 * 1024
_LEAST: Final = 64 * 1024
"""Bytes of the first one, and those that it takes however slow they are."""
_FASTER, _CAREFULLY = 4, 1.5
"""Times as much, at most, in the next one; and near what was too much once."""
_PART: Final = 0.25
"""Of the time for sending, that sending should take: the rest is for what goes slower now and then."""


class Pace:
    """``most``: bytes of one at most. ``seconds``: after which a transaction is aborted that is not sent.

    What the first acknowledgement takes is a way to the brokers and back, whatever the size; the time behind that is
    as long as the size is large.

    Brokers may be slow for good (a quota, a narrow link). Cut as large as before, what was not done in time would not
    be the next time.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._careful_from = most
        self.bytes = min(most, _FIRST)
        """That the next one takes."""

    def in_time(self, size: int, first: float, seconds: float, *, is_part: bool) -> None:
        """So many bytes were acknowledged, the first after ``first`` seconds and all after ``seconds``. ``is_part``:
        more had waited."""
        took, aim = max(seconds - first, 1e-6), max(self._seconds - first, 0.0) * _PART
        fits = int(size * aim / took)
        if took > aim:
            self.bytes = max(_LEAST, min(self.bytes, fits))
        elif is_part:
            careful = self._careful_from
            most = min(_FASTER * self.bytes, careful) if self.bytes < careful else int(_CAREFULLY * self.bytes)
            self.bytes = min(self._most, most, max(self.bytes, fits))

    def late(self, size: int, acknowledged: int) -> None:
        """Its time was over when that much of ``size`` was acknowledged."""
        self._careful_from = size // 4
        fits = int(acknowledged * _PART)
        self.bytes = max(_LEAST, min(self.bytes, max(fits, size // 8)))
