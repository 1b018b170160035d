"""What the errors of a database say: whether it is their record's fault, and what is known after them."""

from __future__ import annotations

import logging
import sqlite3
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from aioparallel.errors import RetryLater

__all__ = ["AWAY", "NO_ANSWER", "SOON", "away", "later"]

logger = logging.getLogger(__name__)

AWAY: Final = 1.0
"""Seconds until a record is tried again whose transaction the database could not carry out."""
SOON: Final = 0.05
"""Seconds until a record is tried again of which nothing is known to be wrong."""

NO_ANSWER: Final = (SQLAlchemyError, OSError, TimeoutError)
"""What may be raised where it is not known what the database has done; those of the driver are among them."""

_STATES_AWAY: Final = ("08", "53", "57P0", "25P03", "25P04")
"""SQLSTATEs, by how they begin (PostgreSQL, appendix A): of connections, of resources, of a server that goes down, and
of transactions that were left alone for too long."""
_SQLITE_AWAY: Final = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
}


def away(error: Exception) -> RetryLater:
    """For a record whose transaction the database could not carry out: no failure of it."""
    told = f"{type(error).__name__}: {error}"
    logger.warning("A transaction is tried again, the database is away: %s", told, extra={"action": "database_away"})
    return RetryLater(AWAY, told)


def later(error: Exception, *, is_lost: bool) -> RetryLater | None:
    """When its record is tried again where the database is at fault, or what runs beside it; None: the record is.
    ``is_lost``: its connection."""
    if _is_conflict(error):
        return RetryLater(SOON, str(error))
    return away(error) if is_lost or _is_away(error) else None


def _is_away(error: BaseException) -> bool:
    """Whether the database could not do what was asked, whatever that was."""
    code = getattr(_drivers(error), "sqlite_errorcode", None)
    return _state(error).startswith(_STATES_AWAY) or (code is not None and code & 0xFF in _SQLITE_AWAY)


def _is_conflict(error: BaseException) -> bool:
    """Whether a transaction could not go on beside others (class 40: serialisation, deadlocks), and may be begun
    again."""
    return _state(error).startswith("40")


def _state(error: BaseException) -> str:
    return getattr(_drivers(error), "sqlstate", None) or ""


def _drivers(error: BaseException) -> BaseException | None:
    """Its error, below SQLAlchemy's or ours."""
    return getattr(error, "orig", None) or error.__cause__
