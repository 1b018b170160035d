"""A network between clients and a server: its address stays when the server moves, and a test can make it silent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

__all__ = ["Network", "network_to"]


class Network:
    """Forwards connections to ``port`` of this machine. ``target``: the port or Unix socket of the server, for new
    connections. Made by :func:`network_to`."""

    def __init__(self, target: int | Path) -> None:
        self.target = target
        self.port = 0
        self.connections = 0
        """How many were opened."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._silent: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self.port}"

    def silence(self) -> None:
        """Nothing comes through the existing connections any more, not even their end. New ones are as before."""
        self._silent |= self._writers

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client has connected."""
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._connection(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if isinstance(self.target, Path):
                there, back = await asyncio.open_unix_connection(str(self.target))
            else:
                there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
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
        """Close all connections."""
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def network_to(target: int | Path) -> AsyncIterator[Network]:
    """A network on a free port of this machine."""
    network = Network(target)
    server = await asyncio.start_server(network.connected, "127.0.0.1", 0)
    network.port = server.sockets[0].getsockname()[1]
    try:
        yield network
    finally:
        server.close()
        await network.close()
