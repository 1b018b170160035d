"""Typed messages on aiokafka's own connection, with a broker of a few lines."""

from __future__ import annotations

import asyncio
import dataclasses
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import pytest
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.admin import ApiVersionRequest

from aioparallel.clients.aiokafka.typed_requests import TypedRequest, ask
from aioparallel.clients.messages import MalformedMessage, UnencodableMessage, decode, encode
from aioparallel.clients.messages.share_records import (
    SHARE_ACKNOWLEDGE,
    AcknowledgedPartition,
    AcknowledgedTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)

REQUEST = ShareAcknowledgeRequest(group_id="g", member_id="größe", share_session_epoch=3)
RESPONSE = ShareAcknowledgeResponse(
    responses=(AcknowledgedTopic(b"i" * 16, (AcknowledgedPartition(partition_index=1, error_code=121),)),)
)


class Connections:
    """As much of aiokafka's client as requests need."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def send(self, node: int, request: object, *, group: int) -> Any:
        assert (node, group) == (1, 0)
        return await self._connection.send(request)


@asynccontextmanager
async def connected(
    answer: Callable[[bytes], bytes], versions: tuple[int, int] = (1, 2)
) -> AsyncIterator[tuple[Any, list[bytes]]]:
    """aiokafka's connection to a broker that knows these versions of ShareAcknowledge and gives this answer; and the
    requests that the broker has received."""
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                request = await reader.readexactly(size)
                if struct.unpack_from(">h", request)[0] == ApiVersionRequest.API_KEY:
                    body = struct.pack(">hihhh", 0, 1, SHARE_ACKNOWLEDGE.key, *versions)
                else:
                    received.append(request)
                    body = answer(request)
                writer.write(struct.pack(">i", 4 + len(body)) + request[4:8] + body)
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    connection = AIOKafkaConnection("127.0.0.1", server.sockets[0].getsockname()[1], request_timeout_ms=10_000)
    try:
        await connection.connect()
        yield Connections(connection), received
    finally:
        if (closed := connection.close()) is not None:
            await closed
        server.close()
        await server.wait_closed()


def answered(data: bytes, header: bytes = b"\0") -> Callable[[bytes], bytes]:
    """This response, after the tagged fields of its header."""
    return lambda _request: header + data


async def test_request_and_response_pass() -> None:
    """With header 2 and 1, and in the newest version."""
    async with connected(answered(encode(RESPONSE, 2))) as (connections, received):
        assert await ask(connections, 1, SHARE_ACKNOWLEDGE, REQUEST) == RESPONSE
        (request,) = received
        assert struct.unpack_from(">hh", request) == (79, 2)
        (length,) = struct.unpack_from(">h", request, 8)
        assert request[10 + length] == 0, "no tagged fields"
        assert decode(ShareAcknowledgeRequest, 2, request, 11 + length) == REQUEST


async def test_an_older_version_for_an_older_broker() -> None:
    """The response is read in the same one."""
    lasting = dataclasses.replace(RESPONSE, acquisition_lock_timeout_ms=7)
    async with connected(answered(encode(lasting, 1)), (0, 1)) as (connections, received):
        assert await ask(connections, 1, SHARE_ACKNOWLEDGE, REQUEST) == RESPONSE
        assert struct.unpack_from(">hh", received[0]) == (79, 1)


async def test_tagged_fields_in_the_header_are_skipped() -> None:
    """Here one of two bytes."""
    async with connected(answered(encode(RESPONSE, 2), b"\1\5\2ab")) as (connections, _):
        assert await ask(connections, 1, SHARE_ACKNOWLEDGE, REQUEST) == RESPONSE


async def test_a_broker_that_does_not_know_the_request() -> None:
    """Nothing is sent, and the error says what it knows."""
    async with connected(answered(b""), (5, 6)) as (connections, received):
        with pytest.raises(
            IncompatibleBrokerVersion, match=r"ShareAcknowledge in .* 1 to 2: this broker knows .* 5 to 6"
        ):
            await ask(connections, 1, SHARE_ACKNOWLEDGE, REQUEST)
        with pytest.raises(IncompatibleBrokerVersion, match="this broker does not know it"):
            TypedRequest(SHARE_ACKNOWLEDGE, REQUEST).prepare({})
        assert received == []


async def test_what_the_version_cannot_say_is_not_sent() -> None:
    """Version 1 has no RENEW."""
    async with connected(answered(b""), (1, 1)) as (connections, received):
        with pytest.raises(UnencodableMessage, match="is_renew_ack"):
            await ask(connections, 1, SHARE_ACKNOWLEDGE, dataclasses.replace(REQUEST, is_renew_ack=True))
        assert received == []


async def test_a_response_that_cannot_be_read_fails_alone() -> None:
    """The connection stays open for the others."""
    answers = iter([encode(RESPONSE, 2)[:-1], encode(RESPONSE, 2)])
    async with connected(lambda _request: b"\0" + next(answers)) as (connections, _):
        first, second = await asyncio.gather(
            *(ask(connections, 1, SHARE_ACKNOWLEDGE, REQUEST) for _ in range(2)), return_exceptions=True
        )
        assert isinstance(first, MalformedMessage)
        assert "ShareAcknowledgeResponse in version 2 cannot be read" in str(first)
        assert second == RESPONSE


def test_requests_in_logs() -> None:
    """aiokafka logs requests and responses at DEBUG; bodies may be large."""
    prepared = TypedRequest(SHARE_ACKNOWLEDGE, REQUEST).prepare({79: (1, 2)})
    assert repr(prepared) == f"ShareAcknowledge 2 ({len(encode(REQUEST, 2))} bytes)"
    assert repr(prepared.decode(BytesIO(b"abc"))) == "3 bytes"
