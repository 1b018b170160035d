"""Members of two revisions in one group, under load: from the older one to this one, and back. ``make load-upgrade``.

What one of them has stored (commits and their offset maps, transactions, a state, positions in a database, markers of a
queue) the other one reads on.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from aioparallel.persistence.sql import SqlStore
from aioparallel.testing import LocalKafka
from aioparallel.testing.event_log import EventKind, EventTail
from aioparallel.testing.pytest_plugin import TopicMaker
from examples.postgres import postgres_server
from tests.load import test_exactly_once, test_kmq_kills, test_sql_store, test_state
from tests.support.children.job import Job
from tests.support.children.queue import is_bad
from tests.support.kafka.filling import Message, fill, numbered
from tests.support.kafka.reading import committed, read_all
from tests.support.members.rolling import ROOT, Program, Rolling, Side, extract
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(900)]

REVISION: Final = os.environ.get("UPGRADE_FROM", "2698a47")
PARTITIONS, KEYS = 8, 1_000
PORTION, EVERY = 400, 0.4
"""Records that are written at once, and the seconds from one such portion to the next."""
STAYS = 4 * PORTION
"""Records that must be done before the next member is replaced."""
Done = Callable[[], Awaitable[int]]
Tell = Callable[[str], None]


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Side:
    """The revision from which people come."""
    side = extract(REVISION, tmp_path_factory.mktemp("older"))
    for folder in (side, ROOT):
        command = [sys.executable, "-P", "-c", "import aioparallel, tests; print(aioparallel.__file__, tests.__file__)"]
        found = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, check=True)
        for path in found.stdout.decode().split():
            assert Path(path).is_relative_to(folder), found.stdout
    return side


async def upgrade_and_back(
    servers: str, topic: str, messages: Iterator[Message], programs: Sequence[Program], done: Done, older: Side,
    logs: Path, *, speaks: bool = True,
) -> int:  # fmt: skip
    """Write without end while members are replaced; how many were written, all of them done in the end."""
    written, is_enough = 0, False

    async def feed() -> None:
        nonlocal written
        while not is_enough:
            portion = list(itertools.islice(messages, PORTION))
            await asyncio.to_thread(fill, servers, topic, portion)
            written += len(portion)
            await asyncio.sleep(EVERY)

    async with Rolling(programs, older, logs, speaks=speaks) as members:

        async def come_on(goal: int) -> None:
            async def is_there() -> bool:
                members.check()
                assert is_enough or not feeding.done(), feeding
                return await done() >= goal

            await until(is_there, 180, what=lambda: f"{goal} of {written} records done")

        async def stay() -> None:
            await come_on(await done() + STAYS)

        feeding = asyncio.create_task(feed())
        try:
            await stay()
            for side in (ROOT, older):  # one after the other, and back
                for number in range(len(programs)):
                    await members.replace(number, side)
                    await stay()
            await members.replace_all(ROOT)
            await stay()
            await members.replace(0, older, kill=True)
            await stay()
            await members.replace(0, ROOT, kill=True)
            await stay()
            await members.replace_all(older)
            await stay()
        finally:
            is_enough = True
            await feeding
        await come_on(written)
        await members.end()
    return written


class Events:
    """What handlers did, by the event logs of their members."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tails: dict[Path, EventTail] = {}
        self.ended: Counter[tuple[int, int]] = Counter()

    def file(self, name: str) -> str:
        """Where a member writes."""
        return str(self._folder / f"{name}.events")

    async def read(self) -> int:
        """How many records have ended, in any member."""
        for file in self._folder.glob("*.events"):
            for event in self._tails.setdefault(file, EventTail(file)).new():
                if event.kind is EventKind.ENDED:
                    self.ended[event.partition, event.offset] += 1
        return len(self.ended)


def spread(size: int) -> Iterator[Message]:
    """Numbered records without end; record ``n`` is in partition ``n % 8``."""
    for n, message in enumerate(numbered(10_000_000, KEYS, size)):
        yield message._replace(partition=n % PARTITIONS)


async def test_commits_and_offset_maps(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path, tell: Tell, older: Side
) -> None:
    """Each record is handled; only what was killed is handled again."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(partitions=PARTITIONS)
    events = Events(tmp_path)
    job = Job(
        bootstrap_servers=servers,
        topic=topic,
        group_id=f"{topic}-group",
        options={"max_concurrency": 200, "session_timeout": 6.0, "heartbeat_interval": 0.5, "drain_timeout": 3.0},
        seconds=(0.0, 0.2),
        sample_interval=1.0,
    )

    def member(name: str) -> Sequence[str]:
        return "tests.support.children.consumer", job.text, events.file(name)

    written = await upgrade_and_back(servers, topic, spread(0), [member, member], events.read, older, tmp_path)
    places = {(one.partition, one.offset) for one in await read_all(servers, topic)}
    assert len(places) == written
    assert set(events.ended) == places
    again = sum(events.ended.values()) - written
    # What was in flight in two that were killed, and was done since their last commits, a second before.
    assert again <= written / 4
    tell(f"{written:,} records, all handled, {again} of them twice (two members were killed)")


async def test_transactions(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path, tell: Tell, older: Side
) -> None:
    """Each output is there once, in the order of its key."""
    servers = local_kafka.bootstrap_servers
    source, target = await kafka_topic(partitions=PARTITIONS), await kafka_topic(partitions=PARTITIONS)
    given = (test_exactly_once.MODULE, servers, source, target, f"{source}-group", "40")
    written = await upgrade_and_back(
        servers, source, spread(0), [lambda _: given] * 2, _committed(servers, source), older, tmp_path
    )
    more = await test_exactly_once.check(servers, target, written)
    tell(f"{written:,} records, each there once, in order; {more:,} outputs of aborted transactions")


async def test_a_state(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path, tell: Tell, older: Side
) -> None:
    """Each output has the sum of its key before it, once."""
    servers = local_kafka.bootstrap_servers
    source, target = await kafka_topic(partitions=PARTITIONS), await kafka_topic(partitions=PARTITIONS)
    await test_state.topics_of(local_kafka, source)
    given = (test_state.MODULE, servers, source, target, f"{source}-group", "40", "together=1", "after=500")
    written = await upgrade_and_back(
        servers, source, spread(100), [lambda _: given] * 2, _committed(servers, source), older, tmp_path
    )
    test_state.check_outputs(await read_all(servers, target, is_committed=True), written, KEYS)
    tell(f"{written:,} records, each with the sum before it, once")


async def test_positions_in_a_database(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path, tell: Tell, older: Side
) -> None:
    """Each row is there once, in the order of its key; the tables are those that the older one has made."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(partitions=PARTITIONS)
    with postgres_server(durable=True) as server:
        database = test_sql_store.url(server)
        _make_tables(older, database)
        engine = create_async_engine(database)
        try:
            async with engine.begin() as connection:
                await connection.execute(text(test_sql_store.TABLE))
            given = (test_sql_store.MODULE, servers, topic, f"{topic}-group", database, "10")

            async def rows() -> int:
                return await test_sql_store.count(engine)

            written = await upgrade_and_back(servers, topic, spread(0), [lambda _: given] * 2, rows, older, tmp_path)
            await SqlStore(engine).create_tables()  # as the command does it; they stand
            await test_sql_store.check(engine, written, topic)
        finally:
            await engine.dispose()
    tell(f"{written:,} records, each row there once, in order")


async def test_a_queue(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tmp_path: Path, tell: Tell, older: Side
) -> None:
    """Each record that can be handled is; each other one is dead-lettered; no marker is open in the end."""
    servers, queue = local_kafka.bootstrap_servers, await kafka_topic(partitions=PARTITIONS)
    await local_kafka.create_topic(f"{queue}-markers", PARTITIONS)
    await local_kafka.create_topic(f"{queue}__undelivered")
    events, module = Events(tmp_path), "tests.support.children.queue"

    def member(name: str) -> Sequence[str]:
        return module, "member", servers, queue, "3.0", "0.2", events.file(name)

    def tracker(_: str) -> Sequence[str]:
        return module, "tracker", servers, queue

    def messages() -> Iterator[Message]:
        return (Message(b"k%d" % (n % KEYS), b"%d" % n) for n in itertools.count())

    async def done() -> int:
        handled = await events.read()
        letters = {one.value for one in await read_all(servers, f"{queue}__undelivered")}
        return handled + len(letters)

    written = await upgrade_and_back(
        servers, queue, messages(), [member, member, tracker], done, older, tmp_path, speaks=False
    )
    letters = Counter(int(one.value or b"") for one in await read_all(servers, f"{queue}__undelivered"))
    assert {number for _, number in events.ended} == {n for n in range(written) if not is_bad(n)}
    assert set(letters) == {n for n in range(written) if is_bad(n)}
    left = await test_kmq_kills.open_markers(servers, queue)
    tell(f"{written:,} records, all handled or dead-lettered ({len(letters)}); {len(left)} markers open at the end")


def _committed(servers: str, source: str) -> Done:
    async def offsets() -> int:
        found = await committed(servers, f"{source}-group")
        return sum(one.offset for one in found.values())

    return offsets


def _make_tables(side: Side, database: str) -> None:
    program = (
        "import asyncio, sys\n"
        "from sqlalchemy.ext.asyncio import create_async_engine\n"
        "from aioparallel.stores.sql import SqlStore\n"
        "async def main():\n"
        "    engine = create_async_engine(sys.argv[1])\n"
        "    await SqlStore(engine).create_tables()\n"
        "    await engine.dispose()\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-P", "-c", program, database]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(side)}, check=True, timeout=120)
