"""What became of one member's transactions: counted, and told in the log once in a while."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from aioparallel.observe.health import Problem, ProblemKind

__all__ = ["Figures", "Why"]

logger = logging.getLogger(__name__)

_QUIET: Final = 5.0
"""Seconds between two lines about aborts."""
_OFTEN: Final = 3
_LONG: Final = 10.0
"""Aborts in a row, or seconds of them, that somebody should hear of."""
_REMEMBERED: Final = 100
"""Transactions whose times are kept."""


class Why(NamedTuple):
    """A cause, of few kinds, and what people are told."""

    cause: str
    told: str


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
        self._since = 0.0
        self.why = ""
        """Of the last one, if it was aborted."""

    def was_committed(self, seconds: float) -> None:
        """One more, after so many seconds."""
        self.aborts_in_a_row = 0
        self.why = ""
        self.seconds.append(seconds)

    def was_aborted(self, transactional_id: str, why: Why, now: float, *, began: float, is_progress: bool) -> None:
        """One more. ``is_progress``: the next one has less that is refused."""
        if not self.aborts_in_a_row:
            self._since = began
        self.aborts_in_a_row += not is_progress
        self.why = why.told
        self.aborted[why.cause] += 1
        quiet = now - self._told < _QUIET
        if not quiet:
            self._told = now
        logger.log(
            logging.DEBUG if quiet else logging.WARNING,
            "A transaction of %s was aborted, nothing of it is visible: %s",
            transactional_id,
            why.told,
            extra={"action": "transaction_aborted", "transactional_id": transactional_id},
        )

    def problems(self, transactional_id: str, now: float) -> Sequence[Problem]:
        """One abort after the other."""
        times = self.aborts_in_a_row
        if not times or (times < _OFTEN and now - self._since < _LONG):
            return ()
        text = "the last transaction" if times == 1 else f"the last {times} transactions"
        said = f"{text} of {transactional_id} {'was' if times == 1 else 'were'} aborted: {self.why}"
        return (Problem(ProblemKind.TRANSACTIONS_ABORTED, said),)
