"""The HTTP service in a process of its own: an answer for each flight after 5 to 30 ms.

``GET /{run}/flights/{tail number}/{origin}/{destination}/{hour}?partition=&offset=`` is answered with the JSON of
:class:`~examples.flights.flights.Enrichments`, as 200, or as 404 if the plane is unknown. A flight without tail number
uses ``NA``. The query names the record that asks, and ``run`` the consumer's process, which each have an event log.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from aioparallel.testing.event_log import EventLog
from aioparallel.testing.processes.child import Child
from aioparallel.testing.processes.parent import run_until_parent_ends, tell
from examples.flights.flights import Enrichments, data_directory

__all__ = ["LONGEST_DELAY", "SHORTEST_DELAY", "Service", "delay_of", "run_service"]

SHORTEST_DELAY = 0.005  # seconds
LONGEST_DELAY = 0.030  # seconds


class Question(NamedTuple):
    """A parsed request."""

    run: int
    partition: int
    offset: int
    path: str

    @classmethod
    def of(cls, target: str) -> Question:
        """Parse the request's target. Raises ValueError and KeyError for anything else."""
        path, _, query = target.partition("?")
        _, run, flights, *rest = path.split("/")
        if flights != "flights" or len(rest) != 4:
            raise ValueError(target)
        asking = dict(pair.split("=") for pair in query.split("&"))
        return cls(int(run), int(asking["partition"]), int(asking["offset"]), "/".join(rest))


def delay_of(seed: int, path: str) -> float:
    """Seconds until the answer: uniform from 5 to 30 ms, the same for the same seed and flight."""
    digest = blake2b(path.encode(), digest_size=8, salt=seed.to_bytes(16, "little", signed=True)).digest()
    share = int.from_bytes(digest, "little") / 2**64
    return SHORTEST_DELAY + share * (LONGEST_DELAY - SHORTEST_DELAY)


class Service:
    """Answers requests, and logs when each came and was answered, in ``{events}-{run}.events``."""

    def __init__(self, enrichments: Enrichments, events: Path, seed: int) -> None:
        self._enrichments = enrichments
        self._events = events
        self._seed = seed
        self._logs: dict[int, EventLog] = {}
        self._open = ExitStack()

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """The answer for a flight; 400 for anything else."""
        try:
            run, partition, offset, path = Question.of(request.raw_path)
        except (ValueError, KeyError):
            return web.Response(status=400, text=f"not a request for a flight: {request.raw_path}")
        log = self._log(run)
        log.began(partition, offset)
        await asyncio.sleep(delay_of(self._seed, path))
        known, body = self._enrichments.answer(*path.split("/"))
        log.ended(partition, offset)
        return web.Response(status=200 if known else 404, body=body, content_type="application/json")

    def close(self) -> None:
        """Close the logs."""
        self._open.close()

    def _log(self, run: int) -> EventLog:
        if run not in self._logs:
            path = self._events.with_name(f"{self._events.name}-{run}.events")
            self._logs[run] = self._open.enter_context(EventLog(path))
        return self._logs[run]


async def serve(events: Path, seed: int) -> None:
    """Serve on a free port of the loopback interface until cancelled; prints the port."""
    service = Service(Enrichments(data_directory()), events, seed)
    handlers = web.Server(service.answer, access_log=None)
    server = await asyncio.get_running_loop().create_server(handlers, "127.0.0.1", 0, backlog=4096)
    try:
        tell(str(server.sockets[0].getsockname()[1]))
        await asyncio.Event().wait()
    finally:
        server.close()
        await handlers.shutdown(timeout=1.0)
        service.close()


@asynccontextmanager
async def run_service(events: Path, seed: int = 2013) -> AsyncIterator[str]:
    """Start the service as a process that ends with this one. Yields its URL. Its log is next to ``events``."""
    log, module = events.with_name(f"{events.name}.log"), "examples.flights.service"
    async with Child.of_module("HTTP service", module, str(events), str(seed), log=log) as child:
        yield f"http://127.0.0.1:{await child.line()}"


if __name__ == "__main__":
    run_until_parent_ends(serve(Path(sys.argv[1]), int(sys.argv[2])))
