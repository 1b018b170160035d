"""The steps in order: a broker, then each stage to its end, with a line about its progress."""

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

from aioparallel import ConfigurationError
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
"""A file that marks a directory as ours."""
_ANSWER: Final = 30.0
"""Seconds for a response of the broker."""


@dataclass(frozen=True)
class Counts:
    """Counts of the last stage for topic ``enriched``."""

    records: int
    flights: int
    overtaken: int
    """Flights that come before an earlier one of the same aircraft."""

    @property
    def duplicates(self) -> int:
        """Records beyond the first of each flight."""
        return self.records - self.flights


def clear(settings: Settings) -> None:
    """Remove the results of an earlier run and its checkpoints, which refer to topics that are gone.

    Raises ConfigurationError for a directory with other files.
    """
    output, mark = settings.output, settings.output / _MARK
    if output.exists() and not output.is_dir():
        raise ConfigurationError("--output", str(output), "is a file: name a directory")
    if output.exists() and any(output.iterdir()) and not mark.exists():
        raise ConfigurationError(
            "--output", str(output), "is not empty, and not from an earlier run: choose another directory"
        )
    shutil.rmtree(output, ignore_errors=True)
    settings.logs.mkdir(parents=True)
    mark.touch()


async def create_topics(kafka: LocalKafka) -> None:
    """Create the topics of the pipeline."""
    for topic in (RAW, WORK, ENRICHED):
        await kafka.create_topic(topic, PARTITIONS)
    await kafka.create_topic(SEEN, PARTITIONS, {"cleanup.policy": "compact"})


class Stages:
    """Runs all stages on a running broker."""

    def __init__(self, settings: Settings, kafka: LocalKafka, console: Console) -> None:
        self._settings = settings
        self._kafka = kafka
        self._servers = kafka.bootstrap_servers
        self._console = console

    async def run(self) -> Counts:
        """From the file to Parquet. Raises AioparallelError and failures of the handler."""
        count = self._settings.flights
        await create_topics(self._kafka)
        with self._stage("1 fill topic raw", count) as show:
            await fill(self._servers, RAW, count, show)
        with self._stage("2 Spark: raw to work", count) as show:
            await run_declared(self._settings, self._servers, show)
        with self._stage("3 aioparallel: enrich", await self._size(WORK)) as show:
            # The demo's weather service, which answers after 5 to 30 ms.
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
        await run_program("the job for the totals", command, self._settings.logs / "totals.log", hear)
        return found[0]

    async def _size(self, topic: str) -> int:
        """Number of records in a topic from which nothing was deleted."""
        logs = await asyncio.to_thread(survey, self._servers, [topic], timeout=_ANSWER)
        return sum(log.end for log in logs[topic].values())

    @contextmanager
    def _stage(self, title: str, total: int) -> Iterator[Show]:
        began = time.monotonic()
        with progress(self._console, title, total) as show:
            yield show
        seconds = time.monotonic() - began
        self._console.print(f"{title}: {seconds:.1f} s, {total / seconds:,.0f} records/s", highlight=False)
