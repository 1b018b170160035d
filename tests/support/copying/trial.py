"""A group that copies a topic on three brokers while these die and hang; what became of it in figures."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aioparallel.testing import LocalKafka
from tests.support.copying.figures import Fault, Figures, figures_of
from tests.support.copying.job import CopyJob
from tests.support.copying.members import Members
from tests.support.kafka.brokers import coordinator, restore, until_whole
from tests.support.kafka.filling import fill_numbered
from tests.support.kafka.reading import read_all
from tests.support.waiting import until

__all__ = ["Trial", "trial"]

KEYS: Final = 1_000


@dataclass
class Trial:
    """One run. Blocking calls are made in threads."""

    kafka: LocalKafka
    job: CopyJob
    members: Members
    records: int
    partitions: int
    faults: list[Fault] = field(default_factory=list)

    async def begin(self, members: int = 1) -> None:
        """Start them, and wait until each has completed a record."""
        for _ in range(members):
            await self.members.start()
        await self.members.until_all(lambda sample: sample["succeeded"])

    async def coordinator(self) -> int:
        """The broker that coordinates the group."""
        return await coordinator(self.kafka, self.job.group_id)

    @asynccontextmanager
    async def fault(self, what: str, *brokers: int) -> AsyncIterator[Fault]:
        """Take down who leads what before it happens to these brokers, and how long it lasts."""
        leaders = await self.kafka.leaders(self.job.target)
        healthy = frozenset(partition for partition, leader in leaders.items() if leader not in brokers)
        fault = Fault(what, await self.coordinator(), healthy, time.monotonic())
        self.faults.append(fault)
        yield fault
        fault.ended = time.monotonic()
        left = self.members.left()
        fault.input_left = len(left) < self.partitions or any(left.values())

    async def hold(self, seconds: float) -> None:
        """Let the fault last. The members run on, or it raises AssertionError."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.members.left()
            await asyncio.sleep(0.05)

    async def whole(self) -> None:
        """Wait until all replicas are in sync."""
        await until_whole(self.kafka, self.job.source, self.job.target)

    async def end(self, timeout: float, readers: Sequence[int] = (1, 2, 3)) -> Figures:
        """Let the members hurry through the rest and leave; then read the target back, from these brokers.

        Raises AssertionError when they do not come to the end within ``timeout`` seconds.
        """
        await self.members.hurry()
        await until(
            lambda: len(left := self.members.left()) == self.partitions and not any(left.values()),
            timeout,
            lambda: f"left {self.members.left()}, {self.faults}. {self.members.log_tails()} {self.kafka.log_tail(10)}",
        )
        for member in self.members.living:
            await member.end()
        servers = ",".join(self.kafka.address(number) for number in readers)
        outputs = await read_all(servers, self.job.target)
        return figures_of(outputs, self.records, self.members, self.faults)


@asynccontextmanager
async def trial(
    kafka: LocalKafka,
    directory: Path,
    *,
    records: int,
    seconds: float,
    delivery_timeout: float,
    session_timeout: float = CopyJob.session_timeout,
    partitions: int = 6,
) -> AsyncIterator[Trial]:
    """New topics with so many records, which one member would need so many ``seconds`` for; the cluster is whole again
    afterwards, whatever happened."""
    name = uuid.uuid4().hex[:8]
    source, target = f"source-{name}", f"target-{name}"
    await kafka.create_topic(source, partitions)
    await kafka.create_topic(target, partitions)
    await asyncio.to_thread(fill_numbered, kafka.bootstrap_servers, source, records, KEYS)
    job = CopyJob(
        bootstrap_servers=kafka.bootstrap_servers,
        source=source,
        target=target,
        group_id=f"group-{name}",
        delivery_timeout=delivery_timeout,
        session_timeout=session_timeout,
        heartbeat_interval=session_timeout / 10,
        handler_seconds=CopyJob.max_concurrency * seconds / records,
    )
    try:
        async with Members(job, directory) as members:
            yield Trial(kafka, job, members, records, partitions)
    finally:
        await asyncio.to_thread(restore, kafka)
        await until_whole(kafka, source, target)
