"""A network between a client and a server that a test can make silent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

__all__ = ["Network", "network_to"]


class Network:
    """Between connections to ``port`` and a server on the Unix socket ``path``. Made by :func:`network_to`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writers: set[asyncio.StreamWriter] = set()
        self._silent: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    def silence(self) -> None:
        """Nothing comes through the connections that are there, ever again; new ones are as before."""
        self._silent |= self._writers

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection more."""
        task = asyncio.get_running_loop().create_task(self._connection(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(str(self._path))
        self._writers |= {writer, back}
        try:
            await asyncio.gather(self._forward(reader, back), self._forward(there, writer))
        finally:
            for one in (writer, back):
                self._writers.discard(one)
                self._silent.discard(one)
                one.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                if writer not in self._silent:
                    writer.write(data)
        if writer not in self._silent:
            writer.close()

    async def close(self) -> None:
        """Nothing is connected any more."""
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def network_to(path: Path) -> AsyncIterator[Network]:
    """On a free port of this machine."""
    network = Network(path)
    server = await asyncio.start_server(network.connected, "127.0.0.1", 0)
    network.port = server.sockets[0].getsockname()[1]
    try:
        yield network
    finally:
        server.close()
        await network.close()
