"""Consumers inside FastAPI: a lifespan, and a router for probes.

::

    from fastapi import FastAPI
    from aioparallel.web.fastapi import health_router, running

    consumers = running(make_consumer, handle)
    app = FastAPI(lifespan=consumers)
    app.include_router(health_router(consumers))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    from fastapi import APIRouter, Request
except ImportError as error:
    raise ImportError("aioparallel.web.fastapi needs fastapi: pip install fastapi") from error

from starlette.responses import JSONResponse, Response

from aioparallel.web import answers
from aioparallel.web.service import ConsumerService
from aioparallel.web.services import Consumers
from aioparallel.web.starlette import Running, running

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["Running", "health_router", "metrics_router", "running"]


def health_router(*consumers: ConsumerService[Any, Any] | Consumers) -> APIRouter:
    """A router with ``/health/live``, ``/health/ready`` and ``/stats`` for results of :func:`running` or services."""
    all_of_them = answers.together(consumers)
    router = APIRouter(tags=["health"])

    @router.get(answers.LIVE)
    async def live() -> JSONResponse:
        """200 while no consumer needs a restart of the process."""
        return _json(answers.live(all_of_them))

    @router.get(answers.READY)
    async def ready() -> JSONResponse:
        """200 while every consumer is ready."""
        return _json(answers.ready(all_of_them))

    @router.get(answers.STATS)
    async def stats() -> JSONResponse:
        """Statistics of every consumer."""
        return _json(answers.stats(all_of_them))

    return router


def metrics_router(registry: CollectorRegistry | None = None) -> APIRouter:
    """A router with ``/metrics`` for Prometheus, of consumers with ``PrometheusMetrics`` and all else in ``registry``.

    ``registry``: None: prometheus_client's default registry. Raises ImportError without prometheus-client.
    """
    expose = answers.metrics(registry)
    router = APIRouter(tags=["health"])

    @router.get(answers.METRICS, response_class=Response)
    async def metrics(request: Request) -> Response:
        """Metrics for Prometheus."""
        body, content_type = await expose(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type})

    return router


def _json(answer: answers.Answer) -> JSONResponse:
    return JSONResponse(answer.body, answer.status)
