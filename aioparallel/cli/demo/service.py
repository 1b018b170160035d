"""The HTTP service of the demo, a process of its own: one answer for each flight, after 5 to 30 ms.

``GET /flights/{tail number}/{origin}/{destination}/{hour}?partition=&offset=&run=`` answers with the JSON of
:class:`~aioparallel.cli.demo.flights.Enrichments`, as 200, or as 404 when the plane is not known. A flight
without tail number asks for ``NA``. The query says which record asks, for the log of what the service saw.

It runs until its standard input closes, so it cannot outlive the process that started it.
"""

from __future__ import annotations

import asyncio
import sys
from hashlib import blake2b
from pathlib import Path

from aiohttp import web

from aioparallel.cli.demo.events import EventLog, Kind
from aioparallel.cli.demo.flights import Enrichments, data_directory
from aioparallel.cli.demo.process import announce, run_until_parent_ends

__all__ = ["LONGEST_DELAY", "SHORTEST_DELAY", "Service", "delay_of", "main"]

SHORTEST_DELAY = 0.005  # seconds
LONGEST_DELAY = 0.030  # seconds


def delay_of(seed: int, path: str) -> float:
    """Seconds until the answer: the same for the same seed and flight, uniform from 5 to 30 ms."""
    digest = blake2b(path.encode(), digest_size=8, salt=seed.to_bytes(16, "little", signed=True)).digest()
    share = int.from_bytes(digest, "little") / 2**64
    return SHORTEST_DELAY + share * (LONGEST_DELAY - SHORTEST_DELAY)


class Service:
    """Answers requests and writes down when each came and was answered."""

    def __init__(self, enrichments: Enrichments, events: EventLog, seed: int) -> None:
        self._enrichments = enrichments
        self._events = events
        self._seed = seed

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """One flight; 400 for anything else."""
        path, _, query = request.raw_path.partition("?")
        try:
            _, flights, tail_number, origin, destination, hour = path.split("/")
            asks = dict(pair.split("=") for pair in query.split("&"))
            place = int(asks["run"]), int(asks["partition"]), int(asks["offset"])
        except (ValueError, KeyError):
            flights = ""
        if flights != "flights":
            return web.Response(status=400, text=f"not a request for a flight: {request.raw_path}")
        self._events.write(Kind.BEGAN, *place)
        await asyncio.sleep(delay_of(self._seed, path))
        known, body = self._enrichments.answer(tail_number, origin, destination, hour)
        self._events.write(Kind.COMPLETED, *place)
        return web.Response(status=200 if known else 404, body=body, content_type="application/json")


async def serve(events_path: Path, seed: int) -> None:
    """Serve on a free port of the loopback interface until cancelled; says the port on standard output."""
    loop = asyncio.get_running_loop()
    with EventLog(events_path) as events:
        service = Service(Enrichments(data_directory()), events, seed)
        handlers = web.Server(service.answer, access_log=None)
        server = await loop.create_server(handlers, "127.0.0.1", 0, backlog=4096)
        try:
            announce(str(server.sockets[0].getsockname()[1]))
            await asyncio.Event().wait()
        finally:
            server.close()
            await handlers.shutdown(timeout=1.0)


def main(events_path: str, seed: str) -> None:
    """The process."""
    run_until_parent_ends(serve(Path(events_path), int(seed)))


if __name__ == "__main__":
    main(*sys.argv[1:])
