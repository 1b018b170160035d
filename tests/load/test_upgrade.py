"""Members of two revisions in one group, under load: from the older one to this one, and back. ``make load-upgrade``.

What one of them has stored (commits and their offset maps, transactions, a state, positions in a database, markers of a
queue) the other one reads on.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from aioparallel.persistence.sql import SqlStore
from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from examples.postgres import postgres_server
from tests.load import test_exactly_once, test_kmq_kills, test_sql_store, test_state
from tests.support.children.job import Job
from tests.support.children.queue import is_bad
from tests.support.kafka.filling import Message
from tests.support.kafka.reading import read_all
from tests.support.members.rolling import ROOT, Side, extract
from tests.support.members.upgrading import KEYS, PARTITIONS, Events, done_by_commits, spread, upgrade_and_back

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(900)]

REVISION: Final = os.environ.get("UPGRADE_FROM", "2698a47")
Tell = Callable[[str], None]


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Side:
    """The revision from which people come."""
    older = extract(REVISION, tmp_path_factory.mktemp("older"))
    for folder in (older, ROOT):
        command = [sys.executable, "-P", "-c", "import aioparallel, tests; print(aioparallel.__file__, tests.__file__)"]
        found = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, check=True)
        for path in found.stdout.decode().split():
            assert Path(path).is_relative_to(folder), found.stdout
    return Side(older)


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

    written, _ = await upgrade_and_back(
        servers, topic, spread(0), [member, member], events.read, older, Side(), tmp_path
    )
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
    written, _ = await upgrade_and_back(
        servers, source, spread(0), [lambda _: given] * 2, done_by_commits(servers, source), older, Side(), tmp_path
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
    written, _ = await upgrade_and_back(
        servers, source, spread(100), [lambda _: given] * 2, done_by_commits(servers, source), older, Side(), tmp_path
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

            written, _ = await upgrade_and_back(
                servers, topic, spread(0), [lambda _: given] * 2, rows, older, Side(), tmp_path
            )
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

    written, _ = await upgrade_and_back(
        servers, queue, messages(), [member, member, tracker], done, older, Side(), tmp_path, speaks=False
    )
    letters = Counter(int(one.value or b"") for one in await read_all(servers, f"{queue}__undelivered"))
    assert {number for _, number in events.ended} == {n for n in range(written) if not is_bad(n)}
    assert set(letters) == {n for n in range(written) if is_bad(n)}
    left = await test_kmq_kills.open_markers(servers, queue)
    tell(f"{written:,} records, all handled or dead-lettered ({len(letters)}); {len(left)} markers open at the end")


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
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(side.folder)}, check=True, timeout=120)
