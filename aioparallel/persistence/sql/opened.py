"""One open transaction: a handler writes in it, and then its records are marked complete in it.

On PostgreSQL, the store sends its own statements to the asyncpg connection below SQLAlchemy's. Only the handler uses
SQLAlchemy. Each call through SQLAlchemy needs a greenlet, which costs as much as the statement (measured: 2,200
records/s with all six calls through SQLAlchemy, 1,000 more with only the handler's). SQLAlchemy's connection is in
autocommit mode for that, so a handler cannot end the transaction by mistake.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn, Protocol, cast

from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.sql.elements import TextClause
from sqlalchemy.util.concurrency import in_greenlet

from aioparallel.persistence.sql.database_errors import NO_ANSWER
from aioparallel.persistence.sql.schema import Schema
from aioparallel.persistence.sql.statements import Owned
from aioparallel.records.errors import ConfigurationError, ConsumerStateError
from aioparallel.records.user_errors import repr_of

logger = logging.getLogger(__name__)

__all__ = ["CompleteAlready", "Lent", "OpenTransaction", "Opening", "isolation_level_of"]

_LEVELS: Final = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
_BEGIN: Final = 5.0
"""Seconds for BEGIN, which waits only for the network."""
_END: Final = 30.0
"""Seconds for COMMIT, and for each statement before it. After that, the outcome is looked up."""
_ROLLBACK: Final = 1.0
"""Seconds for ROLLBACK. After that, the connection is closed, which has the same effect."""
_UNIQUE_VIOLATION: Final = "23505"


class CompleteAlready(Exception):
    """Some of these records are complete already."""


def isolation_level_of(engine: AsyncEngine) -> str | None:
    """Return the isolation level that the engine sets on its connections; None: the server's default."""
    level = engine.get_execution_options().get("isolation_level") or engine.dialect._on_connect_isolation_level
    return None if level is None else str(level)


class Lent(AsyncConnection):
    """A connection of the store that one handler uses until it ends. The handler must not close it: the pool would hand
    it out again inside the same transaction."""

    __slots__ = ()

    async def close(self) -> None:
        """Raise ConsumerStateError: the store closes its connections itself."""
        raise ConsumerStateError("the handler has closed its connection: the store closes it after the transaction")

    def take_back(self) -> None:
        """End the handler's use of it. A later use raises ConsumerStateError, because it would be inside another
        record's transaction."""
        self.sync_connection = None

    def _raise_for_not_started(self) -> NoReturn:
        raise ConsumerStateError("the handler of this connection has ended, and so has its transaction")


class OpenTransaction(Protocol):
    """A transaction that has begun and not ended."""

    async def add_done(self, owned: Owned, offsets: Sequence[int]) -> bool:
        """Mark these records complete. Returns False if another member owns the partition. Waits for other transactions
        that mark one of them; raises CompleteAlready if one is complete already."""

    async def done_among(self, owned: Owned, offsets: Sequence[int]) -> set[int]:
        """Return those of these offsets that are complete. It does not see open transactions."""

    async def commit(self) -> None:
        """Commit. Like all methods here, it raises one of NO_ANSWER on failure."""

    async def roll_back(self) -> None:
        """Roll back, within a second. Does nothing if the transaction has ended. Never raises."""

    @property
    def is_lost(self) -> bool:
        """Whether its connection is closed."""

    async def close(self) -> None:
        """Close the connection for good, because its server fails."""


class Opening:
    """Opens transactions on connections of one engine. ``idle``: milliseconds that a transaction may idle once it has
    locked its partition. A frozen process must not block the next owner."""

    def __init__(self, engine: AsyncEngine, schema: Schema, idle: int) -> None:
        format_table = engine.dialect.identifier_preparer.format_table
        partition, done = format_table(schema.partition), format_table(schema.done)
        self._is_postgresql = engine.dialect.name == "postgresql"
        level = isolation_level_of(engine)
        if self._is_postgresql and level not in (None, "AUTOCOMMIT", *_LEVELS):
            # SQLAlchemy accepts "REPEATABLE_READ" as well, and fails when such a connection returns to the pool.
            raise ConfigurationError(
                "SqlStore engine", level, f"must have one of {', '.join(_LEVELS)} for its isolation_level"
            )
        self._begin = f"BEGIN ISOLATION LEVEL {level}" if level and level != "AUTOCOMMIT" else "BEGIN"
        self.engine = engine
        """The engine whose connections :meth:`open` accepts."""
        if self._is_postgresql:
            self.engine = engine.execution_options(isolation_level="AUTOCOMMIT")
            self._add_done = (
                f"WITH owned AS (SELECT set_config('idle_in_transaction_session_timeout', '{idle}', true) "
                f"FROM {partition} WHERE id = $1 AND epoch = $2 FOR SHARE) "
                f"INSERT INTO {done} (partition_id, record_offset) "
                "SELECT $1, one.record_offset FROM owned, unnest($3::bigint[]) AS one (record_offset)"
            )
            self._among = (
                f"SELECT record_offset FROM {done} WHERE partition_id = $1 AND record_offset = ANY($2::bigint[])"
            )
        else:
            pool = engine.sync_engine.pool
            if not event.contains(pool, "invalidate", _let_go_of_the_file):
                event.listen(pool, "invalidate", _let_go_of_the_file)
            self._statement = text(
                f"INSERT INTO {done} (partition_id, record_offset) SELECT :id, value FROM json_each(:offsets) "
                f"WHERE EXISTS (SELECT 1 FROM {partition} WHERE id = :id AND epoch = :epoch)"
            )
            self._select = text(
                f"SELECT record_offset FROM {done} WHERE partition_id = :id "
                "AND record_offset IN (SELECT value FROM json_each(:offsets))"
            )

    async def open(self, connection: AsyncConnection) -> OpenTransaction:
        """Begin a transaction on this connection."""
        if not self._is_postgresql:
            await connection.begin()
            below: Any = (await connection.get_raw_connection()).driver_connection
            if not below.in_transaction:
                # Otherwise sqlite3 begins one at the first INSERT, and an earlier SAVEPOINT is its own transaction.
                await connection.exec_driver_sql("BEGIN IMMEDIATE")
            return _OfSqlalchemy(connection, self._statement, self._select)
        opened = _OfAsyncpg(connection, self._add_done, self._among)
        try:
            await opened.begin(self._begin)
        except BaseException:
            # Without an answer it is unknown whether it has begun. The driver only knows the last answer.
            await opened.close()
            raise
        return opened


class _OfAsyncpg:
    """A transaction on PostgreSQL."""

    def __init__(self, connection: AsyncConnection, add_done: str, among: str) -> None:
        self._connection = connection
        # The connection is open and in autocommit mode. So neither call waits, and no greenlet is needed.
        above = cast("Any", connection.sync_connection)
        self._above = above.get_transaction() or above.begin()
        self._below = above.connection.dbapi_connection.driver_connection
        self._add_done = add_done
        self._among = among

    async def begin(self, statement: str) -> None:
        """Send BEGIN."""
        await self._ask(statement, timeout=_BEGIN)

    async def add_done(self, owned: Owned, offsets: Sequence[int]) -> bool:
        _expect_open(self._above.is_active and self._below.is_in_transaction())
        try:
            return (
                await self._ask(self._add_done, owned.id, owned.epoch, offsets, timeout=_END)
                == f"INSERT 0 {len(offsets)}"
            )
        except SQLAlchemyError as error:
            if getattr(error.__cause__, "sqlstate", None) == _UNIQUE_VIOLATION:
                raise CompleteAlready from error
            raise

    async def done_among(self, owned: Owned, offsets: Sequence[int]) -> set[int]:
        with _translated():
            return {row[0] for row in await self._below.fetch(self._among, owned.id, offsets, timeout=_END)}

    async def commit(self) -> None:
        if (status := await self._ask("COMMIT", timeout=_END)) != "COMMIT":
            raise SQLAlchemyError(
                f"the transaction was rolled back (the database answered {status}): one of its "
                "statements had failed, and the handler did not raise the error"
            )

    async def roll_back(self) -> None:
        # SQLAlchemy does not know about the transaction, so the pool would hand the connection out inside it.
        is_over = False
        try:
            if self._below.is_in_transaction():
                async with asyncio.timeout(_ROLLBACK):  # the driver's timeout starts only with the statement
                    await self._ask("ROLLBACK", timeout=_ROLLBACK)
            is_over = not self._below.is_in_transaction()
        except Exception as error:  # any error: the connection is closed
            logger.debug("A transaction is not rolled back: %s", repr_of(error), extra={"action": "rollback_failed"})
        finally:
            if not is_over:
                await self.close()

    @property
    def is_lost(self) -> bool:
        return bool(self._below.is_closed())

    async def close(self) -> None:
        # Not gracefully, which would wait for the network.
        if not self._connection.closed:  # otherwise the pool may have handed it out again
            self._below.terminate()
            await self._connection.invalidate()

    async def _ask(self, statement: str, *given: object, timeout: float) -> str:
        with _translated():
            return cast("str", await self._below.execute(statement, *given, timeout=timeout))


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Raise errors of asyncpg as SQLAlchemyError."""
    import asyncpg  # noqa: PLC0415 - not needed for SQLite

    try:
        yield
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise SQLAlchemyError(f"{type(error).__name__}: {error}") from error


class _OfSqlalchemy:
    """A transaction on SQLite."""

    def __init__(self, connection: AsyncConnection, statement: TextClause, select: TextClause) -> None:
        self._connection = connection
        self._select = select
        self._transaction = connection.get_transaction()
        self._statement = statement

    async def add_done(self, owned: Owned, offsets: Sequence[int]) -> bool:
        assert self._transaction is not None
        _expect_open(self._transaction.is_active)
        values = {"id": owned.id, "epoch": owned.epoch, "offsets": str(list(offsets))}
        try:
            return (await self._connection.execute(self._statement, values)).rowcount == len(offsets)
        except IntegrityError as error:
            raise CompleteAlready from error

    async def done_among(self, owned: Owned, offsets: Sequence[int]) -> set[int]:
        values = {"id": owned.id, "offsets": str(list(offsets))}
        return {row[0] for row in await self._connection.execute(self._select, values)}

    async def commit(self) -> None:
        assert self._transaction is not None
        await self._transaction.commit()

    async def roll_back(self) -> None:
        try:
            if self._transaction is not None and self._transaction.is_active:
                await self._transaction.rollback()
        except NO_ANSWER:
            await self._connection.invalidate()

    @property
    def is_lost(self) -> bool:
        return False  # a file cannot be lost

    async def close(self) -> None:
        pass


def _let_go_of_the_file(below: Any, _record: object, _error: object) -> None:
    """End the transaction of a connection that SQLAlchemy has given up after a cancelled statement. The statement still
    runs. Its transaction locks the file as long as its cursor exists, for example in the traceback of an error."""

    async def end(driver: Any) -> None:
        with contextlib.suppress(Exception):  # it may be closed already
            await driver.interrupt()
            await driver.rollback()

    if in_greenlet():
        below.run_async(end)


def _expect_open(is_open: bool) -> None:
    if not is_open:
        raise ConsumerStateError(
            "the handler has ended its transaction itself (commit() or rollback()): the store commits it when the "
            "handler returns, and rolls it back when it raises"
        )
