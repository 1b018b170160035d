"""Options to reach a database with positions of a SqlStore, and the engine made from them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Group, Parameter

from aioparallel.cli.console import require_extra
from aioparallel.records.errors import ClientError, ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["DATABASE", "Database", "check_url", "open_engine"]

DATABASE: Final = Group("Positions in a database", sort_key=5)

DRIVERS: Final = {
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
    "sqlite": "sqlite+aiosqlite",
}
"""By the scheme of a URL without an async driver, the scheme with the driver that the extra ``sql`` installs."""


@Parameter(name="*", group=DATABASE)
@dataclass(frozen=True, kw_only=True, slots=True)
class Database:
    """Where a group with `commits=SqlStore(engine)` has its positions."""

    database: Annotated[str | None, Parameter(metavar="URL", env_var="AIOPARALLEL_DATABASE")] = None
    """Take the positions from this database instead of Kafka: `postgresql+asyncpg://user:password@host/name`. For a
    group with `commits=SqlStore(engine)`. Other users of the machine can see a command line: a URL with a password
    belongs into the variable."""
    prefix: str = "aioparallel_"
    """What the names of its tables begin with."""
    schema: Annotated[str | None, Parameter(metavar="NAME")] = None
    """The database schema of its tables; not given: the connection's default."""


def check_url(option: str, url: str) -> None:
    """Raise ConfigurationError for a URL without an async driver."""
    scheme = url.partition(":")[0]
    if driver := DRIVERS.get(scheme):
        raise ConfigurationError(option, f"{scheme}://...", f"names no async driver; write {driver}://...")


@asynccontextmanager
async def open_engine(option: str, url: str, doing: str) -> AsyncIterator[AsyncEngine]:
    """An engine for the length of the block. Raises ConfigurationError, and ClientError for errors of the database.
    ``doing``: what failed, for the message."""
    require_extra("sql", ["sqlalchemy"])
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - not for help
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

    check_url(option, url)
    try:
        engine = create_async_engine(url)
        try:
            yield engine
        finally:
            await engine.dispose()
    except (SQLAlchemyError, OSError, ModuleNotFoundError) as error:
        raise ClientError(f"{doing}: {getattr(error, 'orig', None) or error}") from error
