"""A small HTTP server for a worker without a web application: ``/metrics``, ``/live`` and ``/ready``.

It answers one request on each connection, and only GET and HEAD. It runs on the event loop of the consumer, so a
blocked loop answers no probe.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
from collections.abc import Sequence
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

from aioparallel.observe.health import Health
from aioparallel.records.errors import ConfigurationError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["HasHealth", "MetricsServer", "checked_address", "serve_metrics"]

logger = logging.getLogger(__name__)

_REQUEST_TIMEOUT: Final = 10.0
"""Seconds for reading a request or writing its response."""
_LONGEST_REQUEST: Final = 16 * 1024
"""Bytes of a request line and its headers."""
_MOST_CONNECTIONS: Final = 100
_CLOSING: Final = 2.0
"""Seconds that open connections have to end when the server is closed."""
_JSON: Final = "application/json"


class HasHealth(Protocol):
    """A consumer, or a ConsumerService."""

    def health(self) -> Health:
        """Whether it works."""


class MetricsServer:
    """A running server, made by :func:`serve_metrics`."""

    def __init__(
        self, port: int, host: str, consumers: Sequence[HasHealth], registry: CollectorRegistry | None
    ) -> None:
        self._asked = port, host
        self._consumers = consumers
        self._registry = registry
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """Its port, also if 0 was asked for."""
        if self._server is None or not self._server.sockets:
            return self._asked[0]
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def __aenter__(self) -> Self:
        """Listen. Raises ConfigurationError if that is not possible, for example because the port is in use."""
        port, host = self._asked
        try:
            self._server = await asyncio.start_server(self._connected, host, port, limit=_LONGEST_REQUEST)
        except OSError as error:
            why = f"cannot be listened on at {host}: {error.strerror or error}"
            if error.errno == errno.EADDRINUSE:
                why = f"is in use at {host}: another program or consumer listens there; choose another port"
            raise ConfigurationError("port", port, why) from error
        logger.info(
            "Metrics at http://%s:%d/metrics, probes at /live and /ready",
            f"[{host}]" if ":" in host else host,
            self.port,
            extra={"action": "metrics_served", "port": self.port},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop listening, and end open connections."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        if self._connections:
            await asyncio.wait(self._connections, timeout=_CLOSING)
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        await server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) <= _MOST_CONNECTIONS:
                with contextlib.suppress(TimeoutError, ConnectionError, asyncio.IncompleteReadError):
                    async with asyncio.timeout(_REQUEST_TIMEOUT):
                        await self._serve(reader, writer)
                        writer.close()
                        await writer.wait_closed()
        except asyncio.CancelledError:
            pass  # the server is closed; a cancelled task would be logged
        except Exception:
            logger.exception("A request for metrics could not be answered", extra={"action": "metrics_failed"})
        finally:
            self._connections.discard(task)
            writer.transport.abort()  # unless it is closed: the client does not read its answer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            await _send(writer, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b"", "text/plain")
            return
        lines = head.decode("latin-1").split("\r\n")
        method, _, rest = lines[0].partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        headers = dict(line.lower().split(":", 1) for line in lines[1:] if ":" in line)
        if method not in ("GET", "HEAD"):
            await _send(writer, HTTPStatus.METHOD_NOT_ALLOWED, b"", "text/plain", "Allow: GET, HEAD\r\n")
            return
        status, body, kind = self._answer(path, headers.get("accept", "").strip())
        await _send(writer, status, body, kind, with_body=method == "GET")

    def _answer(self, path: str, accept: str) -> tuple[HTTPStatus, bytes, str]:
        if path == "/metrics":
            from aioparallel.observe.metrics.prometheus import exposition  # noqa: PLC0415 - it imports this module

            return HTTPStatus.OK, *exposition(accept, self._registry)
        if path in ("/live", "/ready"):
            return self._probe(path[1:])
        return HTTPStatus.NOT_FOUND, b"there are /metrics, /live and /ready\n", "text/plain"

    def _probe(self, asked: str) -> tuple[HTTPStatus, bytes, str]:
        found = [consumer.health() for consumer in self._consumers]
        holds = all(getattr(health, asked) for health in found)
        problems = [{"kind": one.kind.value, "message": one.message} for health in found for one in health.problems]
        body = json.dumps({asked: holds, "problems": problems}).encode()
        return HTTPStatus.OK if holds else HTTPStatus.SERVICE_UNAVAILABLE, body, _JSON


async def _send(
    writer: asyncio.StreamWriter, status: HTTPStatus, body: bytes, kind: str, more: str = "", *, with_body: bool = True
) -> None:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"{more}Connection: close\r\n\r\n"
    )
    writer.write(head.encode() + (body if with_body else b""))
    await writer.drain()


def checked_address(port: object, host: object) -> tuple[int, str]:
    """A port and the address to listen on."""
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65_535:
        raise ConfigurationError("port", port, "must be a whole number from 0 to 65535; 0: any free port")
    if not isinstance(host, str) or not host:
        raise ConfigurationError("host", host, 'must be an address such as "127.0.0.1", or "0.0.0.0" for all')
    return port, host


def serve_metrics(
    port: int, *consumers: HasHealth, host: str = "127.0.0.1", registry: CollectorRegistry | None = None
) -> MetricsServer:
    """Serve ``/metrics``, and for these consumers ``/live`` and ``/ready``, for the length of a block.

    ::

        async with consumer, serve_metrics(9400, consumer, host="0.0.0.0"):
            await consumer.run(handle)

    ``port``: 0: any free port, which the result has as ``port``.
    ``host``: "127.0.0.1": only this machine. "0.0.0.0" or "::": all interfaces.
    ``registry``: None: prometheus_client's default registry.

    The probes answer 200, or 503 if one of the consumers is not live or not ready; without consumers always 200. Raises
    ConfigurationError, also if the port is in use.
    """
    return MetricsServer(*checked_address(port, host), consumers, registry)
