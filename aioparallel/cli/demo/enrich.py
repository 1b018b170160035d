"""The handler of the demo: asks the service about one flight and appends the enriched record to a file."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from httpx_aiohttp import AiohttpTransport

from aioparallel.cli.demo.events import EventLog, Kind, Lines
from aioparallel.cli.demo.flights import compact
from aioparallel.records import Record

__all__ = ["Enricher", "open_client"]

REQUEST_TIMEOUT = 30.0  # seconds; answers take 5 to 30 ms
ANSWERS = frozenset({httpx.codes.OK, httpx.codes.NOT_FOUND})  # 404: the plane is not known, the rest is


@asynccontextmanager
async def open_client(connections: int) -> AsyncIterator[httpx.AsyncClient]:
    """An httpx client for ``connections`` requests at once.

    Over aiohttp's transport: httpx's own pool walks all its connections at each request and fell to 107
    requests/s with 1,000 of them, where this one did 2,990.
    """
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    transport = AiohttpTransport(limits=limits, trust_env=False)
    async with httpx.AsyncClient(transport=transport, timeout=REQUEST_TIMEOUT, trust_env=False) as client:
        yield client


class Enricher:
    """The handler. ``service`` is the address of the HTTP service. ``run`` counts the processes that have tried this;
    it goes into everything written."""

    def __init__(self, client: httpx.AsyncClient, service: str, events: EventLog, enriched: Lines, run: int) -> None:
        self._client = client
        self._service = service
        self._events = events
        self._enriched = enriched
        self._run = run

    async def handle(self, record: Record) -> None:
        """Enrich one flight. Raises httpx.HTTPError when the service does not answer as it should."""
        place = self._run, record.partition, record.offset, record.attempt
        self._events.write(Kind.BEGAN, *place)
        try:
            self._enriched.write(await self.enrich(record))
        except BaseException:
            self._events.write(Kind.FAILED, *place)
            raise
        self._events.write(Kind.COMPLETED, *place)

    async def enrich(self, record: Record) -> bytes:
        """The enriched flight as one line of JSON, with the record it came from."""
        flight = json.loads(record.value or b"{}")
        plane, route = flight["tailnum"] or "NA", f"{flight['origin']}/{flight['dest']}"
        response = await self._client.get(
            # A whole address: with a base_url httpx would parse each one twice.
            f"{self._service}/flights/{plane}/{route}/{flight['time_hour']}"
            f"?partition={record.partition}&offset={record.offset}&run={self._run}"
        )
        if response.status_code not in ANSWERS:
            raise httpx.HTTPStatusError(
                f"the service answered {response.status_code} for {record!r}",
                request=response.request,
                response=response,
            )
        source = {"partition": record.partition, "offset": record.offset, "run": self._run}
        return compact({**source, "flight": flight, **json.loads(response.content)})
