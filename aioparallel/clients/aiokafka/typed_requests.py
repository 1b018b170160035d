"""Sends the messages of :mod:`aioparallel.clients.messages` over aiokafka's connections.

aiokafka decodes a response while it reads from the connection, and closes the connection if that fails: every other
request there fails as well, is repeated, and may meet the same response again. Here the response is decoded for its
caller only.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any, Generic, NamedTuple, TypeVar

from aiokafka.client import ConnectionGroup
from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.api import RequestHeader_v2, ResponseHeader_v1

from aioparallel.clients.aiokafka.internals import Connections
from aioparallel.clients.messages import Api, decode, encode

__all__ = ["TypedRequest", "ask"]

Q = TypeVar("Q")
R = TypeVar("R")


async def ask(
    connections: Connections, node: int, api: Api[Q, R], request: Q, *, group: int = ConnectionGroup.DEFAULT
) -> R:
    """The broker's response to the request, in the newest version that both know. Error codes in it are not checked.

    Raises IncompatibleBrokerVersion, UnencodableMessage, MalformedMessage, and what aiokafka's ``send`` raises.
    """
    received: _Received = await connections.send(node, TypedRequest(api, request), group=group)
    return received.decoded(api.response)


class TypedRequest(Generic[Q, R]):
    """A request as aiokafka's connections take it."""

    def __init__(self, api: Api[Q, R], request: Q) -> None:
        self.api = api
        self.request = request

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> _Prepared:
        """The request in a version that the broker knows."""
        version = self.api.newest(versions)
        if version is None:
            least, most = versions.get(self.api.key, (None, None))
            known = "does not know it" if least is None else f"knows versions {least} to {most}"
            raise IncompatibleBrokerVersion(
                f"{self.api.name} in a version from {self.api.least} to {self.api.most}: this broker {known}"
            )
        return _Prepared(self.api, version, encode(self.request, version))


class _Prepared:
    """Stands in for aiokafka's ``RequestStruct``."""

    def __init__(self, api: Api[Any, Any], version: int, body: bytes) -> None:
        self.API_KEY = api.key
        self.API_VERSION = version
        self.RESPONSE_TYPE = self
        self._name = api.name
        self._body = body

    def __repr__(self) -> str:
        return f"{self._name} {self.API_VERSION} ({len(self._body)} bytes)"

    def build_request_header(self, correlation_id: int, client_id: str) -> object:
        return RequestHeader_v2(self, correlation_id=correlation_id, client_id=client_id)

    def parse_response_header(self, data: BytesIO) -> object:
        return ResponseHeader_v1.decode(data)

    def encode(self) -> bytes:
        return self._body

    def decode(self, data: BytesIO) -> _Received:
        """Of the ``RESPONSE_TYPE``. ``data`` stands after the header."""
        return _Received(self.API_VERSION, data.getvalue(), data.tell())


class _Received(NamedTuple):
    version: int
    data: bytes
    at: int

    def __repr__(self) -> str:
        return f"{len(self.data) - self.at} bytes"

    def decoded(self, response: type[R]) -> R:
        return decode(response, self.version, self.data, self.at)
