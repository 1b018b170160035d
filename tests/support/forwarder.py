"""An address that stays, in front of a server that moves: as a name in the DNS, or a load balancer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

__all__ = ["Forwarder", "forwarding"]


class Forwarder:
    """``address``: ``host:port`` that stays. ``target``: the port on this machine that connections lead to from now
    on. Made by :func:`forwarding`."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.address = ""
        self.connections = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._dropped: set[asyncio.StreamReader] = set()
        self._readers: set[asyncio.StreamReader] = set()

    def drop(self) -> None:
        """What comes over the connections that are there is lost from now on, in silence."""
        self._dropped |= self._readers

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection more."""
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._connection(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        try:
            self._readers |= {reader, there}
            await asyncio.gather(self._forward(reader, back), self._forward(there, writer))
        finally:
            back.close()
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                if reader not in self._dropped:
                    writer.write(data)
        writer.close()

    async def close(self) -> None:
        """Nothing is connected any more."""
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def forwarding(target: int) -> AsyncIterator[Forwarder]:
    """On a free port of this machine."""
    forwarder = Forwarder(target)
    server = await asyncio.start_server(forwarder.connected, "127.0.0.1", 0)
    forwarder.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield forwarder
    finally:
        server.close()
        await forwarder.close()
