"""What is asked of the database about partitions and positions, for each kind of it."""

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
"""Rows or values in one statement; PostgreSQL takes 32,767 parameters, SQLite as many."""


class Owned(NamedTuple):
    """A partition as this member has taken it over."""

    id: int
    epoch: int


class Log(NamedTuple):
    """Which log a position belongs to."""

    record_offset: int
    """The highest offset that the position speaks of."""
    leader_epoch: int
    """The leader epoch of that record; -1: unknown."""
    topic_id: str
    """In hexadecimal; empty: unknown."""


class Found(NamedTuple):
    """What is stored of a partition."""

    position: Committed | None
    done: Sequence[int]
    """Records that are complete beside that, ascending."""
    log: Log | None = None
    """As it was written last, perhaps with an older position."""


class Statements:
    """Of one database. ``idle``: seconds that a transaction which has asked for the epoch may be left alone."""

    def __init__(self, engine: AsyncEngine, schema: Schema, idle: float) -> None:
        self.dialect = engine.dialect.name
        if self.dialect not in ("postgresql", "sqlite"):
            raise ConfigurationError("SqlStore engine", self.dialect, "must be of PostgreSQL or SQLite")
        self._schema = schema
        self.has_logs = True
        """Whether the table of logs is there: :meth:`version` looks."""
        self._idle_ms = str(round(idle * 1000))
        # Arrays as one parameter: SQLAlchemy writes a list as one for each of its elements, 3 us each.
        done = engine.dialect.identifier_preparer.format_table(schema.done)
        among = "= ANY(:offsets)" if self.is_postgresql else "IN (SELECT value FROM json_each(:offsets))"
        self._delete = text(f"DELETE FROM {done} WHERE partition_id = :id AND record_offset {among}")

    @property
    def is_postgresql(self) -> bool:
        """Else it is SQLite."""
        return self.dialect == "postgresql"

    # -- partitions

    async def take(
        self, connection: AsyncConnection, group_id: str, partitions: Collection[TopicPartition], lock: float
    ) -> dict[TopicPartition, Owned]:
        """The next epoch of each. Waits for the transactions of their owners before, at most ``lock`` seconds."""
        await self._bound(connection, lock)
        table = self._schema.partition
        taken: dict[TopicPartition, Owned] = {}
        # In one order, or two members could wait for each other.
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
        """Where they stand, by id."""
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
            beside: dict[int, list[int]] = {key: [] for key in part}
            rows = await connection.execute(
                select(done.c.partition_id, done.c.record_offset)
                .where(done.c.partition_id.in_(part))
                .order_by(done.c.partition_id, done.c.record_offset)
            )
            for key, offset in rows:
                beside[key].append(offset)
            found |= {key: Found(places.get(key), beside[key], logs.get(key)) for key in part}
        return found

    async def _find_logs(self, connection: AsyncConnection, ids: Sequence[int]) -> dict[int, Log]:
        table = self._schema.log
        columns = (table.c.partition_id, table.c.record_offset, table.c.leader_epoch, table.c.topic_id)
        rows = await connection.execute(select(*columns).where(table.c.partition_id.in_(ids)))
        return {key: Log(*log) for key, *log in rows}

    async def positions_of(
        self, connection: AsyncConnection, group_id: str, topics: Collection[str]
    ) -> set[TopicPartition]:
        """The partitions of these topics for which the group has a position."""
        partition, position = self._schema.partition, self._schema.position
        statement = (
            select(partition.c.topic, partition.c.number)
            .join(position, position.c.partition_id == partition.c.id)
            .where(partition.c.group_id == group_id, partition.c.topic.in_(topics))
        )
        return {TopicPartition(topic, number) for topic, number in await connection.execute(statement)}

    async def still_owned(self, connection: AsyncConnection, owned: Collection[Owned], lock: float) -> set[Owned]:
        """Those of them that are, until the transaction ends. Waits at most ``lock`` seconds for who takes one over."""
        await self._bound(connection, lock)
        table = self._schema.partition
        still: set[Owned] = set()
        for part in _chunks(sorted(owned)):
            statement = select(table.c.id, table.c.epoch).where(table.c.id.in_([one.id for one in part]))
            if self.is_postgresql:
                # In the order of those who take over, which is that of Unicode.
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
        """Write positions and the logs that they belong to, and take out the rows that they say."""
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
        """One row for each partition, new or in the place of what is there."""
        for part in _chunks(rows):
            made = (postgresql.insert if self.is_postgresql else sqlite.insert)(table).values(part)
            values = {name: made.excluded[name] for name in part[0] if name != "partition_id"}
            await connection.execute(made.on_conflict_do_update(index_elements=[table.c.partition_id], set_=values))

    async def _bound(self, connection: AsyncConnection, lock: float) -> None:
        """Before anything is locked: how long that is waited for, and how long a process that is frozen then, here too,
        may hold it."""
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
        """Of the tables; None: they are not there. Raises what the database says where they are not, or must not be
        read."""
        version, log = self._schema.version, self._schema.log
        found = await connection.execute(select(version.c.value).where(version.c.name == "version"))
        value = cast("int | None", found.scalar())
        self.has_logs = await connection.run_sync(lambda sync: inspect(sync).has_table(log.name, schema=log.schema))
        if self.has_logs:
            await connection.execute(select(log.c.partition_id).limit(1))
        return value


def _chunks(items: Sequence[Any]) -> list[Sequence[Any]]:
    return [items[begin : begin + _CHUNK] for begin in range(0, len(items), _CHUNK)]
