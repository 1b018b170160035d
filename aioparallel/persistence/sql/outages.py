"""Retries records after errors that they did not cause: database outages and transaction conflicts."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from typing import Final

from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.persistence.sql.database_errors import describe, is_away, is_conflict, is_of_database
from aioparallel.persistence.sql.taking import Taken
from aioparallel.records.errors import NotToBlame
from aioparallel.records.record import Record

__all__ = ["AWAY", "SOON", "DatabaseOutages"]

logger = logging.getLogger(__name__)

AWAY: Final = 1.0
"""Seconds until a record is retried after the database was unavailable."""
SOON: Final = 0.05
"""Seconds until a record is retried after a conflict. They double with each conflict, up to ``AWAY``."""
_LINES: Final = 5.0
"""Seconds between two log lines about an unavailable database."""
_OVER: Final = 10.0
"""An outage is over after this many seconds without an error. Take-overs retry every five seconds."""
_MANY: Final = 10
"""Every tenth conflict of a record is logged as a warning."""


class DatabaseOutages:
    """The recent outages of one store's database."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._since = self._last = self._logged_at = -float("inf")
        self._why = ""

    def away(self, error: BaseException) -> NotToBlame:
        """Note an outage. Returns the error that retries a record without counting a failure."""
        now = time.monotonic()
        self._why = describe(error)
        if now - self._last > _OVER:
            self._since = now
        self._last = now
        level = logging.DEBUG
        if now - self._logged_at > _LINES:
            self._logged_at, level = now, logging.WARNING
        logger.log(
            level,
            "The database at %s is unavailable; its records are retried: %s",
            self._where,
            self._why,
            extra={"action": "database_away"},
        )
        return NotToBlame(AWAY, self._why)

    def answered(self) -> None:
        """Note that the database works, which ends an outage."""
        self._last = -float("inf")

    def later(self, error: Exception, first: Record, taken: Taken, *, is_lost: bool) -> NotToBlame | None:
        """Return the error that retries a record, or the batch that begins with it. None: the record has failed.
        ``is_lost``: the connection was lost, and the store did not close it."""
        if is_conflict(error):
            count = taken.conflicts[first.offset] = taken.conflicts.get(first.offset, 0) + 1
            level = logging.WARNING if count % _MANY == 0 else logging.DEBUG
            logger.log(
                level,
                "%s conflicts with other transactions, %d times so far; it is retried: %s",
                first.place,
                count,
                describe(error),
                extra={"action": "transaction_conflict"},
            )
            return NotToBlame(min(AWAY, SOON * 2.0 ** min(count - 1, 10)) * random.uniform(0.5, 1), describe(error))
        if is_away(error) or (is_lost and is_of_database(error)):
            return self.away(error)
        return None

    def problems(self) -> Sequence[Problem]:
        """Report the current outage."""
        now = time.monotonic()
        if now - self._last > _OVER:
            return ()
        text = f"{self._where} has been unavailable for {now - self._since:.0f} s: {self._why}"
        return (Problem(ProblemKind.DATABASE_AWAY, text),)
