"""The tables of a store.

Four, and one for the version. ``{prefix}partition`` has one row for each partition of each group, with the epoch of
its owner; ``{prefix}position`` its offset and offset map, as they were folded last; ``{prefix}done`` the records that
are complete since, each written in the transaction of its results. The first two are apart because of their locks:
each record's transaction holds a shared one on the epoch, which folding must not wait for. ``{prefix}log`` tells which
log a position belongs to. Older versions write positions without it, and a database may lack it.
"""

from __future__ import annotations

import re
from typing import Final, cast

from sqlalchemy import BigInteger, Column, Identity, Integer, MetaData, String, Table, Text, UniqueConstraint, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.schema import CreateTable

from aioparallel.records.errors import ClientError, ConfigurationError

__all__ = ["DEFAULT_PREFIX", "Schema", "StoreNotReady", "schema_statements"]

DEFAULT_PREFIX: Final = "aioparallel_"
_LONGEST: Final = 50
"""Letters of a prefix: PostgreSQL cuts names after 63 bytes."""
_MAKING: Final = 0x61696F70617261
"""Of the advisory lock of who makes tables: CREATE TABLE IF NOT EXISTS fails beside another one."""
VERSION: Final = 1
_DIALECTS: Final[dict[str, type[Dialect]]] = {"postgresql": postgresql.dialect, "sqlite": sqlite.dialect}


class StoreNotReady(ClientError):
    """The tables are not there, or are of another version."""


class Schema:
    """The tables below one prefix. ``schema``: the database's schema they are in; None: the connection's own."""

    def __init__(self, prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> None:
        if not isinstance(cast("object", prefix), str) or not re.fullmatch(r"[A-Za-z0-9_]+", prefix):
            raise ConfigurationError("SqlStore prefix", prefix, "must be ASCII letters, digits and _")
        if len(prefix) > _LONGEST:
            raise ConfigurationError("SqlStore prefix", prefix, f"must have at most {_LONGEST} letters")
        if schema is not None and (not schema or ":" in schema):
            raise ConfigurationError("SqlStore schema", schema, "must be a name, without a colon, or None")
        self.prefix = prefix
        self.metadata = MetaData(schema=schema)
        big = BigInteger().with_variant(Integer, "sqlite")
        self.partition = Table(
            f"{prefix}partition",
            self.metadata,
            Column("id", big, Identity(), primary_key=True),
            Column("group_id", Text, nullable=False),
            Column("topic", Text, nullable=False),
            Column("number", Integer, nullable=False),
            Column("epoch", BigInteger, nullable=False),
            UniqueConstraint("group_id", "topic", "number"),
        )
        self.position = Table(
            f"{prefix}position",
            self.metadata,
            Column("partition_id", big, primary_key=True, autoincrement=False),
            Column("next_offset", BigInteger, nullable=False),
            Column("offset_map", Text, nullable=False),
        )
        self.done = Table(
            f"{prefix}done",
            self.metadata,
            Column("partition_id", big, primary_key=True, autoincrement=False),
            Column("record_offset", BigInteger, primary_key=True, autoincrement=False),
        )
        self.log = Table(
            f"{prefix}log",
            self.metadata,
            Column("partition_id", big, primary_key=True, autoincrement=False),
            Column("record_offset", BigInteger, nullable=False),
            Column("leader_epoch", Integer, nullable=False),
            Column("topic_id", Text, nullable=False),
        )
        self.version = Table(
            f"{prefix}version", self.metadata, Column("name", String(20), primary_key=True), Column("value", Integer)
        )

    def statements(self, dialect: str) -> list[str]:
        """What makes the tables, as SQL: for whoever may do that. Each may be run again."""
        try:
            made = _DIALECTS[dialect]()
        except KeyError:
            raise ConfigurationError("dialect", dialect, f"must be one of {', '.join(_DIALECTS)}") from None
        tables = [
            str(CreateTable(table, if_not_exists=True).compile(dialect=made)).strip()
            for table in self.metadata.sorted_tables
        ]
        name = made.identifier_preparer.format_table(self.version)
        insert = f"INSERT INTO {name} (name, value) VALUES ('version', {VERSION}) ON CONFLICT DO NOTHING"
        return [*tables, insert]

    async def create(self, engine: AsyncEngine) -> None:
        """Make the tables that are not there."""
        async with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MAKING})
            for statement in self.statements(engine.dialect.name):
                await connection.exec_driver_sql(statement)


def schema_statements(dialect: str, prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> list[str]:
    """What makes the tables of a store, as SQL. ``dialect``: ``"postgresql"`` or ``"sqlite"``."""
    return Schema(prefix, schema).statements(dialect)
