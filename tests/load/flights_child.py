"""Consumers of the flights pipeline, each a process of its own that may be killed. They stop when standard input ends.

``python -m tests.load.flights_child enrich SERVERS SERVICE``: the example's own consumer, without an end.
``python -m tests.load.flights_child read SERVERS GROUP BY NOTES UNTIL``: reads topic ``enriched`` without copies, and
notes each flight in a file; see :mod:`tests.load.flights_programs`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Literal, cast

from aioparallel import Deduplicate, ParallelConsumer, Record
from aioparallel.event_loop.loop import loop_factory, quick_collections
from aioparallel.records.source_headers import coordinates_of
from examples.flights.lines import appending
from examples.flights_pipeline.enriching import enricher, weather_handler
from examples.flights_pipeline.settings import ENRICHED

from .flights_programs import READ, REMEMBERED, SESSION


def on_uvloop(work: Coroutine[Any, Any, None]) -> None:
    """Run as ``run_sync`` would."""
    quick_collections()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(work)


async def run(consumer: ParallelConsumer[Any, Any], handler: Callable[[Record], Awaitable[Any]]) -> None:
    """Run it until it ends, or standard input does."""
    loop, end = asyncio.get_running_loop(), sys.stdin.fileno()

    def stop() -> None:
        loop.remove_reader(end)  # nothing is ever written: readable means closed
        consumer.stop()

    async with consumer:
        loop.add_reader(end, stop)
        await consumer.run(handler)


def enrich(servers: str, service: str) -> None:
    """The example's consumer; only that its death is noticed sooner."""
    on_uvloop(run(enricher(servers, until=None, session_timeout=SESSION), weather_handler(service)))


def read(servers: str, group: str, by: str, notes: str, until: str) -> None:
    """Note each flight when it is handled: partition and offset in topic ``raw``, offset in ``enriched``, key."""
    consumer = ParallelConsumer(
        ENRICHED,
        bootstrap_servers=servers,
        group_id=group,
        deduplicate=Deduplicate(READ, by=cast("Literal['record', 'key']", by), remember=REMEMBERED),
        session_timeout=SESSION,
        until="end" if until == "end" else None,
    )
    with appending(Path(notes)) as lines:

        async def note(record: Record) -> None:
            source = coordinates_of(record.headers)
            assert source is not None
            lines.write(b"%d %d %d %b" % (source.partition, source.offset, record.offset, record.key or b""))

        on_uvloop(run(consumer, note))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if sys.argv[1] == "enrich":
        enrich(*sys.argv[2:])
    else:
        read(*sys.argv[2:])
