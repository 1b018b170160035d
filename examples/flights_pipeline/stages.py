"""The order of events: a broker, then each stage to its end, with a line about how far it is."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from rich.console import Console

from aioparallel.errors import ConfigurationError
from aioparallel.spark.logs import survey
from aioparallel.testing.brokers.local import LocalKafka
from examples.flights.progress import Show, progress
from examples.flights.service import run_service
from examples.flights_pipeline.declared import run_declared
from examples.flights_pipeline.enriching import enrich_all
from examples.flights_pipeline.filling import fill
from examples.flights_pipeline.programs import run_program
from examples.flights_pipeline.settings import ENRICHED, PARTITIONS, RAW, SEEN, WORK, Settings

__all__ = ["Counts", "Stages", "clear", "create_topics"]

_MARK: Final = ".flights-pipeline"
"""A file that says whose directory it is in."""
_ANSWER: Final = 30.0
"""Seconds for an answer of the broker."""


@dataclass(frozen=True)
class Counts:
    """What the last stage has found in topic ``enriched``."""

    records: int
    flights: int
    overtaken: int
    """Flights that stand before an earlier one of the same aircraft."""

    @property
    def duplicates(self) -> int:
        """Records beyond the first of each flight."""
        return self.records - self.flights


def clear(settings: Settings) -> None:
    """Remove what an earlier run wrote. Its checkpoints too: they speak of topics that are gone.

    Raises ConfigurationError for a directory with files that are not of an earlier run: it may be anybody's.
    """
    output, mark = settings.output, settings.output / _MARK
    if output.exists() and not output.is_dir():
        raise ConfigurationError("--output", str(output), "is a file: name a directory")
    if output.exists() and any(output.iterdir()) and not mark.exists():
        raise ConfigurationError(
            "--output", str(output), "is not empty, and not of an earlier run: name another directory"
        )
    shutil.rmtree(output, ignore_errors=True)
    settings.logs.mkdir(parents=True)
    mark.touch()


async def create_topics(kafka: LocalKafka) -> None:
    """The topics of the pipeline."""
    for topic in (RAW, WORK, ENRICHED):
        await kafka.create_topic(topic, PARTITIONS)
    await kafka.create_topic(SEEN, PARTITIONS, {"cleanup.policy": "compact"})


class Stages:
    """All of them, on a broker that runs."""

    def __init__(self, settings: Settings, kafka: LocalKafka, console: Console) -> None:
        self._settings = settings
        self._kafka = kafka
        self._servers = kafka.bootstrap_servers
        self._console = console

    async def run(self) -> Counts:
        """From the file to Parquet. Raises AioparallelError, and what a handler fails with."""
        count = self._settings.flights
        await create_topics(self._kafka)
        with self._stage("1 fill topic raw", count) as show:
            await fill(self._servers, RAW, count, show)
        with self._stage("2 Spark: raw to work", count) as show:
            await run_declared(self._settings, self._servers, show)
        with self._stage("3 aioparallel: enrich", await self._size(WORK)) as show:
            # The demo's weather service, a process of its own: answers after 5 to 30 ms.
            async with run_service(self._settings.logs / "service") as service:
                await enrich_all(self._servers, f"{service}/0", show)
        with self._stage("4 Spark: totals", await self._size(ENRICHED)) as show:
            return await self._totals(show)

    async def _totals(self, show: Show) -> Counts:
        found: list[Counts] = []

        def hear(line: str) -> None:
            if line.startswith('{"records"'):
                found.append(Counts(**json.loads(line)))
                show(found[0].records, "")

        module = "examples.flights_pipeline.totals"
        paths = (str(path.absolute()) for path in (self._settings.delays, self._settings.missing))
        command = [sys.executable, "-m", module, self._servers, *paths]
        await run_program("the job that adds up", command, self._settings.logs / "totals.log", hear)
        return found[0]

    async def _size(self, topic: str) -> int:
        """Records in a topic that nobody has removed anything from."""
        logs = await asyncio.to_thread(survey, self._servers, [topic], timeout=_ANSWER)
        return sum(log.end for log in logs[topic].values())

    @contextmanager
    def _stage(self, title: str, total: int) -> Iterator[Show]:
        began = time.monotonic()
        with progress(self._console, title, total) as show:
            yield show
        seconds = time.monotonic() - began
        self._console.print(f"{title}: {seconds:.1f} s, {total / seconds:,.0f} records/s", highlight=False)
