"""A server whose consumer is in trouble: ``python -m tests.support.children.service KIND PORT TROUBLE``.

KIND: ``uvicorn`` or ``aiohttp``; the broker is in memory, in this process. TROUBLE names one of the functions below.
What the tests wait for is printed to standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import uvicorn
from aiohttp import web
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from aioparallel import ParallelConsumer, Record
from aioparallel.testing.memory import InMemoryBroker
from aioparallel.web import ConsumerService, RestartPolicy
from aioparallel.web import aiohttp as for_aiohttp
from aioparallel.web import starlette as for_starlette
from tests.support.memory.consuming import consumer_of, produce

Handler = Callable[[Record[Any, Any]], Awaitable[None]]
SOON = RestartPolicy(first_delay=0.2, max_delay=0.2)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class MuteError(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


def broker() -> InMemoryBroker:
    made = InMemoryBroker()
    made.create_topic("t", 1)
    produce(made, [b"k"])
    return made


def opening(errors: list[BaseException]) -> Callable[[], ParallelConsumer[Any, Any]]:
    """Makes consumers that cannot be opened, until no error is left; the last one stays."""
    on = broker()

    @asynccontextmanager
    async def resource() -> AsyncIterator[None]:
        if errors:
            say(f"opening raises {type(errors[0]).__name__}")
            raise errors.pop(0) if len(errors) > 1 else errors[0]
        yield

    return lambda: consumer_of(on, resources={"it": resource})


async def nothing(record: Record[Any, Any]) -> None:
    pass


def group() -> ConsumerService[Any, Any]:
    """Its first start ends with a group of errors that is no Exception."""
    errors: list[BaseException] = [BaseExceptionGroup("a task group", [asyncio.CancelledError(), MuteError()])]
    return ConsumerService(once(errors), nothing, restart=SOON)


def mute() -> ConsumerService[Any, Any]:
    """Its first start ends with an error without a text."""
    return ConsumerService(once([MuteError()]), nothing, restart=SOON)


def once(errors: list[BaseException]) -> Callable[[], ParallelConsumer[Any, Any]]:
    make = opening(errors)
    made = 0

    def make_one() -> ParallelConsumer[Any, Any]:
        nonlocal made
        made += 1
        if made > 1:
            errors.clear()
        return make()

    return make_one


def group_always() -> ConsumerService[Any, Any]:
    """It fails for good."""
    errors: list[BaseException] = [BaseExceptionGroup("a task group", [asyncio.CancelledError(), MuteError()])]
    return ConsumerService(
        opening(errors), nothing, restart=RestartPolicy(first_delay=0.05, max_delay=0.05, max_restarts=2)
    )


def mute_always() -> ConsumerService[Any, Any]:
    """It fails for good."""
    return ConsumerService(
        opening([MuteError()]), nothing, restart=RestartPolicy(first_delay=0.05, max_delay=0.05, max_restarts=2)
    )


def deaf() -> ConsumerService[Any, Any]:
    """Its handler ignores its cancellation."""
    on = broker()

    async def handle(record: Record[Any, Any]) -> None:
        say("handling")
        while True:
            with contextlib.suppress(BaseException):
                await asyncio.sleep(0.05)

    return ConsumerService(lambda: consumer_of(on, drain_timeout=0.2), handle)


TROUBLES: dict[str, Callable[[], ConsumerService[Any, Any]]] = {
    "group": group,
    "mute": mute,
    "group_always": group_always,
    "mute_always": mute_always,
    "deaf": deaf,
}


class Two:
    """Two services whose starts, and ends, overlap: each step is asked for by a request."""

    def __init__(self) -> None:
        self.gates = {(name, step): asyncio.Event() for name in "ab" for step in ("open", "close")}
        self.stack = AsyncExitStack()
        self.tasks: dict[tuple[str, str], asyncio.Task[Any]] = {}
        self.services = {name: self.service(name) for name in "ab"}

    def service(self, name: str) -> ConsumerService[Any, Any]:
        @asynccontextmanager
        async def resource() -> AsyncIterator[None]:
            await self.gates[name, "open"].wait()
            try:
                yield
            finally:
                await self.gates[name, "close"].wait()

        on = broker()
        return ConsumerService(lambda: consumer_of(on, resources={"it": resource}), nothing, name=name)

    async def step(self, name: str, step: str) -> str:
        """``enter`` and ``leave`` begin; ``open`` and ``close`` let them go on to their end."""
        if step in ("enter", "leave"):
            service = self.services[name]
            work = service.__aenter__() if step == "enter" else service.__aexit__(None, None, None)
            self.tasks[name, step] = asyncio.create_task(work)
            await asyncio.sleep(0.05)
        else:
            self.gates[name, step].set()
            await self.tasks[name, "enter" if step == "open" else "leave"]
        return f"{signal.getsignal(signal.SIGINT)!r} {signal.getsignal(signal.SIGTERM)!r}"


def serve_with_uvicorn(port: int, trouble: str) -> None:
    if trouble == "two":
        two: list[Two] = []

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            two.append(Two())
            yield

        async def step(request: Request) -> PlainTextResponse:
            return PlainTextResponse(await two[0].step(**request.path_params))

        app = Starlette(lifespan=lifespan, routes=[Route("/{name}/{step}", step)])
    else:
        consumers = for_starlette.running(TROUBLES[trouble]())
        app = Starlette(lifespan=consumers, routes=for_starlette.health_routes(consumers))
    uvicorn.run(app, port=port, access_log=False)


def serve_with_aiohttp(port: int, trouble: str) -> None:
    app = web.Application()
    if trouble == "two":
        two: list[Two] = []

        async def make(app: web.Application) -> None:
            two.append(Two())

        async def step(request: web.Request) -> web.Response:
            return web.Response(text=await two[0].step(**request.match_info))

        app.on_startup.append(make)
        app.add_routes([web.get("/{name}/{step}", step)])
    else:
        if trouble == "own_handler":
            app.cleanup_ctx.append(own_handler)
        consumers = for_aiohttp.running(TROUBLES["deaf" if trouble == "own_handler" else trouble]())
        app.cleanup_ctx.append(consumers)
        app.add_routes(for_aiohttp.health_routes(consumers))
    web.run_app(app, host="127.0.0.1", port=port, access_log=None, print=None)


async def own_handler(app: web.Application) -> AsyncIterator[None]:
    """The application hears of SIGTERM itself, and then ends as aiohttp does; it is cleaned up last."""
    loop, heard = asyncio.get_running_loop(), asyncio.Event()

    def on_term() -> None:
        say("the application has heard")
        if not heard.is_set():
            heard.set()
            raise web.GracefulExit

    loop.add_signal_handler(signal.SIGTERM, on_term)
    yield
    say("the consumers have left")
    signal.raise_signal(signal.SIGTERM)
    await asyncio.sleep(0.2)


def main(kind: str, port: str, trouble: str) -> None:
    """Serve until the end."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    (serve_with_uvicorn if kind == "uvicorn" else serve_with_aiohttp)(int(port), trouble)


if __name__ == "__main__":
    main(*sys.argv[1:])
