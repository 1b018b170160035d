"""How long a commit of many maps blocks the event loop, with a real client; used by the benchmark and by tests.

It needs plain asyncio, as callbacks of uvloop cannot be timed. Assignments get maps of a given size without the
millions of records that would make them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import uuid
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from aioparallel.clients import AiokafkaClient
from aioparallel.config.options import Options
from aioparallel.engine.schedule.scheduler import Scheduler
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Generation
from aioparallel.group.committer import Committer
from aioparallel.group.offset_stores import BrokerOffsets
from aioparallel.offsets import Ledger, decode_offset_map
from aioparallel.records.errors import InstanceFenced
from aioparallel.records.record import TopicPartition
from aioparallel.testing.loop_holds import Hold, LoopHolds

__all__ = ["Holds", "commit_holds", "full_ledgers", "ledger_of"]

# Offsets of which every second one, at random, is complete: one bit each, 4,000 characters in the Java formats.
_BITS: Final = 24_000
# Incomplete offsets with random gaps of up to 8,192: about 13 bits each, 4,000 characters in the dense format.
_SPARSE: Final = 4_400
_GAP: Final = 8_192
_TIMEOUT: Final = 30.0


@dataclass(slots=True)
class Holds:
    """Results of commits of all partitions, one value for each round.

    ``longest``: the longest block of the loop. ``seconds``: duration of the commit. ``shortest_map``, ``longest_map``:
    characters. ``problems``: maps read back from the broker that differ from the ledgers (I9).
    """

    longest: list[Hold] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    requests: int = 0
    shortest_map: int = 0
    longest_map: int = 0
    problems: list[str] = field(default_factory=list)


class Member(NamedTuple):
    """The client, and the generation under which it has all partitions of the topic."""

    client: AiokafkaClient
    generation: Generation


class _Assigned:
    """Waits for the first assignment."""

    def __init__(self) -> None:
        self.generation: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()

    def assigned(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        if not self.generation.done():
            self.generation.set_result(generation)

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        pass

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        pass

    def fenced(self, error: InstanceFenced) -> None:
        pass


@contextlib.asynccontextmanager
async def joined(servers: str, topic: str) -> AsyncIterator[Member]:
    """The only member of a new group, after the topic's partitions were assigned to it."""
    client = AiokafkaClient(servers, f"{topic}-{uuid.uuid4().hex[:8]}")
    listener = _Assigned()
    await client.start(_TIMEOUT)
    try:
        client.subscribe([topic], listener)
        async with asyncio.timeout(_TIMEOUT):
            generation = await listener.generation
        yield Member(client, generation)
    finally:
        await client.stop(_TIMEOUT)


async def commit_holds(
    bootstrap_servers: str, topic: str, partitions: int, ledgers: Sequence[Ledger], rounds: int
) -> Holds:
    """Commit maps of these ledgers for all partitions ``rounds`` times, all dirty each time, and read them back."""
    holds = Holds()
    async with joined(bootstrap_servers, topic) as (client, generation):
        assignments = map_assignments(topic, partitions, generation, ledgers)
        committer = Committer(BrokerOffsets(client), Options(), Scheduler(), lambda: assignments, lambda: None)
        for _ in range(rounds):
            for assignment in assignments:
                assignment.acknowledged_version = None
            await _commit(committer, assignments, holds)
        found = await client.committed([assignment.partition for assignment in assignments], _TIMEOUT)
    holds.requests = committer.commits
    if committer.failed_commits or committer.cut_maps:
        holds.problems.append(f"{committer.failed_commits} failed commits, {committer.cut_maps} maps cut")
    sizes = [len(one.metadata) for one in found.values()]
    holds.shortest_map, holds.longest_map = min(sizes, default=0), max(sizes, default=0)
    for assignment in assignments[: len(ledgers)]:
        offset, text, *_ = found[assignment.partition]
        if decode_offset_map(offset, text) != assignment.ledger.snapshot():
            holds.problems.append(f"{assignment.partition}: the map read back is not what the ledger says")
    # Only offset and metadata: the mock cluster reports leader epochs of its own.
    wrong = [
        assignment.partition
        for assignment in assignments
        if (found.get(assignment.partition) or ())[:2] != (assignment.acknowledged or ())[:2]
    ]
    if wrong:
        holds.problems.append(f"{len(wrong)} partitions have not the map that was acknowledged, {wrong[0]} first")
    return holds


async def _commit(committer: Committer, assignments: list[Assignment], holds: Holds) -> None:
    watch, began = LoopHolds(noted=0.0), time.perf_counter()
    with watch.watching():
        faults = await committer.commit(assignments)
    holds.seconds.append(time.perf_counter() - began)
    gc.collect()
    holds.longest.append(watch.longest()[0])
    if faults:
        holds.problems.append("a commit was not acknowledged")


def map_assignments(topic: str, partitions: int, generation: Generation, ledgers: Sequence[Ledger]) -> list[Assignment]:
    """An open, dirty assignment for each partition; the ledgers are used in turn."""
    assignments = []
    for partition in range(partitions):
        assignment = Assignment(TopicPartition(topic, partition), 1, generation)
        assignment.opened = True
        # Commits only read ledgers, so assignments can share them, which saves most of a gigabyte.
        assignment.ledger = ledgers[partition % len(ledgers)]
        assignments.append(assignment)
    return assignments


def full_ledgers() -> list[Ledger]:
    """A ledger with a bitset map and one with a sparse map; both take about 4,000 characters."""
    chance, offset, gaps = Random(2), 0, list[int]()
    for _ in range(_SPARSE):
        gaps.append(offset)
        offset += chance.randrange(1, _GAP)
    chance_of_bits = Random(1)
    bits = [at for at in range(_BITS) if chance_of_bits.random() < 0.5]
    return [ledger_of(bits, _BITS), _with_log_gaps(gaps, offset)]


def ledger_of(incompletes: Sequence[int], offsets: int) -> Ledger:
    """A ledger of so many offsets. The first is incomplete, so the map covers all, and the last is complete."""
    ledger, left = Ledger(0), {0, *incompletes} - {offsets - 1}
    ledger.register(range(offsets), offsets)
    for offset in range(offsets):
        if offset not in left:
            ledger.complete(offset)
    return ledger


def _with_log_gaps(incompletes: Sequence[int], last: int) -> Ledger:
    """A ledger to which only these offsets were delivered, and the last one, which is complete."""
    ledger = Ledger(0)
    ledger.register([*incompletes, last], last + 1)
    ledger.complete(last)
    return ledger
