"""A group under load whose members change from the classic group protocol to the new one (KIP-848), one by one and all
at once, by SIGTERM and by SIGKILL, and back. ``make load-group-protocol``."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from aioparallel.clients.aiokafka.group_admin import GroupAdmin
from aioparallel.records.record import Record
from aioparallel.testing import LocalKafka
from aioparallel.testing.event_log import Event, EventKind
from tests.load import test_exactly_once, test_state
from tests.support.children.account import NOWHERE, Place, complete_by_commit
from tests.support.children.job import Job
from tests.support.kafka.reading import committed, read_all
from tests.support.members.rolling import Side
from tests.support.members.upgrading import KEYS, PARTITIONS, Events, done_by_commits, spread, upgrade_and_back

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(900)]

MEMBERS = 3
OLDER, NEWER = Side(protocol="classic"), Side(protocol="consumer")
Tell = Callable[[str], None]


class Run(NamedTuple):
    """One call of a handler. ``ended``: infinite if its member was killed meanwhile."""

    place: Place
    began: float
    ended: float


class Watch:
    """Looks again and again at a group: of which type it is, how many partitions have an offset map, and which records
    the commits say are complete."""

    def __init__(self, servers: str, group: str, events: Events | None = None) -> None:
        self.types: Counter[str] = Counter()
        self.maps = 0
        self.complete: dict[Place, float] = {}
        """When a commit was first seen to say so, by CLOCK_MONOTONIC."""
        self._servers = servers
        self._group = group
        self._events = events

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._watch())
            yield
            task.cancel()

    async def _watch(self) -> None:
        async with GroupAdmin(self._servers) as admin:
            while True:
                self.types[(await admin.describe_group(self._group)).type] += 1
                if self._events is not None:
                    await self._look(self._events)
                await asyncio.sleep(0.5)

    async def _look(self, events: Events) -> None:
        self.maps += sum(bool(one.metadata) for one in (await committed(self._servers, self._group)).values())
        complete = await complete_by_commit(self._servers, self._group)
        now = time.monotonic()
        for place in list(events.ended):
            if place not in self.complete and complete(place):
                self.complete[place] = now


def runs_of(events: Sequence[tuple[str, Event]]) -> list[Run]:
    """What the handlers of all members ran, in the order in which they began."""
    found: list[Run] = []
    running: dict[tuple[str, Place], float] = {}
    for member, event in sorted(events, key=lambda one: one[1].at):
        place = event.partition, event.offset
        if event.kind is EventKind.BEGAN:
            running[member, place] = event.at / 1e9
        elif event.partition != NOWHERE:
            found.append(Run(place, running.pop((member, place)), event.at / 1e9))
    found += [Run(place, began, float("inf")) for (_, place), began in running.items()]
    return sorted(found, key=lambda run: run.began)


def check_order(runs: Sequence[Run], records: Sequence[Record]) -> None:
    """Of each key no two ran at once, whatever their members, and each began after the one before it had ended."""
    keys = {(record.partition, record.offset): record.key for record in records}
    before: dict[Place, Place] = {}
    latest: dict[bytes | None, Place] = {}
    for place in sorted(keys):
        if (key := keys[place]) in latest:
            before[place] = latest[key]
        latest[key] = place
    ended: dict[Place, float] = {}
    of_key: defaultdict[bytes | None, list[Run]] = defaultdict(list)
    for run in runs:
        ended[run.place] = min(ended.get(run.place, float("inf")), run.ended)
        of_key[keys[run.place]].append(run)
    for some in of_key.values():
        last = 0.0
        for run in some:
            assert run.began >= last, f"{run} began while another record of its key ran"
            last = max(last, run.ended if run.ended != float("inf") else last)
            if run.place in before:
                assert ended[before[run.place]] <= run.began, f"{run} began before {before[run.place]} had ended"


async def test_commits_and_offset_maps(quick_kafka: LocalKafka, tmp_path: Path, tell: Tell) -> None:
    """Each record is handled, in the order of its key, and none that a commit says is complete is handled again. Until
    the first member is killed, none is handled twice."""
    servers, topic = quick_kafka.bootstrap_servers, "protocol-maps"
    await quick_kafka.create_topic(topic, PARTITIONS)
    events = Events(tmp_path)
    job = Job(
        bootstrap_servers=servers,
        topic=topic,
        group_id=f"{topic}-group",
        options={"max_concurrency": 300, "session_timeout": 6.0, "heartbeat_interval": 0.5, "drain_timeout": 10.0},
        seconds=(0.0, 0.4),
        sample_interval=1.0,
    )
    watch = Watch(servers, job.group_id, events)

    def member(name: str) -> Sequence[str]:
        return "tests.support.children.consumer", job.text, events.file(name)

    async with watch.watching():
        written, killed = await upgrade_and_back(
            servers, topic, spread(0), [member] * MEMBERS, events.read, OLDER, NEWER, tmp_path
        )
    await events.read()
    records = await read_all(servers, topic)
    assert len(records) == written
    assert set(events.ended) == {(one.partition, one.offset) for one in records}
    runs = runs_of(events.all)
    check_order(runs, records)
    repeats = [run for run in runs if watch.complete.get(run.place, run.began) < run.began]
    assert not repeats, (
        f"{len(repeats)} records were handled though a commit said that they are complete: {repeats[:5]}"
    )
    members = len({member for member, _ in events.all})
    losses = sum(event.partition == NOWHERE for _, event in events.all)
    early = Counter(run.place for run in runs if run.began < killed)
    twice = [place for place, count in early.items() if count > 1]
    assert not twice, f"{len(twice)} handled twice before the first kill, {losses} losses"
    assert watch.maps > 0
    assert {*watch.types} >= {"classic", "consumer"}
    again = sum(events.ended.values()) - written
    tell(
        f"{written:,} records, all handled, by {members} members, {again} of them twice (two were killed), none "
        f"again that was committed; {watch.maps} offset maps seen, group types {dict(watch.types)}, {losses} losses"
    )


async def test_transactions(quick_kafka: LocalKafka, tmp_path: Path, tell: Tell) -> None:
    """Each output is there once, in the order of its key."""
    servers, source, target = quick_kafka.bootstrap_servers, "protocol-from", "protocol-to"
    for topic in (source, target):
        await quick_kafka.create_topic(topic, PARTITIONS)
    given = (test_exactly_once.MODULE, servers, source, target, f"{source}-group", "40")
    watch = Watch(servers, f"{source}-group")
    async with watch.watching():
        written, _ = await upgrade_and_back(
            servers, source, spread(0), [lambda _: given] * MEMBERS, done_by_commits(servers, source), OLDER, NEWER,
            tmp_path,
        )  # fmt: skip
    more = await test_exactly_once.check(servers, target, written)
    assert {*watch.types} >= {"classic", "consumer"}
    tell(
        f"{written:,} records, each there once, in order; {more:,} outputs of aborted transactions; group types "
        f"{dict(watch.types)}"
    )


async def test_a_state(quick_kafka: LocalKafka, tmp_path: Path, tell: Tell) -> None:
    """Each output has the sum of its key before it, once."""
    servers, source, target = quick_kafka.bootstrap_servers, "protocol-added", "protocol-sums"
    for topic in (source, target):
        await quick_kafka.create_topic(topic, PARTITIONS)
    await test_state.topics_of(quick_kafka, source)
    given = (test_state.MODULE, servers, source, target, f"{source}-group", "40", "together=1", "after=500")
    watch = Watch(servers, f"{source}-group")
    async with watch.watching():
        written, _ = await upgrade_and_back(
            servers, source, spread(100), [lambda _: given] * MEMBERS, done_by_commits(servers, source), OLDER, NEWER,
            tmp_path,
        )  # fmt: skip
    test_state.check_outputs(await read_all(servers, target, is_committed=True), written, KEYS)
    assert {*watch.types} >= {"classic", "consumer"}
    tell(f"{written:,} records, each with the sum before it, once; group types {dict(watch.types)}")
