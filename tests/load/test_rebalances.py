"""Groups of both protocols whose members come and go on three brokers, two coordinators of which are killed.
``make load-rebalances``; ``SECONDS=40 make load-rebalances`` is quicker."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from aioparallel.testing import LocalKafka
from tests.support.kafka.brokers import coordinator, offsets_partition, restore, until_whole
from tests.support.rebalances.group import Group, noting_losses
from tests.support.rebalances.load import SteadyLoad
from tests.support.rebalances.pauses import Handling, Pause, Stretch, beyond, judge, pauses, percentile, repeats
from tests.support.waiting import until

SECONDS = float(os.environ.get("SECONDS", "300"))
"""That members come and go, besides the first fault."""
PARTITIONS = 32
MEMBERS, LEAST, MOST = 4, 3, 5
CHANGE = 5.0
"""Seconds from one change of the members to the next."""
RATE, KEYS = 20.0, 10
"""Records a second, and keys, of each partition."""
FENCED = 6
"""Seconds until others lead in place of a killed broker. A broker on a busy machine may be silent for a while, too."""
DOWN = 15.0
"""Seconds that a killed broker is down."""
SETTLE = 180.0
"""Seconds. Who leaves while the coordinator is dead is a member until its session is over (45 s with the brokers'
default), which begins again when the coordinator has moved."""
HEARTBEATS = {"classic": 3.0, "consumer": 5.0, "alone": 5.0}
"""The default of the consumer, and that of the brokers."""

Leaders = Mapping[str, Mapping[int, int]]

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(SECONDS + 700)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalKafka]:
    """Three brokers, with the defaults of Kafka for groups."""
    properties = {
        "broker.session.timeout.ms": f"{FENCED * 1000}",
        "group.consumer.heartbeat.interval.ms": f"{HEARTBEATS['consumer'] * 1000:.0f}",
    }
    with LocalKafka(brokers=3, server_properties=properties) as kafka:
        yield kafka


@dataclass
class Run:
    """What happens to the groups, all at the same time. ``stretches`` are the times between."""

    kafka: LocalKafka
    topic: str
    load: SteadyLoad
    groups: Mapping[str, Group]
    changing: Sequence[Group]
    stretches: list[Stretch] = field(default_factory=list)
    chance: random.Random = field(default_factory=lambda: random.Random(5))

    def begin(self, *, is_fault: bool) -> None:
        """A stretch begins."""
        self.stretches.append(Stretch(time.monotonic(), is_fault))

    async def settled(self) -> None:
        """Wait until each group has distributed the partitions evenly, and has handled a new record of each."""
        await until(
            lambda: all(group.is_settled() for group in self.groups.values()),
            SETTLE,
            lambda: f"even assignments: { {name: group.owned() for name, group in self.groups.items()} }",
        )
        newest = len(self.load.produced)
        every = {(partition, newest) for partition in range(PARTITIONS)}
        await until(lambda: all(group.handled >= every for group in self.groups.values()), SETTLE)

    async def come_and_go(self, seconds: float, *, is_fault: bool = False) -> int:
        """Members join and leave, in the changing groups at the same time. How often."""
        end = time.monotonic() + seconds
        for changes in itertools.count():
            if time.monotonic() >= end:
                return changes
            self.begin(is_fault=is_fault)
            members = len(self.changing[0].members)
            leaves = members == MOST or (members > LEAST and self.chance.random() < 0.5)
            number = self.chance.randrange(members)
            for group in self.changing:
                if leaves:
                    group.leave(number)
                else:
                    group.join()
            await asyncio.sleep(CHANGE)
            for group in self.groups.values():
                group.check()
        raise AssertionError("it counts for ever")

    @asynccontextmanager
    async def killed_coordinator(self, leaders: Leaders) -> AsyncIterator[int]:
        """The coordinator of all groups is killed before the block, and started again after it. Leaving waits until all
        is well again: ``leaders`` lead, and each group reads all partitions."""
        victim = await coordinator(self.kafka, self.changing[0].group_id)
        self.begin(is_fault=True)
        async with self.kafka.down(victim):
            yield victim
        await until_whole(self.kafka, self.topic)

        async def are_back() -> bool:
            return await self.leaders() == leaders

        await until(are_back, SETTLE)
        await self.settled()

    async def leaders(self) -> Leaders:
        """Those of the topic, and the coordinators."""
        return {name: await self.kafka.leaders(name) for name in (self.topic, "__consumer_offsets")}


def group_ids(topic: str, names: Sequence[str]) -> dict[str, str]:
    """Names of groups that one broker coordinates."""
    found = dict[str, str]()
    for name in names:
        candidates = (f"{topic}-{name}-{number}" for number in itertools.count())
        found[name] = next(one for one in candidates if not offsets_partition(one))
    return found


def ends(values: Sequence[float]) -> str:
    """The figures of some pauses, in milliseconds."""
    if not values:
        return "no"
    p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
    return " / ".join(f"{1000 * one:,.0f}" for one in (p50, p99, max(values)))


def chosen(
    some: Sequence[Pause], stretches: Sequence[Stretch], *, moving: bool = False, fault: bool = False
) -> list[float]:
    """The seconds of those of partitions that get another member, or stay, with or without a fault."""
    return [one.seconds for one in some if (one.has_moved, stretches[one.stretch].is_fault) == (moving, fault)]


def table(found: Mapping[str, Sequence[Pause]], stretches: Sequence[Stretch], again: Mapping[str, int]) -> str:
    """The figures. A stretch without a fault is one rebalance."""
    lines = [
        "pauses in ms: p50 / p99 / most",
        "",
        "| protocol | heartbeat | rebalances | moved | staying | staying, beyond that of alone | moving "
        "| staying, coordinator killed | moving, coordinator killed | repeats |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    rebalances = sum(not one.is_fault for one in stretches)
    for name, some in found.items():
        moving = chosen(some, stretches, moving=True)
        cells = [
            name,
            f"{HEARTBEATS[name]:g} s",
            f"{rebalances if name != 'alone' else 0}",
            f"{len(moving)}",
            ends(chosen(some, stretches)),
            ends(chosen(beyond(some, found["alone"]), stretches)),
            ends(moving),
            ends(chosen(some, stretches, fault=True)),
            ends(chosen(some, stretches, moving=True, fault=True)),
            f"{again[name]}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


async def test_only_what_moves_pauses(cluster: LocalKafka, tmp_path: Path, tell: Callable[[str], None]) -> None:
    """No record is lost, none of a key overtakes another, and what runs twice was given away or lost without a commit
    while the coordinator was dead. In the protocol ``consumer`` partitions that stay with their member do not pause.
    Members keep what they have while the coordinator is dead.

    A third group, ``alone``, has one member that stays: it shows what the machine and the brokers do by themselves."""
    servers, topic = cluster.bootstrap_servers, f"rebalances-{uuid.uuid4().hex[:8]}"
    await cluster.create_topic(topic, PARTITIONS)
    protocols: dict[str, Literal["classic", "consumer"]] = {
        "classic": "classic",
        "consumer": "consumer",
        "alone": "consumer",
    }
    groups = {
        name: Group(servers, topic, PARTITIONS, group_id, protocols[name], tmp_path)
        for name, group_id in group_ids(topic, list(protocols)).items()
    }
    async with AsyncExitStack() as stack:
        stack.callback(restore, cluster)
        for group in groups.values():
            await stack.enter_async_context(group)
        stack.enter_context(noting_losses())
        load = await stack.enter_async_context(SteadyLoad(servers, topic, PARTITIONS, rate=RATE, keys=KEYS))
        run = Run(cluster, topic, load, groups, [groups["classic"], groups["consumer"]])
        groups["alone"].join()
        for group in run.changing:
            for _ in range(MEMBERS):
                group.join()
        await run.settled()
        leaders = await run.leaders()

        await run.come_and_go(SECONDS / 3)
        await run.settled()
        before = {name: group.owned() for name, group in groups.items()}
        async with run.killed_coordinator(leaders):
            await asyncio.sleep(DOWN)
        assert {name: group.owned() for name, group in groups.items()} == before
        await run.come_and_go(SECONDS / 3)
        async with run.killed_coordinator(leaders):
            await run.come_and_go(DOWN, is_fault=True)
        await run.come_and_go(SECONDS / 3)

        end = time.monotonic()
        await load.end()
        written = set(itertools.product(range(PARTITIONS), range(len(load.produced))))
        await until(
            lambda: all(group.handled >= written for group in groups.values()),
            SETTLE,
            lambda: f"left: { {name: sorted(written - group.handled)[:20] for name, group in groups.items()} }",
        )
        for group in groups.values():
            await group.end()

    handlings = {name: group.handlings() for name, group in groups.items()}
    found = {
        name: pauses(handlings[name], group.taken, load.produced, run.stretches, end) for name, group in groups.items()
    }
    again = {name: repeats(some) for name, some in handlings.items()}
    tell(
        f"{len(written):,} records for each group, the event loop was late by {load.latest * 1000:.0f} ms at most; "
        f"lost sessions and missing commits: { {name: len(group.losses) for name, group in groups.items()} }\n"
        + table(found, run.stretches, {name: len(some) for name, some in again.items()})
    )
    for name, group in groups.items():
        order, delivery = judge(handlings[name], load.key, written)
        order.check()
        delivery.check()
        check_repeats(again[name], group, run.stretches)
    rebalancing = chosen(beyond(found["consumer"], found["alone"]), run.stretches)
    assert percentile(rebalancing, 0.99) < 1.0
    consumer, classic = (percentile(chosen(found[name], run.stretches), 0.99) for name in ("consumer", "classic"))
    assert consumer < classic


def check_repeats(again: Sequence[Handling], group: Group, stretches: Sequence[Stretch]) -> None:
    """Raises AssertionError if something ran twice although nobody had lost it, or if partitions were lost while no
    broker was dead."""
    for one in again:
        assert any(loss.at < one.began for loss in group.losses), f"{one} ran again, and nothing was lost before"
    for loss in group.losses:
        during = next(stretch for stretch in reversed(stretches) if stretch.began <= loss.at)
        assert during.is_fault or not loss.is_session, f"{loss}, with no broker dead: {stretches}"
