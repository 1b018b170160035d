"""The steps in order: broker, flights, service, plain loop, parallel consumer (killed or not), checks, picture."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from rich.console import Console

from aioparallel import AioparallelError
from aioparallel.testing.event_log import Event, EventKind, EventTail, read_events
from aioparallel.testing.processes.child import Child
from examples.flights.consumers import Job
from examples.flights.flights import read_flights
from examples.flights.plot import draw, moments
from examples.flights.progress import Show, progress
from examples.flights.result import Result, enriched_places, observe
from examples.flights.service import run_service
from examples.flights.settings import Settings
from examples.flights.topic import Keys, Topic, open_topic

__all__ = ["Demo"]

SESSION_TIMEOUT = 30.0  # seconds
SHORTEST_SESSION = 6.0  # the least that brokers allow by default; after a kill the next consumer waits so long
POLL_INTERVAL = 0.01  # seconds; also the precision of a kill
STALL_TIMEOUT = 60.0  # seconds without progress after which the demo gives up


class Demo:
    """One demo with an empty output folder."""

    def __init__(self, settings: Settings, console: Console) -> None:
        self._settings = settings
        self._kills_asked = settings.kills_asked
        self._console = console
        self._kills: list[int] = []  # CLOCK_MONOTONIC, nanoseconds

    async def run(self) -> Result:
        """Run all steps. Raises AioparallelError if a broker or a process fails."""
        settings = self._settings
        async with open_topic(
            settings.broker, settings.bootstrap_servers, settings.partitions, self._console.print
        ) as topic:
            keys = await self._produce(topic)
            plain = replace(self._job(topic, "plain"), concurrency=1, records=min(settings.plain_records, len(keys)))
            await self._consume(plain, "plain", plain.records or 0, kills=0)
            parallel = replace(self._job(topic, "parallel"), enriched=str(settings.enriched))
            await self._consume(parallel, "parallel", len(keys), self._kills_asked)
            offsets = await topic.offsets(parallel.group_id)
        result = Result(
            produced=len(keys),
            plain=observe(self._runs("plain"), keys),
            handler=observe(self._runs("parallel"), keys),
            service=observe(self._runs("service-parallel"), keys),
            lines=enriched_places(settings.enriched),
            offsets=offsets,
            kills=len(self._kills),
            kills_asked=self._kills_asked,
        )
        self._draw(result)
        return result

    async def _produce(self, topic: Topic) -> Keys:
        began = time.monotonic()
        keys = await topic.produce(read_flights(self._settings.records))
        without = sum(key is None for key in keys.values())
        self._console.print(
            f"Produced {len(keys):,} flights with {len(set(keys.values()) - {None}):,} tail numbers "
            f"({without:,} flights have none) to {topic.partitions} partitions of the "
            f"{topic.broker} in {time.monotonic() - began:.1f} s.",
            highlight=False,
        )
        return keys

    def _job(self, topic: Topic, way: str) -> Job:
        return Job(
            bootstrap_servers=topic.bootstrap_servers,
            topic=topic.name,
            group_id=f"{topic.name}-{way}",
            service="",
            events="",
            enriched=str(self._settings.evidence / f"{way}.jsonl"),
            concurrency=self._settings.concurrency,
            session_timeout=SHORTEST_SESSION if self._kills_asked else SESSION_TIMEOUT,
        )

    async def _consume(self, job: Job, way: str, records: int, kills: int) -> None:
        """Run a job to its end: in one process, and another one after each kill.

        Each way has its own service process.
        """
        evidence = self._settings.evidence
        done: set[tuple[int, int]] = set()
        async with run_service(evidence / f"service-{way}", self._settings.seed) as service:
            with progress(self._console, {"plain": "plain async for loop"}.get(way, "aioparallel"), records) as show:
                for run in range(kills + 1):
                    events = evidence / f"{way}-{run}.events"
                    text = replace(job, service=f"{service}/{run}", events=str(events)).to_json()
                    kill_at = records * (run + 1) // (kills + 1) if run < kills else None
                    log = evidence / f"{way}.log"
                    async with Child.of_module("consumer", "examples.flights.consumers", text, log=log) as child:
                        await child.line()
                        if not await self._watch(child, EventTail(events), done, show, kill_at):
                            return

    async def _watch(
        self, child: Child, tail: EventTail, done: set[tuple[int, int]], show: Show, kill_at: int | None
    ) -> bool:
        """Follow a process until it ends, or kill it after ``kill_at`` records. Returns whether it was killed."""
        running, moved = 0, time.monotonic()
        while True:
            alive = child.running  # before reading its last events
            for event in tail.new():
                moved = time.monotonic()
                running += 1 if event.kind is EventKind.BEGAN else -1
                if event.kind is EventKind.ENDED:
                    done.add((event.partition, event.offset))
            killed = f", killed {len(self._kills)} of {self._kills_asked}" if self._kills else ""
            show(len(done), f"{running} in flight{killed}")
            if not alive:
                await child.ended()
                return False
            if kill_at is not None and len(done) >= kill_at:
                await child.kill()
                self._kills.append(time.monotonic_ns())
                done.update((event.partition, event.offset) for event in tail.new() if event.kind is EventKind.ENDED)
                return True
            if time.monotonic() - moved > STALL_TIMEOUT:
                raise AioparallelError(
                    f"nothing happened for {STALL_TIMEOUT:g} s after {len(done)} records; "
                    f"see the logs in {self._settings.evidence}"
                )
            await asyncio.sleep(POLL_INTERVAL)

    def _runs(self, name: str) -> list[list[Event]]:
        """The events of each process in order; empty without a log."""
        evidence = self._settings.evidence
        return [read_events(evidence / f"{name}-{run}.events") for run in range(len(self._kills) + 1)]

    def _draw(self, result: Result) -> None:
        killed = f", consumer killed {result.kills} times" if result.kills else ""
        title = (
            f"{result.handler.records:,} flights enriched in {result.handler.seconds:.1f} s: "
            f"{result.handler.rate:,.0f} records/s, {result.speed_up:.0f} times the plain loop{killed}"
        )
        runs = self._runs("parallel")
        kills = [(at - runs[0][0].at) / 1e9 for at in self._kills]
        draw(title, moments(runs, self._kills, result.produced), kills, result.plain.rate, self._settings.picture)
