"""Consumers inside aiohttp: a context for ``cleanup_ctx``, and routes for probes.

::

    from aiohttp import web
    from aioparallel.web.aiohttp import health_routes, running

    consumers = running(make_consumer, handle)
    app = web.Application()
    app.cleanup_ctx.append(consumers)
    app.add_routes(health_routes(consumers))
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, overload

try:
    from aiohttp import web
except ImportError as error:
    raise ImportError("aioparallel.web.aiohttp needs aiohttp: pip install aiohttp") from error

from aioparallel.config.option_docs import describes_like
from aioparallel.consumer import ParallelConsumer
from aioparallel.event_loop.process_signals import ENDING, before_the_loops
from aioparallel.handlers.stack import HandlersOf
from aioparallel.records.record import K_co, V_co
from aioparallel.web import answers
from aioparallel.web.restarts import RestartPolicy
from aioparallel.web.service import ConsumerService, OnFailure
from aioparallel.web.services import Consumers, consumers_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["Running", "health_routes", "metrics_routes", "running"]


class Running(Consumers):
    """Consumers by name, and a context for ``app.cleanup_ctx`` that runs them."""

    async def __call__(self, app: web.Application) -> AsyncIterator[None]:
        """For ``app.cleanup_ctx``. If the failure of a consumer ended the application, raises it at the end, so
        ``run_app`` raises it too and the process exits with code 1."""
        on_signal = _OnSignal(self, asyncio.current_task())
        with before_the_loops(ENDING, on_signal):
            await self.__aenter__()
            try:
                yield
            finally:
                on_signal.leaving = True
                await self.__aexit__(None, None, None)
        for service in self.values():
            if service.ended_application and service.failure is not None:
                raise service.failure


class _OnSignal:
    """A second signal ends the draining, and is kept from ``run_app`` while the consumers stop.

    ``run_app`` would end at it by cancelling every task of the loop, also those of the connection that the last commit
    needs. The records handled since the commit before would then run again.
    """

    def __init__(self, consumers: Consumers, application: asyncio.Task[Any] | None) -> None:
        self._consumers = consumers
        self._application = application
        self.leaving = False

    def __call__(self) -> bool:
        """Whether the signal is dealt with and the application must not see it."""
        if not self.leaving and (self._application is None or not self._application.cancelling()):
            return False  # the first signal is the application's
        supervisors = [one.supervisor for one in self._consumers.values() if one.supervisor is not None]
        for supervisor in supervisors:
            supervisor.stop(drain=False)
        return any(not supervisor.has_ended for supervisor in supervisors)


@overload
def running(
    make_consumer: Callable[[], ParallelConsumer[K_co, V_co]],
    handler: HandlersOf[K_co, V_co],
    /,
    *,
    name: str = ...,
    restart: RestartPolicy | None = None,
    on_failure: OnFailure = ...,
) -> Running: ...
@overload
def running(first: ConsumerService[Any, Any], /, *others: ConsumerService[Any, Any]) -> Running: ...
@describes_like(ConsumerService)
def running(
    first: Any,
    /,
    *rest: Any,
    name: str | None = None,
    restart: RestartPolicy | None = None,
    on_failure: OnFailure | None = None,
) -> Running:
    """A context that runs one or more consumers in an application: ``app.cleanup_ctx.append(running(...))``.

    Takes the arguments of :class:`~aioparallel.web.ConsumerService`, as in ``running(make_consumer, handler,
    name=..., restart=..., on_failure=...)``, or services: ``running(orders, refunds)``. Append it after the contexts of
    what the handlers need.

    The result is also a mapping of the services by name. Raises ConfigurationError.
    """
    return Running(*consumers_of(first, rest, name=name, restart=restart, on_failure=on_failure))


def health_routes(*consumers: ConsumerService[Any, Any] | Consumers) -> list[web.RouteDef]:
    """The routes ``/health/live``, ``/health/ready`` and ``/stats`` for results of :func:`running` or services."""
    all_of_them = answers.together(consumers)

    async def live(request: web.Request) -> web.Response:
        return _json(answers.live(all_of_them))

    async def ready(request: web.Request) -> web.Response:
        return _json(answers.ready(all_of_them))

    async def stats(request: web.Request) -> web.Response:
        return _json(answers.stats(all_of_them))

    return [web.get(answers.LIVE, live), web.get(answers.READY, ready), web.get(answers.STATS, stats)]


def metrics_routes(registry: CollectorRegistry | None = None) -> list[web.RouteDef]:
    """The route ``/metrics`` for Prometheus, of consumers with ``PrometheusMetrics`` and all else in ``registry``.

    ``registry``: None: prometheus_client's default registry. Raises ImportError without prometheus-client.
    """
    expose = answers.metrics(registry)

    async def metrics(request: web.Request) -> web.Response:
        body, content_type = await expose(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    return [web.get(answers.METRICS, metrics)]


def _json(answer: answers.Answer) -> web.Response:
    return web.json_response(answer.body, status=answer.status)
