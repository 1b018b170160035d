"""A small HTTP/1.1 server for metrics, probes and commands of a worker, without a web framework.

It answers one request on each connection and closes it. It runs on the event loop of its block, so a blocked loop
answers nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Final, NamedTuple, Self

__all__ = ["JSON", "PLAIN", "Answer", "HttpServer", "Request", "Route"]

logger = logging.getLogger(__name__)

JSON: Final = "application/json"
PLAIN: Final = "text/plain; charset=utf-8"

_LONGEST_LINE: Final = 8 * 1024
"""Bytes of the request line."""
_LONGEST_HEAD: Final = 16 * 1024
"""Bytes of the request line and the headers."""
_MOST_HEADERS: Final = 100
_MOST_CONNECTIONS: Final = 100
_LINGER: Final = 1.0
"""Seconds in which the rest of a refused request is read: if it were not, the client might lose the answer."""
_LINGER_BYTES: Final = 256 * 1024
_CLOSING: Final = 2.0
"""Seconds that open connections have to end when the server is closed."""


class Request(NamedTuple):
    """A request. ``path``: as it was sent, without the query. ``headers``: names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


class Answer(NamedTuple):
    """The answer to a request. ``headers``: further ones."""

    status: int
    content_type: str
    body: str | bytes
    headers: Mapping[str, str] = {}

    def encode(self, *, has_body: bool = True) -> bytes:
        """The response. ``has_body``: False for HEAD."""
        body = self.body.encode() if isinstance(self.body, str) else self.body
        head = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(body)}",
            *[f"{name}: {value}" for name, value in self.headers.items()],
            "Connection: close\r\n\r\n",
        ]
        return "\r\n".join(head).encode() + (body if has_body else b"")


@dataclass(frozen=True, slots=True)
class Route:
    """What answers the requests of one path.

    ``methods``: those that it answers; GET answers HEAD as well. ``longest_body``: bytes. ``timeout``: seconds for the
    answer; None: it ends by itself.
    """

    answer: Callable[[Request], Awaitable[Answer]]
    methods: Collection[str] = ("GET",)
    longest_body: int = 0
    timeout: float | None = 10.0

    @property
    def allowed(self) -> list[str]:
        """All methods, for the header Allow."""
        return [*self.methods, *(["HEAD"] if "GET" in self.methods else [])]


class _Refused(Exception):
    """The request gets this answer, and no route."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        self.answer = Answer(status, PLAIN, f"{text}\n", headers or {})
        self.has_body = True
        """False: the answer to HEAD."""


@dataclass(eq=False)
class HttpServer:
    """Listens for the length of a block. ``async with`` raises OSError if that is not possible.

    ``routes``: by path. A path that ends with ``/*`` stands for all paths that begin like that. ``not_found``: the text
    for other paths. ``timeout``: seconds in which a request must arrive, and its answer must be read.
    """

    routes: Mapping[str, Route]
    port: int
    host: str = "127.0.0.1"
    not_found: str = "not found"
    timeout: float = 10.0
    connections: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _server: asyncio.Server | None = field(default=None, init=False)
    _is_closing: bool = field(default=False, init=False)

    async def __aenter__(self) -> Self:
        self._is_closing = False
        self._server = await asyncio.start_server(self._connected, self.host, self.port, limit=_LONGEST_HEAD)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop listening, and end open connections."""
        server, self._server = self._server, None
        if server is None:
            return
        self._is_closing = True
        server.close()
        if self.connections:
            await asyncio.wait(self.connections, timeout=_CLOSING)
        for task in list(self.connections):
            task.cancel()
        if self.connections:
            await asyncio.wait(self.connections)
        await server.wait_closed()

    @property
    def url(self) -> str:
        """Its address, without a path."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        try:
            # A connection that was accepted just before the end begins only now: nobody would wait for it.
            if len(self.connections) <= _MOST_CONNECTIONS and not self._is_closing:
                with contextlib.suppress(TimeoutError, ConnectionError, asyncio.IncompleteReadError):
                    await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass  # the server is closed; a cancelled task would be logged
        finally:
            self.connections.discard(task)
            writer.transport.abort()  # unless it is closed: the client does not read its answer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request: Request | None = None
        try:
            async with asyncio.timeout(self.timeout):
                request, route = await self._read(reader, writer)
        except _Refused as refused:
            found, has_body = refused.answer, refused.has_body
        else:
            found, has_body = await _answer(route, request), request.method != "HEAD"
        async with asyncio.timeout(self.timeout):
            writer.write(found.encode(has_body=has_body))
            await writer.drain()
            if request is None:
                await _read_rest(reader, writer)
            writer.close()
            await writer.wait_closed()

    # -- reading ----------------------------------------------------------------------------------------

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[Request, Route]:
        method, path = await _request_line(reader)
        try:
            headers = await _headers(reader)
            route = self._route(method, path)
            return Request(method, path, headers, await _body(reader, writer, headers, route.longest_body)), route
        except _Refused as refused:
            refused.has_body = method != "HEAD"
            raise

    def _route(self, method: str, path: str) -> Route:
        route = self._found(path)
        if method not in route.allowed:
            allowed = ", ".join(route.allowed)
            raise _Refused(405, f"only {allowed}", {"Allow": allowed})
        return route

    def _found(self, path: str) -> Route:
        found = self.routes.get(path)
        if found is None:
            for known, route in self.routes.items():
                if known.endswith("/*") and path.startswith(known[:-1]):
                    return route
            raise _Refused(404, self.not_found)
        return found


async def _answer(route: Route, request: Request) -> Answer:
    try:
        async with asyncio.timeout(route.timeout) as limit:
            return await route.answer(request)
    except Exception as error:
        if isinstance(error, TimeoutError) and limit.expired():
            return Answer(503, PLAIN, f"no answer within {route.timeout:g} s\n")
        logger.exception("A request to %s could not be answered", request.path, extra={"action": "request_failed"})
        return Answer(500, PLAIN, "the request could not be answered; the log says why\n")


async def _request_line(reader: asyncio.StreamReader) -> tuple[str, str]:
    """Method and path."""
    line = await _line(reader, _Refused(400, "this is no HTTP request"))
    words = line.decode("latin-1").split()
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or len(line) > _LONGEST_LINE:
        raise _Refused(400, "this is no HTTP request, or its first line is too long")
    return words[0], words[1].partition("?")[0]


async def _headers(reader: asyncio.StreamReader) -> dict[str, str]:
    too_large = _Refused(431, f"more than {_MOST_HEADERS} headers, or {_LONGEST_HEAD:,} bytes of them")
    found: dict[str, str] = {}
    size = 0
    for _ in range(_MOST_HEADERS + 1):
        line = await _line(reader, too_large)
        size += len(line)
        if size > _LONGEST_HEAD:
            raise too_large
        text = line.decode("latin-1").strip()
        if not text:
            return found
        name, colon, value = text.partition(":")
        name, value = name.lower(), value.strip()
        if not colon or not name or name != name.strip():
            raise _Refused(400, "a header has no name")
        if name in ("content-length", "authorization", "host") and name in found:
            raise _Refused(400, f"two headers {name}")
        found[name] = value
    raise too_large


async def _line(reader: asyncio.StreamReader, too_long: _Refused) -> bytes:
    try:
        return await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        raise too_long from None


async def _body(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: Mapping[str, str], longest: int
) -> bytes:
    if "transfer-encoding" in headers:
        raise _Refused(400, "a body needs a Content-Length, and no Transfer-Encoding")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit() and len(length) < 20):
        raise _Refused(400, "Content-Length is no number")
    if int(length) > longest:
        raise _Refused(413, f"the body has more than {longest:,} bytes")
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return await reader.readexactly(int(length))


async def _read_rest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read what a client still sends of a request that was refused: closing at once would reset the connection."""
    if writer.can_write_eof():
        writer.write_eof()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER):
            left = _LINGER_BYTES
            while left > 0 and (data := await reader.read(left)):
                left -= len(data)
