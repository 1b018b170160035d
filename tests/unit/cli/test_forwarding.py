"""The port of ``aioparallel broker``."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from aioparallel.cli.broker import BrokerOptions, forwarding, new_broker
from aioparallel.cli.console import make_console
from aioparallel.records.errors import BrokerStartError

ELSEWHERE = "2001:db8::1"
"""An address that this machine does not have, as ``::1`` in a container without IPv6."""


def localhost_is(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """What the name stands for."""
    found = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *more: Any, **options: Any) -> list[Any]:
        names = addresses if host == "localhost" else (host,)
        return [one for name in names for one in found(name, port, *more, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


async def test_an_address_of_localhost_that_the_machine_does_not_have(
    monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    """The others are enough; without any it is an error."""

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    echo = await asyncio.start_server(greet, "127.0.0.1", 0)
    target = echo.sockets[0].getsockname()[1]
    localhost_is(monkeypatch, ELSEWHERE, "127.0.0.1")
    async with forwarding(unused_tcp_port, f"127.0.0.1:{target}"):
        reader, writer = await asyncio.open_connection("127.0.0.1", unused_tcp_port)
        assert await asyncio.wait_for(reader.read(), 10) == b"hello"
        writer.close()
        await writer.wait_closed()
        with pytest.raises(BrokerStartError, match="address already in use"):
            await forwarding(unused_tcp_port, f"127.0.0.1:{target}").__aenter__()
    localhost_is(monkeypatch, ELSEWHERE)
    with pytest.raises(BrokerStartError, match="--port chooses another one"):
        await forwarding(unused_tcp_port, f"127.0.0.1:{target}").__aenter__()
    echo.close()


def test_apache_kafka_at_a_port_that_is_taken() -> None:
    """The error names the command's options, as with the embedded broker."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BrokerStartError, match=f"port {port}: address already in use; --port chooses another one"):
            new_broker(BrokerOptions(kafka=True, port=port), make_console())
