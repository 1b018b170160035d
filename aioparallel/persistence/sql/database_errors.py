"""What the errors of a database say: whether it is their record's fault, and what is known after them."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

__all__ = ["NO_ANSWER", "is_away", "is_conflict", "is_databases", "told_of"]

NO_ANSWER: Final = (SQLAlchemyError, OSError, TimeoutError)
"""What may be raised where it is not known what the database has done; those of the driver are among them."""

_STATES_AWAY: Final = (
    "08", "25006", "25P03", "25P04", "26000", "42P05", "53000", "53100", "53200", "53300", "57P0", "58",
)  # fmt: skip
"""SQLSTATEs, by how they begin (PostgreSQL, appendix A): of connections, of a server that only reads (a standby), of
transactions that were left alone for too long, of prepared statements that a pooler has put before another server or
kept there, of resources, of a server that goes down, and of its files."""
_SQLITE_AWAY: Final = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
}


def is_away(error: BaseException) -> bool:
    """Whether the database could not do what was asked, whatever that was."""
    return any(
        _state(cause).startswith(_STATES_AWAY)
        or getattr(cause, "sqlite_errorcode", -1) & 0xFF in _SQLITE_AWAY
        or _is_asyncpgs(cause, "InternalClientError")  # a connection that was lost in the middle of an answer
        for cause in _causes(error)
    )


def is_conflict(error: BaseException) -> bool:
    """Whether a transaction could not go on beside others (class 40: serialisation, deadlocks; a table that was altered
    since a statement was prepared), and may be begun again."""
    return any(
        _state(cause).startswith("40") or _is_asyncpgs(cause, "InvalidCachedStatementError") for cause in _causes(error)
    )


def is_databases(error: BaseException) -> bool:
    """Whether it comes from a database, or a network."""
    return any(
        isinstance(cause, SQLAlchemyError | ConnectionError) or _is_asyncpgs(cause, "PostgresError", "InterfaceError")
        for cause in _causes(error)
    )


def told_of(error: BaseException) -> str:
    """In one line, without statements and the values in them."""
    below = getattr(error, "orig", None) or error
    lines = str(below).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no answer in time'}"


def _state(error: BaseException) -> str:
    return str(getattr(error, "sqlstate", None) or "")


def _is_asyncpgs(error: BaseException, *kinds: str) -> bool:
    asyncpg = sys.modules.get("asyncpg")  # where nobody has it, nobody raises its errors
    return asyncpg is not None and isinstance(error, tuple(getattr(asyncpg, kind) for kind in kinds))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """It, and what it was raised for: handlers raise errors of their own, and groups of them."""
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
