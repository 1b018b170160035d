"""The order of events: broker, flights, service, plain loop, parallel consumer (killed or not), checks, picture."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from aioparallel.cli.demo.checks import Keys, observe
from aioparallel.cli.demo.cluster import Cluster, open_cluster
from aioparallel.cli.demo.events import Kind, Place, Tail, read_events
from aioparallel.cli.demo.flights import read_flights
from aioparallel.cli.demo.job import Job
from aioparallel.cli.demo.plot import Timeline, draw, read_samples
from aioparallel.cli.demo.process import Child
from aioparallel.cli.demo.progress import Meter, metering
from aioparallel.cli.demo.report import DemoResult, enriched_places
from aioparallel.cli.demo.settings import Settings
from aioparallel.errors import AioparallelError

__all__ = ["Demo"]

EVIDENCE = ("plain.*", "parallel.*", "service-*.events", "service-*.log", "demo.log")
SESSION_TIMEOUT = 30.0  # seconds; where nobody is killed, nobody waits for it
HEARTBEATS = 6  # to a session
POLL_INTERVAL = 0.01  # seconds; also how exactly a kill is aimed
STALL_TIMEOUT = 60.0  # seconds without anything new before the demo gives up


@dataclass(slots=True)
class Watched:
    """What is known of a job while its processes run, from the events they write."""

    tail: Tail
    done: set[Place] = field(default_factory=set)
    running: int = 0
    run: int = 0
    moved: float = field(default_factory=time.monotonic)

    def look(self) -> None:
        """Take in what is new."""
        for event in self.tail.new():
            self.moved = time.monotonic()
            if event.run != self.run:
                self.run, self.running = event.run, 0
            self.running += 1 if event.kind == Kind.BEGAN else -1
            if event.kind == Kind.COMPLETED:
                self.done.add(event.place)

    def stalled(self) -> bool:
        """Whether nothing has happened for a minute."""
        return time.monotonic() - self.moved > STALL_TIMEOUT


class Demo:
    """One demo, from an empty output folder (see :meth:`clear_output`) to its outcome."""

    def __init__(self, settings: Settings, console: Console) -> None:
        self._settings = settings
        self._console = console
        self._kills: list[int] = []

    async def run(self) -> DemoResult:
        """Everything, in order. Raises AioparallelError when a broker or a process fails."""
        async with open_cluster(self._settings, self._console.print) as cluster:
            keys = await self._produce(cluster)
            plain = await self._plain_loop(cluster)
            parallel = await self._parallel_consumer(cluster, len(keys))
            offsets = await cluster.offsets(parallel.group_id)
        outcome = DemoResult(
            keys=keys,
            plain=observe(read_events(plain.events), keys),
            handler=observe(read_events(parallel.events), keys),
            service=observe(read_events(self._service_events("parallel")), keys),
            lines=enriched_places(self._settings.enriched),
            offsets=offsets,
            kills=len(self._kills),
            kills_asked=self._settings.kills,
        )
        self._draw(outcome, parallel)
        return outcome

    def clear_output(self) -> None:
        """Remove what an earlier demo wrote, and nothing else: the folder may be anybody's."""
        evidence = self._settings.evidence
        evidence.mkdir(parents=True, exist_ok=True)
        earlier = [path for pattern in EVIDENCE for path in evidence.glob(pattern)]
        for path in (*earlier, self._settings.enriched, self._settings.picture):
            path.unlink(missing_ok=True)

    async def _produce(self, cluster: Cluster) -> Keys:
        began = time.monotonic()
        keys = await cluster.produce(read_flights(self._settings.records))
        without = sum(key is None for key in keys.values())
        self._console.print(
            f"Produced {len(keys):,} flights with {len(set(keys.values()) - {None}):,} tail numbers "
            f"({without:,} flights have none) to {cluster.partitions} partitions of the "
            f"{cluster.name} in {time.monotonic() - began:.1f} s.",
            highlight=False,
        )
        return keys

    async def _plain_loop(self, cluster: Cluster) -> Job:
        records = self._settings.plain_records
        async with self._service("plain") as service:
            job = replace(self._job(cluster, "plain", service), records=records, concurrency=1)
            await self._consume(job, "plain async for loop", records, kills=0)
        return job

    async def _parallel_consumer(self, cluster: Cluster, records: int) -> Job:
        async with self._service("parallel") as service:
            job = replace(self._job(cluster, "parallel", service), enriched=str(self._settings.enriched))
            await self._consume(job, "aioparallel", records, self._settings.kills)
        return job

    def _job(self, cluster: Cluster, name: str, service: str) -> Job:
        session = cluster.shortest_session if self._settings.kills else SESSION_TIMEOUT
        return Job(
            name=name,
            bootstrap_servers=cluster.bootstrap_servers,
            topic=cluster.topic,
            group_id=f"{cluster.topic}-{name}",
            service=service,
            directory=str(self._settings.evidence),
            enriched=str(self._settings.evidence / f"{name}.jsonl"),
            concurrency=self._settings.concurrency,
            session_timeout=session,
            heartbeat_interval=session / HEARTBEATS,
        )

    def _service_events(self, name: str) -> Path:
        return self._settings.evidence / f"service-{name}.events"

    @asynccontextmanager
    async def _service(self, name: str) -> AsyncIterator[str]:
        """A service process of its own for each way, so that each has a log of its own; yields its address."""
        events, seed = str(self._service_events(name)), str(self._settings.seed)
        module, log = "aioparallel.cli.demo.service", self._settings.evidence / f"service-{name}.log"
        async with Child("HTTP service", module, events, seed, log=log) as service:
            yield f"http://127.0.0.1:{await service.announced()}"

    async def _consume(self, job: Job, title: str, records: int, kills: int) -> None:
        """Run a job to its end, in one process or, with kills, in one more for each kill."""
        watched = Watched(Tail(job.events))
        log = self._settings.evidence / f"{job.name}.log"
        with metering(self._console, title, records) as meter:
            for run in range(kills + 1):
                kill_at = records * (run + 1) // (kills + 1) if run < kills else None
                text = replace(job, run=run).to_json()
                async with Child("consumer", "aioparallel.cli.demo.child", text, log=log) as child:
                    await child.announced()
                    if not await self._watch(child, watched, meter, kill_at):
                        return

    async def _watch(self, child: Child, watched: Watched, meter: Meter, kill_at: int | None) -> bool:
        """Follow one process until it ends, or kill it once ``kill_at`` records are done; whether it was killed."""
        watched.moved = time.monotonic()
        while True:
            alive = child.running
            watched.look()
            killed = f", killed {len(self._kills)} of {self._settings.kills}" if self._kills else ""
            meter.show(len(watched.done), f"{watched.running} in flight{killed}")
            if not alive:
                await child.ended()
                return False
            if kill_at is not None and len(watched.done) >= kill_at:
                self._kills.append(time.monotonic_ns())
                await child.kill()
                watched.look()
                watched.running = 0
                return True
            if watched.stalled():
                raise AioparallelError(
                    f"nothing happened for {STALL_TIMEOUT:g} s after {len(watched.done)} records; "
                    f"see the logs in {self._settings.evidence}"
                )
            await asyncio.sleep(POLL_INTERVAL)

    def _draw(self, outcome: DemoResult, job: Job) -> None:
        killed = f", consumer killed {outcome.kills} times" if outcome.kills else ""
        title = (
            f"{outcome.handler.records:,} flights enriched in {outcome.handler.seconds:.1f} s: "
            f"{outcome.handler.rate:,.0f} records/s, {outcome.speed_up:.0f} times the plain loop{killed}"
        )
        events, samples = read_events(job.events), read_samples(job.samples)
        draw(Timeline(title, events, samples, self._kills, outcome.plain.rate), self._settings.picture)
