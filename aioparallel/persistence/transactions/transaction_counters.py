"""Counts how the transactions of one member end, and logs aborts at most every few seconds."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from aioparallel.observe.health import Problem, ProblemKind

__all__ = ["TransactionCounters"]

logger = logging.getLogger(__name__)

_QUIET: Final = 5.0
"""Seconds between two lines about aborts."""
_OFTEN: Final = 3
_LONG: Final = 10.0
"""Aborts in a row, or seconds of aborts, that become a health problem."""
_REMEMBERED: Final = 100
"""How many durations are kept."""


class TransactionCounters:
    """The counters of one member. ``now``: the event loop's time."""

    def __init__(self) -> None:
        self.aborts_in_a_row = 0
        """Aborts since the last commit, without those that removed outputs that the brokers refuse."""
        self.aborted: Counter[str] = Counter()
        """The number of aborts by cause."""
        self.fenced = 0
        self.seconds: deque[float] = deque(maxlen=_REMEMBERED)
        """Durations of the last committed transactions."""
        self._logged_at = float("-inf")
        self._since = 0.0
        self.why = ""
        """Why the last transaction was aborted; empty if it was not."""

    def was_committed(self, seconds: float) -> None:
        """Count a committed transaction that took this long."""
        self.aborts_in_a_row = 0
        self.why = ""
        self.seconds.append(seconds)

    def nothing_left(self) -> None:
        """What the last transactions should have committed was lost with its partitions, or is not there any more."""
        self.aborts_in_a_row = 0
        self.why = ""

    def was_aborted(
        self, transactional_id: str, cause: str, why: str, now: float, *, began: float, is_progress: bool
    ) -> None:
        """Count an abort. ``cause``: one of a few, for statistics. ``is_progress``: the next transaction has fewer
        outputs that the brokers refuse."""
        if not self.aborts_in_a_row:
            self._since = began
        self.aborts_in_a_row += not is_progress
        self.why = why
        self.aborted[cause] += 1
        quiet = now - self._logged_at < _QUIET
        if not quiet:
            self._logged_at = now
        logger.log(
            logging.DEBUG if quiet else logging.WARNING,
            "A transaction of %s was aborted, nothing of it is visible: %s",
            transactional_id,
            why,
            extra={"action": "transaction_aborted", "transactional_id": transactional_id},
        )

    def problems(self, transactional_id: str, now: float) -> Sequence[Problem]:
        """Report repeated aborts."""
        times = self.aborts_in_a_row
        if not times or (times < _OFTEN and now - self._since < _LONG):
            return ()
        which = "the last transaction" if times == 1 else f"the last {times} transactions"
        text = f"{which} of {transactional_id} {'was' if times == 1 else 'were'} aborted: {self.why}"
        return (Problem(ProblemKind.TRANSACTIONS_ABORTED, text),)
