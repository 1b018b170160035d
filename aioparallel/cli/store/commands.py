"""The command: its help and its options. What it does is imported when it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from cyclopts import App, Group, Parameter

from aioparallel.cli.console import require_extra, say

__all__ = ["Tables", "store"]

WHERE: Final = Group("Where", sort_key=1)


@Parameter(name="*", group=WHERE)
@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """Which tables."""

    prefix: str = "aioparallel_"
    """What their names begin with, as `SqlStore(prefix=)` has it."""
    schema: Annotated[str | None, Parameter(metavar="NAME")] = None
    """The database schema that they are in; not given: the connection's own."""


store = App(
    name="store",
    help="""Positions in a database: make the tables.

    A consumer with `commits=SqlStore(engine)` writes its positions into the database of its results, in the same
    transaction (`docs/stores.md`). It makes no tables by itself.

    **Examples**

    - `aioparallel store init postgresql+asyncpg://user:password@host/database`
    - `aioparallel store init --sql postgresql > tables.sql`: to be read, and run, by somebody else
    """,
)


@store.command(name="init")
async def init_command(
    database: Annotated[
        str | None, Parameter(help="Its address, as SQLAlchemy takes it: `sqlite+aiosqlite:///results.db`.")
    ] = None,
    /,
    *,
    sql: Annotated[
        Literal["postgresql", "sqlite"] | None,
        Parameter(help="Only show the statements for such a database; nothing is connected.", group=WHERE),
    ] = None,
    which: Tables = Tables(),
) -> None:
    """Make the tables that are not there; what is there is left as it is, so it may be run again.

    The user of the consumer needs SELECT, INSERT, UPDATE and DELETE on them, and nothing more.
    """
    require_extra("sql", ["sqlalchemy"])
    from aioparallel.errors import ConfigurationError  # noqa: PLC0415
    from aioparallel.stores.sql.schema import Schema  # noqa: PLC0415

    tables = Schema(which.prefix, which.schema)
    if sql is not None:
        print("\n\n".join(f"{statement};" for statement in tables.statements(sql)))
        return
    if database is None:
        raise ConfigurationError(
            "DATABASE", None, "must be given, as postgresql+asyncpg://user@host/name; or --sql, to see the statements"
        )
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

    from aioparallel.errors import ClientError  # noqa: PLC0415

    try:
        engine = create_async_engine(database)
        try:
            await tables.create(engine)
        finally:
            await engine.dispose()
    except (SQLAlchemyError, OSError, ModuleNotFoundError) as error:
        raise ClientError(f"the tables could not be made: {getattr(error, 'orig', None) or error}") from error
    names = ", ".join(table.name for table in tables.metadata.sorted_tables)
    say(f"The tables are there: {names}")
