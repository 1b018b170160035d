"""The command: its options and help. The code is imported when it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from cyclopts import App, Group, Parameter

from aioparallel.cli.console import require_extra, say
from aioparallel.cli.database import open_engine

__all__ = ["Tables", "store"]

WHERE: Final = Group("Where", sort_key=1)


@Parameter(name="*", group=WHERE)
@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """Names of the tables."""

    prefix: str = "aioparallel_"
    """What their names begin with, as in `SqlStore(prefix=)`."""
    schema: Annotated[str | None, Parameter(metavar="NAME")] = None
    """Their database schema; not given: the connection's default."""


store = App(
    name="store",
    help="""Positions in a database: create the tables.

    A consumer with `commits=SqlStore(engine)` writes its positions into the database of its results, in the same
    transaction (documentation: Positions in a database). It creates no tables by itself.

    **Examples**

    - `aioparallel store init postgresql+asyncpg://user:password@host/database`
    - `aioparallel store init --sql postgresql > tables.sql`: for a database administrator
    """,
)


@store.command(name="init")
async def init_command(
    database: Annotated[str | None, Parameter(help="Its URL for SQLAlchemy: `sqlite+aiosqlite:///results.db`.")] = None,
    /,
    *,
    sql: Annotated[
        Literal["postgresql", "sqlite"] | None,
        Parameter(help="Only print the statements for such a database, without a connection.", group=WHERE),
    ] = None,
    which: Tables = Tables(),
) -> None:
    """Create missing tables. Existing ones stay as they are, so it may be run again.

    The consumer's user needs only SELECT, INSERT, UPDATE and DELETE on them.
    """
    require_extra("sql", ["sqlalchemy"])
    from aioparallel.persistence.sql.schema import Schema  # noqa: PLC0415
    from aioparallel.records.errors import ConfigurationError  # noqa: PLC0415

    tables = Schema(which.prefix, which.schema)
    if sql is not None:
        print("\n\n".join(f"{statement};" for statement in tables.statements(sql)))
        return
    if database is None:
        raise ConfigurationError(
            "DATABASE", None, "must be given, like postgresql+asyncpg://user@host/name; or --sql, to see the statements"
        )
    async with open_engine("DATABASE", database, "the tables could not be created") as engine:
        await tables.create(engine)
    names = ", ".join(table.name for table in tables.metadata.sorted_tables)
    say(f"The tables exist: {names}")
