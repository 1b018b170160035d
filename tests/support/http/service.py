"""A service of aiohttp's, in the loop of the test: it answers as configured, and records its requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

__all__ = ["Answer", "Service", "service"]

Answer = web.StreamResponse | float | asyncio.Event | None
"""None: 200; seconds, or an event: it waits so long first; or the answer itself."""


class Service:
    """``url``: where it listens. ``answer``: by what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[web.BaseRequest] = []
        self.bodies: list[bytes] = []
        self.now = 0
        self.most = 0
        self.answer: Callable[[web.BaseRequest], Answer] = lambda request: None
        self.cancelled = 0

    @property
    def paths(self) -> Counter[str]:
        """How often each was asked for."""
        return Counter(request.path for request in self.asked)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Any request."""
        self.asked.append(request)
        self.bodies.append(await request.read())
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            answer = self.answer(request)
            if isinstance(answer, float | asyncio.Event):
                await (asyncio.sleep(answer) if isinstance(answer, float) else answer.wait())
                answer = None
            return web.json_response({"path": request.path_qs}) if answer is None else answer
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.now -= 1


@asynccontextmanager
async def service() -> AsyncIterator[Service]:
    """One that listens on loopback."""
    found = Service()
    runner = web.ServerRunner(web.Server(found.handle, handler_cancellation=True), shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        found.url = f"http://{host}:{port}"
        yield found
    finally:
        await runner.cleanup()
