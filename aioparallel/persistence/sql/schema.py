"""The tables of a store.

There are four tables, and one for the version.

* ``{prefix}partition`` has one row for each partition of each group, with the epoch of its owner.
* ``{prefix}position`` has the offset and the offset map of each partition, as of the last fold.
* ``{prefix}done`` has the records completed since, each written in the transaction of its results.
* ``{prefix}log`` tells which log a position belongs to. Older versions do not write it, and a database may lack it.

Partition and position are separate because of their locks. Each record's transaction holds a shared lock on the epoch,
and a fold must not wait for it.
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
"""The most characters of a prefix. PostgreSQL cuts names after 63 bytes."""
_MAKING: Final = 0x61696F70617261
"""Key of the advisory lock for creating tables. Concurrent CREATE TABLE IF NOT EXISTS statements fail."""
VERSION: Final = 1
_DIALECTS: Final[dict[str, type[Dialect]]] = {"postgresql": postgresql.dialect, "sqlite": sqlite.dialect}


class StoreNotReady(ClientError):
    """The tables do not exist, cannot be read, or have another version."""


class Schema:
    """The tables with one prefix. ``schema``: the database schema they are in; None: the default of the connection."""

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
        """Return the SQL that creates the tables. Each statement can be run again."""
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
        """Create the missing tables."""
        async with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MAKING})
            for statement in self.statements(engine.dialect.name):
                await connection.exec_driver_sql(statement)


def schema_statements(dialect: str, prefix: str = DEFAULT_PREFIX, schema: str | None = None) -> list[str]:
    """Return the SQL that creates the tables of a store. ``dialect``: ``"postgresql"`` or ``"sqlite"``."""
    return Schema(prefix, schema).statements(dialect)
