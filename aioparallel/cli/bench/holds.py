"""How long a commit of many maps holds the event loop: measured on a real client, also the process of ``maps.py``.

Its job: ``bootstrap_servers``, ``topic``, ``partitions``, ``seed``, ``rounds``. It tells ``patterns`` and ``full``, the
fields of :class:`Holds` for maps of 10,000 offsets and for maps as large as Kafka takes. It runs on plain asyncio: on
uvloop callbacks cannot be timed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import uuid
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from aioparallel.cli.bench.full_maps import full_ledgers, map_sessions, pattern_ledgers
from aioparallel.cli.bench.loop_holds import Hold, LoopHolds
from aioparallel.cli.bench.worker import job, tell
from aioparallel.cli.demo.process import until_pipe_closes
from aioparallel.clients import AiokafkaClient
from aioparallel.engine.scheduler import Scheduler
from aioparallel.event_loop import quick_collections
from aioparallel.group.client import Generation
from aioparallel.group.committer import Committer
from aioparallel.group.sessions import Session
from aioparallel.group.stores import BrokerOffsets
from aioparallel.offsets import Ledger, decode_offset_map
from aioparallel.options import Options
from aioparallel.records import TopicPartition

__all__ = ["OFFSETS", "Holds", "commit_holds", "main"]

OFFSETS: Final = 10_000
"""Of each map."""
_TIMEOUT: Final = 30.0


@dataclass(slots=True)
class Holds:
    """What commits of all partitions did, a value for each round.

    ``longest``: the longest hold of the loop. ``seconds``: how long the commit took. ``shortest_map`` and
    ``longest_map``: characters. ``problems``: what did not come back from the broker as the ledgers say (I9).
    """

    longest: list[Hold] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    requests: int = 0
    shortest_map: int = 0
    longest_map: int = 0
    problems: list[str] = field(default_factory=list)


class Member(NamedTuple):
    """The client, and the generation under which it holds all partitions of the topic."""

    client: AiokafkaClient
    generation: Generation


class _Assigned:
    """Hears the first assignment."""

    def __init__(self) -> None:
        self.generation: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()

    def assigned(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        if not self.generation.done():
            self.generation.set_result(generation)

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        pass

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        pass


@contextlib.asynccontextmanager
async def joined(servers: str, topic: str) -> AsyncIterator[Member]:
    """The only member of a group of its own, once the topic's partitions are assigned to it."""
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
    """Commit maps of these ledgers for all partitions, ``rounds`` times, all of them dirty each time, and read back."""
    holds = Holds()
    async with joined(bootstrap_servers, topic) as (client, generation):
        sessions = map_sessions(topic, partitions, generation, ledgers)
        committer = Committer(BrokerOffsets(client), Options(), Scheduler(), lambda: sessions, lambda: None)
        for _ in range(rounds):
            for session in sessions:
                session.acknowledged_version = None
            await _commit(committer, sessions, holds)
        found = await client.committed([session.partition for session in sessions], _TIMEOUT)
    holds.requests = committer.commits
    if committer.failed_commits or committer.cut_maps:
        holds.problems.append(f"{committer.failed_commits} failed commits, {committer.cut_maps} maps cut")
    sizes = [len(one.metadata) for one in found.values()]
    holds.shortest_map, holds.longest_map = min(sizes, default=0), max(sizes, default=0)
    for session in sessions[: len(ledgers)]:
        offset, text = found[session.partition]
        if decode_offset_map(offset, text) != session.ledger.snapshot():
            holds.problems.append(f"{session.partition}: the map read back is not what the ledger says")
    wrong = [session.partition for session in sessions if found.get(session.partition) != session.acknowledged]
    if wrong:
        holds.problems.append(f"{len(wrong)} partitions have not the map that was acknowledged, {wrong[0]} first")
    return holds


async def _commit(committer: Committer, sessions: list[Session], holds: Holds) -> None:
    watch, began = LoopHolds(noted=0.0), time.perf_counter()
    with watch.watching():
        faults = await committer.commit(sessions)
    holds.seconds.append(time.perf_counter() - began)
    gc.collect()
    holds.longest.append(watch.longest()[0])
    if faults:
        holds.problems.append("a commit was not acknowledged")


async def _measure(order: dict[str, Any]) -> None:
    for name, ledgers in (("patterns", pattern_ledgers(OFFSETS, order["seed"])), ("full", full_ledgers())):
        holds = await commit_holds(
            order["bootstrap_servers"], order["topic"], order["partitions"], ledgers, order["rounds"]
        )
        tell(**{name: asdict(holds)})


def main() -> None:
    """The process."""
    quick_collections()
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(until_pipe_closes(_measure(job())))


if __name__ == "__main__":
    main()
