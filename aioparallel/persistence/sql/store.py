"""SqlStore, the public class, and its handlers with an open transaction."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar, cast

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.pool import QueuePool, StaticPool

from aioparallel.config.extension import ConsumerContext, Extension
from aioparallel.config.unknown_options import refuses_others
from aioparallel.delivery.outputs import outputs_in
from aioparallel.delivery.producer import Producer, sent
from aioparallel.engine.sources import Source
from aioparallel.group.committer import through
from aioparallel.group.committing import CommitStrategy, GroupContext
from aioparallel.handlers.batches import Batch
from aioparallel.observe.health import Problem
from aioparallel.observe.stats import Stats
from aioparallel.persistence.sql.database_errors import NO_ANSWER, describe, is_away
from aioparallel.persistence.sql.doubt import Fenced, InDoubt, PartlyDone, are_done
from aioparallel.persistence.sql.kept_connections import Connections
from aioparallel.persistence.sql.lag_offsets import LagOffsets
from aioparallel.persistence.sql.opened import CompleteAlready, Lent, Opening, OpenTransaction, isolation_level_of
from aioparallel.persistence.sql.outages import AWAY, SOON, DatabaseOutages
from aioparallel.persistence.sql.schema import DEFAULT_PREFIX, VERSION, Schema, StoreNotReady
from aioparallel.persistence.sql.statements import Statements
from aioparallel.persistence.sql.taking import Partitions, Taken
from aioparallel.records.errors import (
    ConfigurationError,
    InvalidOutput,
    NotAHandler,
    NotToBlame,
    ProduceFailed,
    RetryLater,
)
from aioparallel.records.record import Outgoing, Record, TopicPartition
from aioparallel.records.user_errors import repr_of

__all__ = ["SqlStore"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
AnyRecord = Record[Any, Any]
Offsets = Mapping[TopicPartition, Sequence[int]]
_OfIt = tuple[Sequence[AnyRecord], Offsets, Mapping[TopicPartition, Taken]]
"""The records of one transaction, and for each partition their offsets and its state."""
SqlHandler = Callable[[T, AsyncConnection], Awaitable[object]]

_FROZEN: Final = 2.0
"""Seconds for which a process that freezes between its last statement and COMMIT blocks its partition."""
_MAP_LIMIT: Final = 64 * 1024 * 1024
"""The most characters of an offset map. A column holds more than Kafka's offset metadata."""
_FINISHING: Final = 10.0
"""Seconds that a cancelled handler waits for the end of its COMMIT."""
_GIVING_UP: Final = 2.0
"""Seconds after that for closing its connection."""


@refuses_others
class SqlStore(Extension):
    """Stores positions in a database: each record is marked complete in the transaction of its results.

    Pass it to a consumer as ``commits=store``, and run ``store.handler(handle)`` with ``async def handle(record,
    connection)``. Each consumer needs its own store. ``aioparallel store init`` or :meth:`create_tables` creates the
    tables.

    ``engine``: an AsyncEngine for PostgreSQL (asyncpg) or SQLite (aiosqlite). For PostgreSQL its pool must have one
    connection more than ``max_concurrency``. ``prefix``: the prefix of the table names. ``schema``: the database schema
    of the tables; None: the default of the connections.
    """

    def __init__(self, engine: AsyncEngine, *, prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> None:
        if not isinstance(cast("object", engine), AsyncEngine):
            raise ConfigurationError("SqlStore engine", engine, "must be an AsyncEngine: create_async_engine(...)")
        if isinstance(engine.pool, StaticPool):
            raise ConfigurationError(
                "SqlStore engine",
                engine,
                "has a single connection, and handlers and folds need their own: use a file for SQLite, and omit "
                "poolclass=StaticPool",
            )
        if engine.dialect.name == "sqlite" and isolation_level_of(engine) == "AUTOCOMMIT":
            raise ConfigurationError("SqlStore engine", engine, "must not be in AUTOCOMMIT for SQLite")
        self._engine = engine
        self._schema = Schema(prefix, schema)
        self._statements = Statements(engine, self._schema, _FROZEN)
        self._opening = Opening(engine, self._schema, round(_FROZEN * 1000))
        self._producer: Producer | None = None
        self._partitions: Partitions | None = None
        self._lag: LagOffsets | None = None
        self._outages = DatabaseOutages(
            f"{self._statements.dialect} {engine.url.host or engine.url.database or ''}".strip()
        )
        self._connections = Connections(self._opening, self._outages)
        self._has_handlers = False
        # SQLite has one writer at a time. Waiting for its lock has a timeout and no order, so writers queue here.
        self._turn = contextlib.nullcontext() if self._statements.is_postgresql else asyncio.Lock()

    def __repr__(self) -> str:
        return f"SqlStore({self._engine.url.render_as_string(hide_password=True)!r}, prefix={self._schema.prefix!r})"

    async def create_tables(self) -> None:
        """Create the missing tables."""
        await self._schema.create(self._engine)

    # -- the consumer's side ----------------------------------------------------------------------------

    def attach(self, consumer: ConsumerContext) -> None:
        """Check that the pool has a connection for each handler."""
        self._producer = consumer.producer
        self.check_max_concurrency(consumer.options.max_concurrency)

    def check_max_concurrency(self, most: int) -> None:
        """Check that the pool has a connection for each handler."""
        connections, needed = self._most_connections(), most + 1
        if self._statements.is_postgresql and connections is not None and connections < needed:
            raise ConfigurationError(
                "max_concurrency",
                most,
                f"needs {needed} connections, and the engine's pool has at most {connections}: lower it to "
                f"{connections - 1}, or create the engine with pool_size={needed}",
            )

    def _most_connections(self) -> int | None:
        """Return the limit of the pool; None: no limit."""
        pool = self._engine.pool
        if not isinstance(pool, QueuePool) or pool._max_overflow < 0:
            return None
        return pool.size() + pool._max_overflow

    async def check(self, partitions: Collection[TopicPartition], timeout: float) -> None:
        """Check that the tables can be read. Raises StoreNotReady."""
        where = self._engine.url.render_as_string(hide_password=True)
        try:
            # The caller's timeout would blame the brokers, so this one ends earlier.
            async with asyncio.timeout(timeout * 0.8), self._engine.connect() as connection:
                found = await self._statements.version(connection)
        except SQLAlchemyError as error:
            if is_away(error):
                raise StoreNotReady(f"the database at {where} is unavailable: {describe(error)}") from None
            raise StoreNotReady(
                f"the tables of the store cannot be read at {where}: {error.__class__.__name__}: "
                f"{getattr(error, 'orig', error)}. Create them with `aioparallel store init {where}`, or print the SQL "
                "with its --sql option"
            ) from None  # the message has all, and the traces of the driver have a hundred lines
        except RuntimeError as error:
            raise StoreNotReady(
                f"the engine of {where} has connections of another event loop, which this one cannot use: create "
                "the engine in the loop that runs the consumer, or `await engine.dispose()` at the end of the other"
            ) from error
        except OSError as error:
            raise StoreNotReady(
                f"no database answered at {where} within {timeout:g} s ({str(error) or 'no answer'}): check the "
                "engine's URL, and the server"
            ) from None
        if found != VERSION:
            raise StoreNotReady(f"the tables at {where} are of version {found}, and this needs {VERSION}")
        if not self._statements.has_logs:
            logger.warning(
                "The table %s does not exist: a topic that was deleted and created again, or a truncated log, is only "
                "detected if it ends before the stored position. Create the table with `aioparallel store init`",
                self._schema.log,
                extra={"action": "no_log_table"},
            )

    async def start(self) -> None:
        """Warn if no handler writes in the transactions of the store."""
        if not self._has_handlers:
            logger.warning(
                "No handler was made with handler() of the SqlStore. What a handler writes to the database is then not "
                "in the transaction that marks its record complete: after a crash between the two it is written again",
                extra={"action": "no_store_handler"},
            )

    def commit_strategy(self, group: GroupContext) -> CommitStrategy:
        """Keep positions in the database."""
        self._lag = LagOffsets(group.client, group.assignments)
        self._partitions = Partitions(
            self._engine,
            self._statements,
            group.group_id,
            group.client,
            self._lag,
            self._turn,
            self._on_trouble,
            self._outages.answered,
        )
        return through(
            self._partitions, group, longest_map=_MAP_LIMIT, refuses_unreadable_maps=True, refuses_resets=True
        )

    async def work(self) -> None:
        """Repeat what the group was not told."""
        if self._lag is not None:
            await self._lag.run()

    async def _on_trouble(self, error: Exception) -> None:
        self._outages.away(error)
        await self._connections.give_back()

    async def close(self) -> None:
        """Close idle connections. The caller's engine stays open."""
        await self._connections.give_back()

    def problems(self) -> Sequence[Problem]:
        """Report an outage of the database."""
        return self._outages.problems()

    def stats(self, found: Stats) -> Stats:
        """Name the table of positions."""
        return replace(found, positions_in=f"{self._statements.dialect}: {self._schema.position}")

    # -- handlers ---------------------------------------------------------------------------------------

    def handler(self, handle: SqlHandler[Any]) -> Callable[[Any], Awaitable[None]]:
        """Make a handler of records, or of batches, that runs ``handle`` in a database transaction.

        ``handle(record, connection)`` gets a connection inside an open transaction. The transaction is committed when
        ``handle`` returns and rolled back when it raises; ``handle`` must not end it. The transaction also marks the
        records complete. Returned outputs are produced and acknowledged before the commit (at least once). Inside
        :func:`~aioparallel.batches`, the records of a batch share one transaction. Raises ConfigurationError if
        ``handle`` does not accept two arguments.
        """
        _check(handle)
        self._has_handlers = True

        @functools.wraps(handle)
        async def handled(item: Any) -> None:
            records: Sequence[AnyRecord] = [item] if isinstance(item, Record) else list(item)
            # This may wait for a fold, so it comes before taking a turn or connection that the fold needs.
            offsets = _by_partition(records)
            taken = await self._taken_of(offsets)
            async with self._turn:
                connection, transaction = await self._connections.begun()
                try:
                    await self._run(handle, item, (records, offsets, taken), connection, transaction)
                except BaseException:
                    await connection.close()
                    raise
                await self._connections.keep(connection)

        del handled.__wrapped__  # it takes one argument, not two
        return handled

    async def _run(
        self,
        handle: SqlHandler[Any],
        item: Any,
        of_it: _OfIt,
        connection: AsyncConnection,
        transaction: OpenTransaction,
    ) -> None:
        records, offsets, taken = of_it
        try:
            value = await self._handled(handle, item, connection)
            if isinstance(item, Batch):
                left = _left_in(item, records)
                if len(left) < len(records):
                    records, offsets = left, _by_partition(left)
            await self._produced(records, value)
        except BaseException as error:
            is_lost = await _rolled_back(transaction, error)
            if isinstance(error, RetryLater) or not isinstance(error, Exception):
                raise
            self._raise_later(error, of_it, is_lost=is_lost)
            raise
        try:
            await _not_cancelled(self._finish(connection, transaction, (records, offsets, taken)))
        except PartlyDone as found:
            for record in records:
                if (record.topic_partition, record.offset) in found.done:
                    taken[record.topic_partition].done.append(record.offset)
                else:
                    cast("Batch[AnyRecord]", item).fail(record, NotToBlame(SOON))

    async def _handled(self, handle: SqlHandler[Any], item: Any, connection: AsyncConnection) -> object:
        lent = Lent(self._opening.engine, connection.sync_connection)
        try:
            result: object = handle(item, lent)
            if not isinstance(result, Awaitable):
                raise NotAHandler(
                    f"the handler returned {type(result).__name__}, not an awaitable: it must be `async def`"
                )
            return await result
        finally:
            lent.take_back()

    async def _taken_of(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, Taken]:
        assert self._partitions is not None, "the store has no consumer: ParallelConsumer(commits=store)"
        found: dict[TopicPartition, Taken] = {}
        for partition in partitions:
            taken = self._partitions.taken.get(partition)
            if taken is None:
                raise Fenced(partition)
            await taken.is_stored.wait()
            found[partition] = taken
        return found

    async def _finish(
        self,
        connection: AsyncConnection,
        transaction: OpenTransaction,
        of_it: _OfIt,
    ) -> None:
        _, offsets, taken = of_it
        try:
            await self._add_done(transaction, offsets, taken)
            await transaction.commit()
        except BaseException as error:
            is_lost = await _rolled_back(transaction, error)
            if not isinstance(error, (CompleteAlready, *NO_ANSWER)):
                raise
            # This COMMIT or an earlier one may have succeeded without an answer. The look-up needs another connection.
            # This one is closed first, because all handlers may look up at once.
            await connection.close()
            if not await are_done(self._opening, offsets, taken, self._outages.away):
                if isinstance(error, OSError):  # includes TimeoutError; the outage is not noted yet
                    raise self._outages.away(error) from error
                self._raise_later(error, of_it, is_lost=is_lost)
                raise
            logger.info(
                "A COMMIT without an answer was carried out: %s", repr_of(error), extra={"action": "commit_settled"}
            )
        self._outages.answered()
        for partition, some in offsets.items():
            taken[partition].done += some
            for offset in some if taken[partition].conflicts else ():
                taken[partition].conflicts.pop(offset, None)

    def _raise_later(self, error: Exception, of_it: _OfIt, *, is_lost: bool) -> None:
        """Raise an error that retries the record, unless the record caused the error."""
        records, _, taken = of_it
        if records:
            first = records[0]
            again = self._outages.later(error, first, taken[first.topic_partition], is_lost=is_lost)
            if again is not None:
                raise again from error

    @staticmethod
    async def _add_done(transaction: OpenTransaction, offsets: Offsets, taken: Mapping[TopicPartition, Taken]) -> None:
        for partition, of_it in sorted(offsets.items()):
            if not await transaction.add_done(taken[partition].owned, of_it):
                raise Fenced(partition)

    # -- outputs ----------------------------------------------------------------------------------------

    async def _produced(self, records: Sequence[AnyRecord], value: object) -> None:
        """Produce the returned outputs, and wait until they are acknowledged."""
        outputs: list[Outgoing] = []
        if isinstance(value, Mapping):
            left = set(records)
            for record, of_it in value.items():
                if record in left:
                    outputs += outputs_in(record, of_it) or ()
        elif records:
            outputs += outputs_in(records[0], value) or ()
        if not outputs:
            return
        if self._producer is None:
            raise InvalidOutput("the handler returned outputs, and there is no producer: pass one with the client")
        result = await sent(self._producer, outputs)
        if isinstance(result, ProduceFailed):
            raise result


async def _not_cancelled(finishing: Coroutine[Any, Any, None]) -> None:
    """Await the end of a COMMIT despite cancellation, for some seconds. The handler has returned, so it succeeds if its
    COMMIT does; a cancelled COMMIT would be in doubt."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(finishing, name="aioparallel-commit")
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError as error:
        cancelled, ends = error, loop.time() + _FINISHING
    else:
        return
    await _until(task, ends)
    if not task.done():
        task.cancel()
        await _until(task, loop.time() + _GIVING_UP)
        raise InDoubt(AWAY) from cancelled
    task.result()


async def _until(task: asyncio.Task[None], ends: float) -> None:
    """Wait for the end of the task until ``ends`` (the event loop's time), despite cancellation."""
    loop = asyncio.get_running_loop()
    while not task.done() and (left := ends - loop.time()) > 0:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task], timeout=left)


async def _rolled_back(transaction: OpenTransaction, error: BaseException) -> bool:
    """Roll back. Returns whether the connection was lost before, so not because the rollback failed."""
    is_lost = transaction.is_lost
    await transaction.roll_back()
    if is_away(error):
        await transaction.close()
    return is_lost


def _check(handle: SqlHandler[Any]) -> None:
    try:
        inspect.signature(handle).bind(None, None)
    except TypeError as error:
        raise ConfigurationError(
            "SqlStore handler",
            handle,
            f"must be an async def function of a record, or a batch, and a connection: {error}",
        ) from None


def _by_partition(records: Iterable[AnyRecord]) -> dict[TopicPartition, list[int]]:
    """Group offsets by partition. Grouping by source costs a fourth of making a TopicPartition for each record."""
    offsets: dict[Source, list[int]] = {}
    for record in records:
        source = record._source
        if source in offsets:
            offsets[source].append(record.offset)
        else:
            offsets[source] = [record.offset]
    # A partition has one source at a time, and records of a batch start together. So no two sources share one.
    return {cast("TopicPartition", source.name): of_it for source, of_it in offsets.items()}


def _left_in(batch: Batch[AnyRecord], records: Collection[AnyRecord]) -> list[AnyRecord]:
    """Return the records of a batch that its transaction marks complete."""
    failed = batch._call.failures
    if behind := batch._call.blocked(failed) - failed.keys():
        raise InvalidOutput(
            f"{len(behind)} records of the batch follow a failed record of their key and run again, but their writes "
            "are in the same transaction: it is rolled back, and the records run one by one"
        )
    return [record for place, record in enumerate(records) if place not in failed]
