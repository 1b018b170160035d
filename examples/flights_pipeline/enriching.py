"""Topic work to topic enriched: one HTTP call for each flight, many at once, those of an aircraft in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, Literal

import aiohttp
from yarl import URL

from aioparallel import (
    Deduplicate,
    FailurePolicy,
    Ordering,
    Outgoing,
    ParallelConsumer,
    Record,
    RetryPolicy,
    resource,
)
from examples.flights.flights import compact
from examples.flights.progress import Show
from examples.flights_pipeline.settings import ENRICHED, SEEN, WORK

__all__ = ["enrich_all", "enricher", "weather_handler"]

_CONCURRENCY: Final = 300
_AIRCRAFT: Final = 5_000
"""More than the 4,043 that exist, so more than a micro-batch can bring to one partition."""
_LOOKS: Final = 0.5
"""Seconds between two updates of the statistics."""
_WEATHER: Final = ("temp", "precip", "visib", "wind_speed")
_HERE_OR_NOT: Final = (200, 404)  # 404: an unknown aircraft, but the weather is known


async def enrich_all(servers: str, service: str, show: Show) -> None:
    """Run until the end of topic ``work``. Raises the fifth failure of a flight."""
    consumer = enricher(servers)
    async with consumer:
        running = asyncio.create_task(consumer.run(weather_handler(service)))
        try:
            while not running.done():
                await asyncio.wait([running], timeout=_LOOKS)
                with contextlib.suppress(Exception):  # before the consumer runs
                    stats = consumer.stats()
                    show(stats.succeeded + stats.copies, f"{stats.in_flight} in flight")
        finally:
            consumer.stop()
            await running


def enricher(servers: str, until: Literal["end"] | None = "end", session_timeout: float = 30.0) -> ParallelConsumer:
    """The consumer. It does not enrich a flight again that Spark has written twice."""
    return ParallelConsumer(
        WORK,
        bootstrap_servers=servers,
        group_id="enrich",
        ordering=Ordering.KEY,
        max_concurrency=_CONCURRENCY,
        handler_timeout=30.0,
        failures=FailurePolicy(retry=RetryPolicy(max_attempts=5)),
        # By key, which keeps only one mark for each aircraft. This is right here: Spark writes an aircraft's flights in
        # order even when it repeats a micro-batch, and none is skipped, as one that finally fails ends the run. Dead
        # letters would need by="record".
        deduplicate=Deduplicate(SEEN, by="key", remember=_AIRCRAFT),
        resources={"http": _http},
        until=until,
        session_timeout=session_timeout,
    )


def _http() -> AbstractAsyncContextManager[aiohttp.ClientSession]:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=_CONCURRENCY), cookie_jar=aiohttp.DummyCookieJar()
    )


def weather_handler(service: str) -> Callable[[Record], Awaitable[Outgoing]]:
    """The handler for the service at this URL."""
    return partial(_enrich, service)


async def _enrich(service: str, record: Record) -> Outgoing:
    """The flight with the weather at its departure, with the same key and headers."""
    flight = json.loads(record.value or b"{}")
    path = f"{flight.get('tailnum', 'NA')}/{flight['origin']}/{flight['dest']}/{flight['time_hour']}"
    # The service logs who asks. The URL is encoded already: yarl's encoding takes longer than the request.
    url = URL(f"{service}/flights/{path}?partition={record.partition}&offset={record.offset}", encoded=True)
    async with resource("http", aiohttp.ClientSession).get(url) as answer:
        if answer.status not in _HERE_OR_NOT:
            answer.raise_for_status()
        weather = json.loads(await answer.read())["weather"]
    flight["weather"] = weather and {name: weather[name] for name in _WEATHER}
    return Outgoing(ENRICHED, compact(flight), key=record.key, headers=record.headers)
