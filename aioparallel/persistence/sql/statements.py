"""The SQL statements on partitions and positions, for each supported database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, cast

from sqlalchemy import Table, inspect, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from aioparallel.group.client import Committed
from aioparallel.persistence.sql.schema import Schema
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition

__all__ = ["Found", "Log", "Owned", "Statements"]

_CHUNK = 5_000
"""The most rows or values in one statement. PostgreSQL and SQLite accept 32,767 parameters."""


class Owned(NamedTuple):
    """A partition with the epoch under which this member owns it."""

    id: int
    epoch: int


class Log(NamedTuple):
    """The log that a position belongs to."""

    record_offset: int
    """The highest offset that the position covers."""
    leader_epoch: int
    """The leader epoch of the record at that offset; -1: unknown."""
    topic_id: str
    """The topic id in hexadecimal; empty: unknown."""


class Found(NamedTuple):
    """What is stored for a partition."""

    position: Committed | None
    done: Sequence[int]
    """Offsets of records completed since the last fold, ascending."""
    log: Log | None = None
    """The log as it was written last. It may belong to an older position."""


class Statements:
    """The statements of one database. ``idle``: seconds that a transaction may be idle while it locks an epoch."""

    def __init__(self, engine: AsyncEngine, schema: Schema, idle: float) -> None:
        self.dialect = engine.dialect.name
        if self.dialect not in ("postgresql", "sqlite"):
            raise ConfigurationError("SqlStore engine", self.dialect, "must be of PostgreSQL or SQLite")
        self._schema = schema
        self.has_logs = True
        """Whether the table of logs exists. :meth:`version` checks that."""
        self._idle_ms = str(round(idle * 1000))
        # An array is one parameter. SQLAlchemy expands a list into one parameter for each element, 3 us each.
        done = engine.dialect.identifier_preparer.format_table(schema.done)
        among = "= ANY(:offsets)" if self.is_postgresql else "IN (SELECT value FROM json_each(:offsets))"
        self._delete = text(f"DELETE FROM {done} WHERE partition_id = :id AND record_offset {among}")

    @property
    def is_postgresql(self) -> bool:
        """Whether the database is PostgreSQL; otherwise it is SQLite."""
        return self.dialect == "postgresql"

    # -- partitions

    async def take(
        self, connection: AsyncConnection, group_id: str, partitions: Collection[TopicPartition], lock: float
    ) -> dict[TopicPartition, Owned]:
        """Raise the epoch of each. Waits up to ``lock`` seconds for open transactions of the previous owners."""
        await self._bound(connection, lock)
        table = self._schema.partition
        taken: dict[TopicPartition, Owned] = {}
        # All members use the same order, so they cannot deadlock.
        for part in _chunks(sorted(partitions)):
            rows = [{"group_id": group_id, "topic": topic, "number": number, "epoch": 1} for topic, number in part]
            made = (postgresql.insert if self.is_postgresql else sqlite.insert)(table).values(rows)
            statement = made.on_conflict_do_update(
                index_elements=[table.c.group_id, table.c.topic, table.c.number], set_={"epoch": table.c.epoch + 1}
            ).returning(table.c.topic, table.c.number, table.c.id, table.c.epoch)
            for topic, number, key, epoch in await connection.execute(statement):
                taken[TopicPartition(topic, number)] = Owned(key, epoch)
        return taken

    async def find(self, connection: AsyncConnection, owned: Mapping[TopicPartition, Owned]) -> dict[int, Found]:
        """Return what is stored for them, by id."""
        position, done = self._schema.position, self._schema.done
        found: dict[int, Found] = {}
        for part in _chunks([one.id for one in owned.values()]):
            places = {
                key: Committed(offset, offset_map)
                for key, offset, offset_map in await connection.execute(
                    select(position.c.partition_id, position.c.next_offset, position.c.offset_map).where(
                        position.c.partition_id.in_(part)
                    )
                )
            }
            logs = await self._find_logs(connection, part) if self.has_logs else {}
            complete: dict[int, list[int]] = {key: [] for key in part}
            rows = await connection.execute(
                select(done.c.partition_id, done.c.record_offset)
                .where(done.c.partition_id.in_(part))
                .order_by(done.c.partition_id, done.c.record_offset)
            )
            for key, offset in rows:
                complete[key].append(offset)
            found |= {key: Found(places.get(key), complete[key], logs.get(key)) for key in part}
        return found

    async def _find_logs(self, connection: AsyncConnection, ids: Sequence[int]) -> dict[int, Log]:
        table = self._schema.log
        columns = (table.c.partition_id, table.c.record_offset, table.c.leader_epoch, table.c.topic_id)
        rows = await connection.execute(select(*columns).where(table.c.partition_id.in_(ids)))
        return {key: Log(*log) for key, *log in rows}

    async def positions_of(
        self, connection: AsyncConnection, group_id: str, topics: Collection[str]
    ) -> set[TopicPartition]:
        """Return the partitions of these topics for which the group has a position."""
        partition, position = self._schema.partition, self._schema.position
        statement = (
            select(partition.c.topic, partition.c.number)
            .join(position, position.c.partition_id == partition.c.id)
            .where(partition.c.group_id == group_id, partition.c.topic.in_(topics))
        )
        return {TopicPartition(topic, number) for topic, number in await connection.execute(statement)}

    async def still_owned(self, connection: AsyncConnection, owned: Collection[Owned], lock: float) -> set[Owned]:
        """Return those still owned, locked until the transaction ends. Waits up to ``lock`` seconds for a take-over."""
        await self._bound(connection, lock)
        table = self._schema.partition
        still: set[Owned] = set()
        for part in _chunks(sorted(owned)):
            statement = select(table.c.id, table.c.epoch).where(table.c.id.in_([one.id for one in part]))
            if self.is_postgresql:
                # The same order as in a take-over, which sorts by Unicode.
                order = (table.c.topic.collate("C"), table.c.number)
                statement = statement.order_by(*order).with_for_update(read=True)
            still |= {Owned(*row) for row in await connection.execute(statement)} & set(part)
        return still

    async def fold(
        self,
        connection: AsyncConnection,
        positions: Mapping[Owned, Committed],
        folded: Mapping[Owned, Sequence[int]],
        logs: Mapping[Owned, Log],
    ) -> None:
        """Write positions and their logs, and delete the rows that the positions cover."""
        places = [
            {"partition_id": one.id, "next_offset": committed.offset, "offset_map": committed.metadata}
            for one, committed in positions.items()
        ]
        await self._put(connection, self._schema.position, places)
        if self.has_logs:
            await self._put(
                connection, self._schema.log, [{"partition_id": one.id, **log._asdict()} for one, log in logs.items()]
            )
        for one, offsets in folded.items():
            for chunk in _chunks(offsets):
                await connection.execute(self._delete, {"id": one.id, "offsets": self._array(chunk)})

    async def _put(self, connection: AsyncConnection, table: Table, rows: Sequence[Mapping[str, object]]) -> None:
        """Insert or replace one row for each partition."""
        for part in _chunks(rows):
            made = (postgresql.insert if self.is_postgresql else sqlite.insert)(table).values(part)
            values = {name: made.excluded[name] for name in part[0] if name != "partition_id"}
            await connection.execute(made.on_conflict_do_update(index_elements=[table.c.partition_id], set_=values))

    async def _bound(self, connection: AsyncConnection, lock: float) -> None:
        """Set how long to wait for locks, and how long a frozen process may hold them. Call it before locking."""
        if self.is_postgresql:
            await connection.execute(
                text(
                    "SELECT set_config('lock_timeout', :lock, true), "
                    "set_config('idle_in_transaction_session_timeout', :idle, true)"
                ),
                {"lock": str(max(1, round(lock * 1000))), "idle": self._idle_ms},
            )

    def _array(self, numbers: Sequence[int]) -> object:
        return list(numbers) if self.is_postgresql else str(list(numbers))

    async def version(self, connection: AsyncConnection) -> int | None:
        """Return the version of the tables; None if none is stored. Raises the database's error if they do not exist or
        cannot be read."""
        version, log = self._schema.version, self._schema.log
        found = await connection.execute(select(version.c.value).where(version.c.name == "version"))
        value = cast("int | None", found.scalar())
        self.has_logs = await connection.run_sync(lambda sync: inspect(sync).has_table(log.name, schema=log.schema))
        if self.has_logs:
            await connection.execute(select(log.c.partition_id).limit(1))
        return value


def _chunks(items: Sequence[Any]) -> list[Sequence[Any]]:
    return [items[begin : begin + _CHUNK] for begin in range(0, len(items), _CHUNK)]
