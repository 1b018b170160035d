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
from typing import Any, overload

try:
    from aiohttp import web
except ImportError as error:
    raise ImportError("aioparallel.web.aiohttp needs aiohttp: pip install aiohttp") from error

from aioparallel.consumer import ParallelConsumer
from aioparallel.handlers import HandlersOf
from aioparallel.option_docs import describes_like
from aioparallel.process_signals import ENDING, before_the_loops
from aioparallel.records import K_co, V_co
from aioparallel.web import answers
from aioparallel.web.restarts import RestartPolicy
from aioparallel.web.service import ConsumerService, OnFailure
from aioparallel.web.services import Consumers, consumers_of

__all__ = ["Running", "health_routes", "running"]


class Running(Consumers):
    """Consumers, by name, and the context of the application that they run in."""

    async def __call__(self, app: web.Application) -> AsyncIterator[None]:
        """For ``app.cleanup_ctx``. Raises at the end what a consumer has failed with that has ended the application, so
        that ``run_app`` does: the process then ends with code 1."""
        hurry = _Hurry(self, asyncio.current_task())
        with before_the_loops(ENDING, hurry):
            await self.__aenter__()
            try:
                yield
            finally:
                hurry.leaving = True
                await self.__aexit__(None, None, None)
        for service in self.values():
            if service.ended_application and service.failure is not None:
                raise service.failure


class _Hurry:
    """At a second signal consumers no longer drain, and ``run_app`` does not hear of it while they end.

    It would end there and then: it cancels every task of the loop, those of the connection for the last commit too,
    and what was done since the one before would be done again.
    """

    def __init__(self, consumers: Consumers, application: asyncio.Task[Any] | None) -> None:
        self._consumers = consumers
        self._application = application
        self.leaving = False

    def __call__(self) -> bool:
        """Whether the signal has done what it was meant to."""
        if not self.leaving and (self._application is None or not self._application.cancelling()):
            return False  # the first one: the application is to hear of it
        kept = [service for service in self._consumers.values() if service.keeper is not None]
        for service in kept:
            service.stop(drain=False)
        return any(service.keeper is not None and not service.keeper.is_over for service in kept)


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
    """The context of an application with a consumer, or several: ``app.cleanup_ctx.append(running(...))``.

    It takes what :class:`~aioparallel.web.ConsumerService` takes, ``running(make_consumer, handler, name=...,
    restart=..., on_failure=...)``, or services: ``running(orders, refunds)``. What handlers need comes before it in the
    list.

    What it returns has the services by name as well. Raises ConfigurationError.
    """
    return Running(*consumers_of(first, rest, name=name, restart=restart, on_failure=on_failure))


def health_routes(*consumers: ConsumerService[Any, Any] | Consumers) -> list[web.RouteDef]:
    """``/health/live``, ``/health/ready`` and ``/stats`` of what :func:`running` returned, or of services."""
    all_of_them = answers.together(consumers)

    async def live(request: web.Request) -> web.Response:
        return _json(answers.live(all_of_them))

    async def ready(request: web.Request) -> web.Response:
        return _json(answers.ready(all_of_them))

    async def stats(request: web.Request) -> web.Response:
        return _json(answers.stats(all_of_them))

    return [web.get(answers.LIVE, live), web.get(answers.READY, ready), web.get(answers.STATS, stats)]


def _json(answer: answers.Answer) -> web.Response:
    return web.json_response(answer.body, status=answer.status)
