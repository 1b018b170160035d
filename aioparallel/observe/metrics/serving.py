"""Serves ``/metrics``, ``/live`` and ``/ready`` for a worker without a web application.

It runs on the event loop of the consumer, so a blocked loop answers no probe.
"""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from aioparallel.config.unknown_options import refuses_others
from aioparallel.observe.health import Health
from aioparallel.observe.http_server import JSON, PLAIN, Answer, HttpServer, Request, Route
from aioparallel.records.errors import ConfigurationError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["HasHealth", "MetricsServer", "cannot_listen", "checked_address", "serve_metrics"]

logger = logging.getLogger(__name__)


class HasHealth(Protocol):
    """A consumer, or a ConsumerService."""

    def health(self) -> Health:
        """Whether it works."""


class MetricsServer:
    """A running server, made by :func:`serve_metrics`."""

    def __init__(
        self, port: int, host: str, consumers: Sequence[HasHealth], registry: CollectorRegistry | None
    ) -> None:
        self._consumers = consumers
        self._registry = registry
        routes = dict.fromkeys(("/metrics", "/live", "/ready"), Route(self._answer))
        self._server = HttpServer(routes, port, host, "there are /metrics, /live and /ready")

    @property
    def port(self) -> int:
        """Its port, also if 0 was asked for."""
        return self._server.port

    async def __aenter__(self) -> Self:
        """Listen. Raises ConfigurationError if that is not possible, for example because the port is in use."""
        try:
            await self._server.__aenter__()
        except OSError as error:
            raise cannot_listen(self._server, error) from error
        logger.info(
            "Metrics at %s/metrics, probes at /live and /ready",
            self._server.url,
            extra={"action": "metrics_served", "port": self.port},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop listening, and end open connections."""
        await self._server.__aexit__(kind, error, traceback)

    async def _answer(self, request: Request) -> Answer:
        try:
            if request.path == "/metrics":
                return await self._metrics(request)
            return self._probe(request.path[1:])
        except Exception:
            logger.exception("A request for metrics could not be answered", extra={"action": "metrics_failed"})
            return Answer(500, PLAIN, "the request could not be answered; the log says why\n")

    async def _metrics(self, request: Request) -> Answer:
        from aioparallel.observe.metrics.prometheus import expose  # noqa: PLC0415 - it imports this module

        body, kind = await expose(request.headers.get("accept", ""), self._registry)
        return Answer(200, kind, body)

    def _probe(self, asked: str) -> Answer:
        found = [consumer.health() for consumer in self._consumers]
        holds = all(getattr(health, asked) for health in found)
        problems = [{"kind": one.kind.value, "message": one.message} for health in found for one in health.problems]
        reasons = [health.reason for health in found if health.reason]
        return Answer(200 if holds else 503, JSON, json.dumps({asked: holds, "reasons": reasons, "problems": problems}))


def cannot_listen(server: HttpServer, error: OSError) -> ConfigurationError:
    """Why a server cannot listen."""
    why = f"cannot be listened on at {server.host}: {error.strerror or error}"
    if error.errno == errno.EADDRINUSE:
        why = f"is in use at {server.host}: another program or consumer listens there; choose another port"
    return ConfigurationError("port", server.port, why)


def checked_address(port: object, host: object) -> tuple[int, str]:
    """A port and the address to listen on."""
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65_535:
        raise ConfigurationError("port", port, "must be a whole number from 0 to 65535; 0: any free port")
    if not isinstance(host, str) or not host:
        raise ConfigurationError("host", host, 'must be an address such as "127.0.0.1", or "0.0.0.0" for all')
    return port, host


@refuses_others
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
