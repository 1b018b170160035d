"""Consumers inside Starlette: a lifespan, and routes for probes.

::

    from starlette.applications import Starlette
    from aioparallel.web.starlette import health_routes, running

    consumers = running(make_consumer, handle)
    app = Starlette(lifespan=consumers, routes=health_routes(consumers))
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, overload

try:
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
except ImportError as error:
    raise ImportError("aioparallel.web.starlette needs starlette: pip install starlette") from error

from aioparallel.config.option_docs import describes_like
from aioparallel.consumer import ParallelConsumer
from aioparallel.handlers.stack import HandlersOf
from aioparallel.records.record import K_co, V_co
from aioparallel.web import answers
from aioparallel.web.restarts import RestartPolicy
from aioparallel.web.service import ConsumerService, OnFailure
from aioparallel.web.services import Consumers, consumers_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["Running", "health_routes", "metrics_routes", "running"]

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]
"""The lifespan of an application, as Starlette and FastAPI take it."""


class Running(Consumers):
    """Consumers by name, and a lifespan that runs them."""

    def __init__(self, *services: ConsumerService[Any, Any], within: Lifespan | None = None) -> None:
        super().__init__(*services)
        self._within = within

    @asynccontextmanager
    async def __call__(self, app: Any) -> AsyncIterator[Any]:
        """The lifespan of ``app``."""
        if self._within is None:
            async with self:
                yield
            return
        async with self._within(app) as state, self:
            yield state


@overload
def running(
    make_consumer: Callable[[], ParallelConsumer[K_co, V_co]],
    handler: HandlersOf[K_co, V_co],
    /,
    *,
    name: str = ...,
    restart: RestartPolicy | None = None,
    on_failure: OnFailure = ...,
    within: Lifespan | None = None,
) -> Running: ...
@overload
def running(
    first: ConsumerService[Any, Any], /, *others: ConsumerService[Any, Any], within: Lifespan | None = None
) -> Running: ...
@describes_like(ConsumerService)
def running(
    first: Any,
    /,
    *rest: Any,
    name: str | None = None,
    restart: RestartPolicy | None = None,
    on_failure: OnFailure | None = None,
    within: Lifespan | None = None,
) -> Running:
    """A lifespan that runs one or more consumers in an application: ``Starlette(lifespan=running(...))``.

    Takes the arguments of :class:`~aioparallel.web.ConsumerService`, as in ``running(make_consumer, handler,
    name=..., restart=..., on_failure=...)``, or services: ``running(orders, refunds)``.
    ``within``: the application's own lifespan. It is entered before the consumers start and left after they end, and
    its state is passed on.

    The result is also a mapping of the services by name. Raises ConfigurationError.
    """
    services = consumers_of(first, rest, name=name, restart=restart, on_failure=on_failure)
    return Running(*services, within=within)


def health_routes(*consumers: ConsumerService[Any, Any] | Consumers) -> list[Route]:
    """The routes ``/health/live``, ``/health/ready`` and ``/stats`` for results of :func:`running` or services."""
    all_of_them = answers.together(consumers)

    async def live(request: Request) -> JSONResponse:
        return _json(answers.live(all_of_them))

    async def ready(request: Request) -> JSONResponse:
        return _json(answers.ready(all_of_them))

    async def stats(request: Request) -> JSONResponse:
        return _json(answers.stats(all_of_them))

    return [Route(answers.LIVE, live), Route(answers.READY, ready), Route(answers.STATS, stats)]


def metrics_routes(registry: CollectorRegistry | None = None) -> list[Route]:
    """The route ``/metrics`` for Prometheus, of consumers with ``PrometheusMetrics`` and all else in ``registry``.

    ``registry``: None: prometheus_client's default registry. Raises ImportError without prometheus-client.
    """
    expose = answers.metrics(registry)

    async def metrics(request: Request) -> Response:
        body, content_type = await expose(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type})

    return [Route(answers.METRICS, metrics)]


def _json(answer: answers.Answer) -> JSONResponse:
    return JSONResponse(answer.body, answer.status)
