"""examples/state: rows of late flights, right though the program is killed."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest

from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.records.record import TopicPartition
from aioparallel.testing import EmbeddedBroker
from aioparallel.testing.processes.child import Child
from examples.flights.flights import read_flights
from examples.state.streaks import LATE, ROW
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.reading import read_all
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)

COUNT: Final = 10_000
MODULE: Final = "examples.state.streaks"


def expected() -> tuple[dict[bytes, int], set[bytes]]:
    """Who is late at the end, and how often in a row; and the flights that make a row of three."""
    rows: defaultdict[bytes, int] = defaultdict(int)
    told: set[bytes] = set()
    for flight in read_flights(COUNT):
        minutes = json.loads(flight.value)["arr_delay"]
        if flight.key is None or minutes is None:
            continue
        rows[flight.key] = rows[flight.key] + 1 if minutes > LATE else 0
        if rows[flight.key] == ROW:
            told.add(flight.value)
    return {key: row for key, row in rows.items() if row}, told


@pytest.mark.slow
async def test_it_is_killed_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told is what the file says, and so is who is late at the end."""
    rows, told = expected()
    with EmbeddedBroker() as broker:
        topics = {"flights": 8, "streaks-state": 8, "streaks-snapshots": 8, "flights.dlq": 1, "streaks": 1}
        for topic, partitions in topics.items():
            await broker.create_topic(topic, partitions)
        servers = broker.bootstrap_servers
        flights = [Message(*flight) for flight in read_flights(COUNT)]
        fill(servers, "flights", flights[: COUNT // 2])
        monkeypatch.setenv("AIOPARALLEL_BOOTSTRAP_SERVERS", servers)

        places = [TopicPartition("flights", number) for number in range(8)]

        async def done() -> int:
            async with Admin(servers) as admin:
                return sum(one.offset for one in (await admin.committed("streaks", places)).values())

        async with Child.of_module("killed", MODULE, log=tmp_path / "log") as child:
            await until(done)
            await child.kill()
        fill(servers, "flights", flights[COUNT // 2 :])
        async with Child.of_module("last", MODULE, log=tmp_path / "last") as child:
            while await done() < COUNT:
                await child.line(90)
            wanted = f" {len(rows)} aircraft are late now, at most {max(rows.values())} times in a row"
            async with asyncio.timeout(30):
                while wanted not in await child.line():
                    pass
            child.terminate()
            await child.ended(30)
        outputs = {record.value for record in await read_all(servers, "streaks")}
    assert outputs == told
