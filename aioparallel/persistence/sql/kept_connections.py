"""Connections of handlers: asked for anew for each record they cost half as much as its transaction, so they are kept
as long as nothing goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from aioparallel.persistence.sql.database_errors import NO_ANSWER
from aioparallel.persistence.sql.opened import Opening, OpenTransaction
from aioparallel.persistence.sql.outages import DatabaseOutages

__all__ = ["Connections"]

_CONNECTING: Final = 10.0
"""Seconds for a connection, however the pool comes to one: new, or looked at first (``pool_pre_ping``)."""
_CLOSING: Final = 2.0
"""Seconds for closing what is idle."""


class Connections:
    """Of one store."""

    def __init__(self, opening: Opening, outages: DatabaseOutages) -> None:
        self._opening = opening
        self._outages = outages
        self._idle: list[AsyncConnection] = []

    async def begun(self) -> tuple[AsyncConnection, OpenTransaction]:
        """One, with a transaction begun on it. Raises RetryLater where the database is away."""
        while self._idle:
            try:
                return await self._open(self._idle.pop())
            except TimeoutError as error:
                raise self._outages.away(error) from error
            except NO_ANSWER:
                """The server has closed it meanwhile."""
        try:
            async with asyncio.timeout(_CONNECTING):
                connection = await self._opening.engine.connect()
            return await self._open(connection)
        except NO_ANSWER as error:
            raise self._outages.away(error) from error

    async def _open(self, connection: AsyncConnection) -> tuple[AsyncConnection, OpenTransaction]:
        try:
            return connection, await self._opening.open(connection)
        except BaseException:
            await connection.close()
            raise

    async def keep(self, connection: AsyncConnection) -> None:
        """Its transaction is over. Where a handler has changed its options they are not for the next one."""
        given = self._opening.engine.sync_engine.get_execution_options()
        below = connection.sync_connection
        if below is not None and not below.closed and below.get_execution_options() is given:
            self._idle.append(connection)
        else:
            await connection.close()

    async def give_back(self) -> None:
        """Keep no idle one from others."""
        idle, self._idle = self._idle, []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING):
                await asyncio.gather(*[connection.close() for connection in idle], return_exceptions=True)
