"""A group that copies a topic on three brokers while these die and hang; what became of it in figures."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aioparallel.testing import LocalKafka
from tests.support.copying.members import Acknowledged, CopyJob, Members
from tests.support.kafka.brokers import Output, coordinator, read_outputs, restore, until_whole
from tests.support.kafka.topics import fill_numbered

__all__ = ["Fault", "Figures", "Trial", "trial"]

KEYS: Final = 1_000
_FIRST_TIMEOUT: Final = 60.0
_LEFT_POLL: Final = 0.1
_LOST: Final = " is lost ("
"""In the line about it."""


@dataclass
class Fault:
    """What was done to brokers or members, and when (CLOCK_MONOTONIC, seconds)."""

    what: str
    coordinator: int
    """The broker that coordinated the group when it began."""
    healthy: frozenset[int]
    """The partitions of the target that other brokers led then."""
    began: float
    ended: float = 0.0
    input_left: bool = False
    """Whether records were left to copy when it ended; otherwise it was measured while there was nothing to do."""


@dataclass
class Figures:
    """What the target and the members say in the end. Counts are records, times seconds."""

    records: int
    rate: float
    """A second, from the first acknowledgement to the last."""
    missing: list[int]
    out_of_order: list[Output]
    """First occurrences behind a later number of their key."""
    duplicates: int
    misplaced: list[Acknowledged]
    """Acknowledged, but at that offset stands something else, or nothing."""
    gave_up: int
    """Deliveries that gave up, each of one output."""
    unexplained: list[int]
    """Numbers that are there more often than their deliveries that gave up allow: each of these may have been written
    all the same, once."""
    lost_sessions: int
    """How often a member lost its partitions without a last commit: what it had not committed is copied again."""
    silences: list[tuple[Fault, float]]
    """By fault: the longest time between two acknowledgements of a healthy partition, while it lasted."""

    def __str__(self) -> str:
        faults = "; ".join(
            f"{fault.what} for {fault.ended - fault.began:.1f} s (coordinator {fault.coordinator}): "
            + (f"healthy ones silent {silence:.2f} s" if fault.healthy else "none healthy")
            for fault, silence in self.silences
        )
        return (
            f"{self.rate:,.0f}/s, {len(self.missing)} missing, {len(self.out_of_order)} out of order, "
            f"{len(self.misplaced)} acknowledged elsewhere than they stand, {self.duplicates} twice, "
            f"{self.gave_up} deliveries gave up, {self.lost_sessions} lost sessions; {faults}"
        )

    def check(self) -> None:
        """Nothing is lost or out of order, what is acknowledged stands where it said, and faults ended before
        the records did."""
        assert (self.missing[:5], self.out_of_order[:5], self.misplaced[:5]) == ([], [], [])
        assert [fault for fault, _ in self.silences if not fault.input_left] == []


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
            self.members.start()
        await asyncio.to_thread(self.members.wait_until_first, _FIRST_TIMEOUT)

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
        self.members.hurry()
        deadline = time.monotonic() + timeout
        while len(left := self.members.left()) < self.partitions or any(left.values()):
            assert time.monotonic() < deadline, (
                f"left after {timeout:g} s: {left}, {self.faults}. {self.members.log_tails()} {self.kafka.log_tail(10)}"
            )
            await asyncio.sleep(_LEFT_POLL)
        for member in self.members.living:
            await asyncio.to_thread(member.end)
        servers = ",".join(self.kafka.address(number) for number in readers)
        outputs = await asyncio.to_thread(read_outputs, servers, self.job.target, self.partitions)
        return self._figures(outputs)

    def _figures(self, outputs: list[Output]) -> Figures:
        acknowledged, again = self.members.acknowledged(), self.members.again()
        first: dict[int, Output] = {}
        last: dict[bytes, int] = defaultdict(lambda: -1)
        out_of_order = []
        for output in outputs:
            if output.number not in first:
                first[output.number] = output
                if output.number < last[output.key]:
                    out_of_order.append(output)
                last[output.key] = max(last[output.key], output.number)
        counts = Counter(one.number for one in outputs)
        log = {(one.partition, one.offset): one.number for one in outputs}
        times = [one.milliseconds for one in acknowledged]
        return Figures(
            records=len(outputs),
            rate=self.records / max(0.001, (times[-1] - times[0]) / 1000),
            missing=[number for number in range(self.records) if number not in first],
            out_of_order=out_of_order,
            duplicates=len(outputs) - len(first),
            misplaced=[
                one for one in acknowledged if one.offset >= 0 and log.get((one.partition, one.offset)) != one.number
            ],
            gave_up=again.total(),
            unexplained=[number for number, count in counts.items() if count > 1 + again[number]],
            lost_sessions=sum(member.log().count(_LOST) for member in self.members.all),
            silences=[(fault, longest_silence(acknowledged, fault)) for fault in self.faults],
        )


def longest_silence(acknowledged: Sequence[Acknowledged], fault: Fault) -> float:
    """The longest time between two acknowledgements of one healthy partition that touches the fault; seconds."""
    longest = 0.0
    before: dict[int, float] = {}
    for one in acknowledged:
        now = one.milliseconds / 1000
        since = before.get(one.partition, now)
        if one.partition in fault.healthy and now > fault.began and since < fault.ended:
            longest = max(longest, now - since)
        before[one.partition] = now
    return longest


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
    await asyncio.to_thread(fill_numbered, kafka.bootstrap_servers, source, records, KEYS, partitions)
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
        with Members(job, directory) as members:
            yield Trial(kafka, job, members, records, partitions)
    finally:
        await asyncio.to_thread(restore, kafka)
        await until_whole(kafka, source, target)
