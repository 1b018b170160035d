"""A service that writes bytes, whatever they are: answers that no framework would give."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

__all__ = ["OK", "Raw", "raw_service"]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Reply = bytes | Iterable[bytes] | None
"""What is written, at once or one after the other; None: the connection is reset."""


class Raw:
    """``heads``: of all requests, as they came. ``reply``: of the connection's number, and of the request's on it, both
    from 0. ``open``: connections."""

    def __init__(self) -> None:
        self.url = ""
        self.heads: list[str] = []
        self.connections = 0
        self.writers: set[asyncio.StreamWriter] = set()
        self.most = 0
        self.closes = False
        self.reply: Callable[[int, int], Reply] = lambda connection, request: OK

    @property
    def open(self) -> int:
        """Connections, by now."""
        return len(self.writers)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        connection, number = self.connections, 0
        self.connections += 1
        self.writers.add(writer)
        self.most = max(self.most, self.open)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                for line in head.lower().splitlines():
                    if line.startswith("content-length:"):
                        await reader.readexactly(int(line.partition(":")[2]))
                reply = self.reply(connection, number)
                number += 1
                if reply is None:
                    at_once = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
                    writer.transport.abort()
                    return
                for some in (reply,) if isinstance(reply, bytes) else reply:
                    writer.write(some)
                    await writer.drain()
                if self.closes:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()


@asynccontextmanager
async def raw_service() -> AsyncIterator[Raw]:
    """One that listens on loopback."""
    found = Raw()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    found.url = f"http://{host}:{port}"
    try:
        yield found
    finally:
        server.close()
        for writer in list(found.writers):
            writer.transport.abort()
