"""One open transaction, in which a handler writes and which then says that its records are complete.

On PostgreSQL it is begun, asked and committed on asyncpg's connection itself, below SQLAlchemy's, which only the
handler uses: each call through SQLAlchemy costs a greenlet of its own, as much as the statement (measured: 2,200
records/s with all six calls through it, 1,000 more with those of the handler alone). SQLAlchemy's connection is in its
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
"""Seconds for BEGIN, which waits for nothing but the network."""
_END: Final = 30.0
"""Seconds for COMMIT, and for each statement before it; then it is asked what became of it."""
_ROLLBACK: Final = 1.0
"""Seconds for ROLLBACK. Then the connection is closed, which does the same."""
_UNIQUE_VIOLATION: Final = "23505"


class CompleteAlready(Exception):
    """Some of these records are complete already."""


def isolation_level_of(engine: AsyncEngine) -> str | None:
    """What its connections are asked to have; None: the server's own."""
    level = engine.get_execution_options().get("isolation_level") or engine.dialect._on_connect_isolation_level
    return None if level is None else str(level)


class Lent(AsyncConnection):
    """A store's connection, for one handler and until that has ended, which must not close it: whoever had it next
    would be inside the same transaction."""

    __slots__ = ()

    async def close(self) -> None:
        """Refused: raises ConsumerStateError."""
        raise ConsumerStateError("the handler has closed its connection, which is the store's, with its transaction")

    def take_back(self) -> None:
        """The handler has ended: whoever uses it now would be inside another record's transaction, and gets a
        ConsumerStateError."""
        self.sync_connection = None

    def _raise_for_not_started(self) -> NoReturn:
        raise ConsumerStateError("the handler of this connection has ended, and with it their transaction")


class OpenTransaction(Protocol):
    """Begun, and not ended."""

    async def add_done(self, owned: Owned, offsets: Sequence[int]) -> bool:
        """These records are complete with it. False: the partition is somebody else's. Waits for a transaction that
        makes one of them complete; raises CompleteAlready where one is."""

    async def done_among(self, owned: Owned, offsets: Sequence[int]) -> set[int]:
        """Those of these records that are complete, by transactions which have ended."""

    async def commit(self) -> None:
        """End it. Raises one of NO_ANSWER, as everything here does."""

    async def roll_back(self) -> None:
        """End it with nothing written, within a second. Does nothing where it has ended; raises nothing."""

    @property
    def is_lost(self) -> bool:
        """Whether its connection is closed."""

    async def close(self) -> None:
        """Close its connection, and let nobody have it again: it leads to a server that does not do what it is
        asked."""


class Opening:
    """Opens transactions on connections of one engine. ``idle``: milliseconds that one which has been asked for its
    partition may be left alone: a process that is frozen there must not hold up its successor."""

    def __init__(self, engine: AsyncEngine, schema: Schema, idle: int) -> None:
        format_table = engine.dialect.identifier_preparer.format_table
        partition, done = format_table(schema.partition), format_table(schema.done)
        self._is_postgresql = engine.dialect.name == "postgresql"
        level = isolation_level_of(engine)
        if self._is_postgresql and level not in (None, "AUTOCOMMIT", *_LEVELS):
            # SQLAlchemy takes "REPEATABLE_READ" as well, and fails when such a connection is given back.
            raise ConfigurationError(
                "SqlStore engine", level, f"must have one of {', '.join(_LEVELS)} for its isolation_level"
            )
        self._begin = f"BEGIN ISOLATION LEVEL {level}" if level and level != "AUTOCOMMIT" else "BEGIN"
        self.engine = engine
        """Whose connections may be opened."""
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
        """Begin one."""
        if not self._is_postgresql:
            await connection.begin()
            below: Any = (await connection.get_raw_connection()).driver_connection
            if not below.in_transaction:
                # Or sqlite3 would begin one before the first INSERT, and a SAVEPOINT before that be one of its own.
                await connection.exec_driver_sql("BEGIN IMMEDIATE")
            return _OfSqlalchemy(connection, self._statement, self._select)
        opened = _OfAsyncpg(connection, self._add_done, self._among)
        try:
            await opened.begin(self._begin)
        except BaseException:
            # Without an answer nobody knows whether it has begun: the driver tells what it has heard last.
            await opened.close()
            raise
        return opened


class _OfAsyncpg:
    """Of PostgreSQL."""

    def __init__(self, connection: AsyncConnection, add_done: str, among: str) -> None:
        self._connection = connection
        # The connection was made already, and begins nothing: so neither waits, which would need a greenlet.
        above = cast("Any", connection.sync_connection)
        self._above = above.get_transaction() or above.begin()
        self._below = above.connection.dbapi_connection.driver_connection
        self._add_done = add_done
        self._among = among

    async def begin(self, statement: str) -> None:
        """Begin it."""
        await self._ask(statement, timeout=_BEGIN)

    async def add_done(self, owned: Owned, offsets: Sequence[int]) -> bool:
        """See :class:`OpenTransaction`."""
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
        """See :class:`OpenTransaction`."""
        with _translated():
            return {row[0] for row in await self._below.fetch(self._among, owned.id, offsets, timeout=_END)}

    async def commit(self) -> None:
        """See :class:`OpenTransaction`."""
        if (status := await self._ask("COMMIT", timeout=_END)) != "COMMIT":
            raise SQLAlchemyError(
                f"the transaction was rolled back (the database says {status}): one of its "
                "statements had failed, and its error was not raised"
            )

    async def roll_back(self) -> None:
        """See :class:`OpenTransaction`. SQLAlchemy knows nothing of it: given back as it is, the connection's next user
        would be inside."""
        is_over = False
        try:
            if self._below.is_in_transaction():
                async with asyncio.timeout(_ROLLBACK):  # the driver's own does not begin before the statement does
                    await self._ask("ROLLBACK", timeout=_ROLLBACK)
            is_over = not self._below.is_in_transaction()
        except Exception as error:  # whatever the driver says: it is not given back
            logger.debug("A transaction is not rolled back: %s", repr_of(error), extra={"action": "rollback_failed"})
        finally:
            if not is_over:
                await self.close()

    @property
    def is_lost(self) -> bool:
        """See :class:`OpenTransaction`."""
        return bool(self._below.is_closed())

    async def close(self) -> None:
        """See :class:`OpenTransaction`. At once: a polite end would wait for the network."""
        if not self._connection.closed:  # else it is somebody else's by now
            self._below.terminate()
            await self._connection.invalidate()

    async def _ask(self, statement: str, *given: object, timeout: float) -> str:
        with _translated():
            return cast("str", await self._below.execute(statement, *given, timeout=timeout))


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """asyncpg's errors as those of SQLAlchemy."""
    import asyncpg  # noqa: PLC0415 - who uses SQLite needs none

    try:
        yield
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise SQLAlchemyError(f"{type(error).__name__}: {error}") from error


class _OfSqlalchemy:
    """Of SQLite."""

    def __init__(self, connection: AsyncConnection, statement: TextClause, select: TextClause) -> None:
        self._connection = connection
        self._select = select
        self._transaction = connection.get_transaction()
        self._statement = statement

    async def add_done(self, owned: Owned, offsets: Sequence[int]) -> bool:
        """See :class:`OpenTransaction`."""
        assert self._transaction is not None
        _expect_open(self._transaction.is_active)
        values = {"id": owned.id, "epoch": owned.epoch, "offsets": str(list(offsets))}
        try:
            return (await self._connection.execute(self._statement, values)).rowcount == len(offsets)
        except IntegrityError as error:
            raise CompleteAlready from error

    async def done_among(self, owned: Owned, offsets: Sequence[int]) -> set[int]:
        """See :class:`OpenTransaction`."""
        values = {"id": owned.id, "offsets": str(list(offsets))}
        return {row[0] for row in await self._connection.execute(self._select, values)}

    async def commit(self) -> None:
        """See :class:`OpenTransaction`."""
        assert self._transaction is not None
        await self._transaction.commit()

    async def roll_back(self) -> None:
        """See :class:`OpenTransaction`."""
        try:
            if self._transaction is not None and self._transaction.is_active:
                await self._transaction.rollback()
        except NO_ANSWER:
            await self._connection.invalidate()

    @property
    def is_lost(self) -> bool:
        """See :class:`OpenTransaction`. A file is there."""
        return False

    async def close(self) -> None:
        """See :class:`OpenTransaction`."""


def _let_go_of_the_file(below: Any, _record: object, _error: object) -> None:
    """SQLAlchemy gives a connection up whose statement was cancelled: that still runs, and as long as its cursor is
    kept, in the traceback of an error perhaps, its transaction locks the file."""

    async def end(driver: Any) -> None:
        with contextlib.suppress(Exception):  # it is closed already
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
