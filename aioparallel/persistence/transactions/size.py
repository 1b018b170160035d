"""Adapts the size of a transaction to the speed of the brokers. No I/O, no clock."""

from __future__ import annotations

from typing import Final

__all__ = ["TransactionSize"]

_FIRST: Final = 8 * 1024 * 1024
_LEAST: Final = 64 * 1024
"""Bytes of the first transaction, and the smallest limit however slow the brokers are."""
_FASTER, _CAREFULLY = 4, 1.5
"""How many times larger the next transaction may be, and how many times near a size that was too large before."""
_PART: Final = 0.25
"""The part of the sending time that a transaction should use. The rest is a reserve for slow moments."""


class TransactionSize:
    """The size limit. ``most``: its maximum in bytes. ``seconds``: a transaction that is not sent by then is aborted.

    The first acknowledgement takes one round trip, whatever the size. The time after that grows with the size. Brokers
    may be slow permanently (a quota, a slow link), so the transaction after one that was too large is smaller.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._careful_from = most
        self.bytes = min(most, _FIRST)
        """The limit of the next transaction."""

    def in_time(self, size: int, first: float, seconds: float, *, is_part: bool) -> None:
        """``size`` bytes were acknowledged, the first after ``first`` seconds and all after ``seconds``. ``is_part``:
        more outputs were waiting."""
        took, aim = max(seconds - first, 1e-6), max(self._seconds - first, 0.0) * _PART
        fits = int(size * aim / took)
        if took > aim:
            self.bytes = max(_LEAST, min(self.bytes, fits))
        elif is_part:
            careful = self._careful_from
            most = min(_FASTER * self.bytes, careful) if self.bytes < careful else int(_CAREFULLY * self.bytes)
            self.bytes = min(self._most, most, max(self.bytes, fits))

    def late(self, size: int, acknowledged: int) -> None:
        """Only ``acknowledged`` of ``size`` bytes were acknowledged in time."""
        self._careful_from = size // 4
        fits = int(acknowledged * _PART)
        self.bytes = max(_LEAST, min(self.bytes, max(fits, size // 8)))
