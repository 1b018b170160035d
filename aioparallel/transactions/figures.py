"""What became of one member's transactions: counted, and told in the log once in a while."""

from __future__ import annotations

import logging
from collections import Counter, deque
from typing import Final

__all__ = ["Figures"]

logger = logging.getLogger(__name__)

_QUIET: Final = 5.0
"""Seconds between two lines about aborts."""
_REFUSED: Final = "an output is refused"
_REMEMBERED: Final = 100
"""Transactions whose times are kept."""


class Figures:
    """``now``: seconds, by the loop's clock."""

    def __init__(self) -> None:
        self.aborts_in_a_row = 0
        """Since the last one that was committed, or took out of the next one what the brokers refuse."""
        self.aborted: Counter[str] = Counter()
        """Why, and how often."""
        self.fenced = 0
        self.seconds: deque[float] = deque(maxlen=_REMEMBERED)
        """Of the last ones that were committed."""
        self._told = float("-inf")

    def was_committed(self, seconds: float) -> None:
        """One more, after so many seconds."""
        self.aborts_in_a_row = 0
        self.seconds.append(seconds)

    def was_aborted(self, transactional_id: str, why: str, now: float, *, is_progress: bool) -> None:
        """One more. ``is_progress``: the next one has less that is refused."""
        self.aborts_in_a_row += not is_progress
        self.aborted[_REFUSED if why.startswith(_REFUSED) else why] += 1
        quiet = now - self._told < _QUIET
        if not quiet:
            self._told = now
        logger.log(
            logging.DEBUG if quiet else logging.WARNING,
            "A transaction of %s was aborted: %s; its outputs are kept and go into the next one",
            transactional_id,
            why,
            extra={"action": "transaction_aborted", "transactional_id": transactional_id},
        )
