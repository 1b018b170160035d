"""A server with an example's application: ``python -m tests.support.children.web KIND PORT EVENTS SUFFIX [exit|slow]``.

It is the unchanged example, but that its topics and groups have a suffix, that what is done to orders is noted in an
event log, and, with ``exit``, that a consumer's failure ends it; with ``slow``, that orders take long after the first.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from aiohttp import web
from fastapi import FastAPI

from aioparallel import CallNext, ParallelConsumer, Record
from aioparallel.testing.event_log import EventLog
from aioparallel.web import ConsumerService
from aioparallel.web.fastapi import health_router, running
from examples import aiohttp_app, fastapi_app

QUICK = 300
"""So many orders of each partition."""


def maker(log: EventLog, suffix: str, *, slow: bool) -> Callable[..., ParallelConsumer[Any, Any]]:
    """A replacement for ParallelConsumer in the example."""

    async def noted(record: Record[Any, Any], call_next: CallNext) -> object:
        if not record.topic.startswith("orders"):
            return await call_next(record)
        with log.handling(record):
            if slow and record.offset >= QUICK:
                await asyncio.sleep(600)
            return await call_next(record)

    def make(topic: str, *, group_id: str, **options: Any) -> ParallelConsumer[Any, Any]:
        print("making", topic, file=sys.stderr, flush=True)
        return ParallelConsumer(topic + suffix, group_id=group_id + suffix, middleware=[noted], **options)

    return make


class Ending(ConsumerService[Any, Any]):
    """Ends the application when it fails, for the first time."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **{**options, "restart": None, "on_failure": "exit"})


def ending_app() -> FastAPI:
    """That of the example, with such a consumer."""
    consumers = running(Ending(fastapi_app.make_consumer, fastapi_app.add))
    app = FastAPI(lifespan=consumers)
    app.include_router(health_router(consumers))
    return app


def main(kind: str, port: str, events: str, suffix: str, *rest: str) -> None:
    """Serve until the end."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    with EventLog(Path(events)) as log:
        example: Any = fastapi_app if kind == "fastapi" else aiohttp_app
        example.ParallelConsumer = maker(log, suffix, slow="slow" in rest)
        if "exit" in rest:
            vars(aiohttp_app)["ConsumerService"] = Ending
        if kind == "fastapi":
            uvicorn.run(ending_app() if "exit" in rest else fastapi_app.app, port=int(port), access_log=False)
        else:
            web.run_app(aiohttp_app.application(), host="127.0.0.1", port=int(port), access_log=None, print=None)


if __name__ == "__main__":
    main(*sys.argv[1:])
