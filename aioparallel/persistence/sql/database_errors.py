"""Classifies database errors: outages, conflicts, and errors that a record caused."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

__all__ = ["NO_ANSWER", "describe", "is_away", "is_conflict", "is_of_database"]

NO_ANSWER: Final = (SQLAlchemyError, OSError, TimeoutError)
"""Errors after which the outcome of a statement is unknown. They include the errors of the driver."""

_STATES_AWAY: Final = (
    "08", "25006", "25P03", "25P04", "26000", "42P05", "53000", "53100", "53200", "53300", "57P0", "58",
)  # fmt: skip
"""Prefixes of SQLSTATEs (PostgreSQL, appendix A): connection errors, a read-only server (a standby), transactions that
were idle for too long, prepared statements that a pooler lost or kept on another server, missing resources, a server
that shuts down, and I/O errors."""
_SQLITE_AWAY: Final = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
}


def is_away(error: BaseException) -> bool:
    """Whether the database was unavailable, whatever the statement was."""
    return any(
        _state(cause).startswith(_STATES_AWAY)
        or getattr(cause, "sqlite_errorcode", -1) & 0xFF in _SQLITE_AWAY
        or _is_asyncpgs(cause, "InternalClientError")  # the connection was lost in the middle of an answer
        for cause in _causes(error)
    )


def is_conflict(error: BaseException) -> bool:
    """Whether the transaction conflicted with another one and can be retried (class 40: serialization failures and
    deadlocks; also a table that was altered after a statement was prepared)."""
    return any(
        _state(cause).startswith("40") or _is_asyncpgs(cause, "InvalidCachedStatementError") for cause in _causes(error)
    )


def is_of_database(error: BaseException) -> bool:
    """Whether a database or a network raised the error or one of its causes."""
    return any(
        isinstance(cause, SQLAlchemyError | ConnectionError) or _is_asyncpgs(cause, "PostgresError", "InterfaceError")
        for cause in _causes(error)
    )


def describe(error: BaseException) -> str:
    """Describe the error in one line, without statements and their values."""
    below = getattr(error, "orig", None) or error
    lines = str(below).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no answer in time'}"


def _state(error: BaseException) -> str:
    return str(getattr(error, "sqlstate", None) or "")


def _is_asyncpgs(error: BaseException, *kinds: str) -> bool:
    asyncpg = sys.modules.get("asyncpg")  # if it is not imported, it raised nothing
    return asyncpg is not None and isinstance(error, tuple(getattr(asyncpg, kind) for kind in kinds))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and all its causes. Handlers may wrap errors, or raise groups of them."""
    seen: set[int] = set()
    left: list[BaseException] = [error]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        below = getattr(one, "orig", None), one.__cause__ or (None if one.__suppress_context__ else one.__context__)
        left += [cause for cause in below if isinstance(cause, BaseException)]
        if isinstance(one, BaseExceptionGroup):
            left += one.exceptions
