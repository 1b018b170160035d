"""Keeps the connections of handlers open between records, as long as nothing fails.

Getting a connection from the pool for each record costs half as much as the record's transaction.
"""

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
"""Seconds to get a connection from the pool, including a new connection or a check (``pool_pre_ping``)."""
_CLOSING: Final = 2.0
"""Seconds to close all idle connections."""


class Connections:
    """The connections of one store."""

    def __init__(self, opening: Opening, outages: DatabaseOutages) -> None:
        self._opening = opening
        self._outages = outages
        self._idle: list[AsyncConnection] = []

    async def begun(self) -> tuple[AsyncConnection, OpenTransaction]:
        """Return a connection with an open transaction. Raises RetryLater if the database is unavailable."""
        while self._idle:
            try:
                return await self._open(self._idle.pop())
            except TimeoutError as error:
                raise self._outages.away(error) from error
            except NO_ANSWER:
                """The server has closed this connection since."""
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
        """Keep a connection whose transaction has ended. Close it if a handler changed its options."""
        given = self._opening.engine.sync_engine.get_execution_options()
        below = connection.sync_connection
        if below is not None and not below.closed and below.get_execution_options() is given:
            self._idle.append(connection)
        else:
            await connection.close()

    async def give_back(self) -> None:
        """Close all idle connections, so that other users of the pool can have them."""
        idle, self._idle = self._idle, []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING):
                await asyncio.gather(*[connection.close() for connection in idle], return_exceptions=True)
