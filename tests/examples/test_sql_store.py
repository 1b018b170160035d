"""examples/sql_store: totals that count each flight once, though the program is killed."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Final

import asyncpg
import pytest

from aioparallel.testing import EmbeddedBroker
from aioparallel.testing.processes.child import Child
from examples.flights.flights import read_flights
from examples.flights_pipeline.filling import fill
from examples.postgres import postgres
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)

COUNT: Final = 10_000
MODULE: Final = "examples.sql_store.totals"


@pytest.mark.slow
async def test_it_is_killed_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The totals are those of the file."""
    flights: Counter[str] = Counter()
    minutes: Counter[str] = Counter()
    for one in read_flights(COUNT):
        flight = json.loads(one.value)
        flights[flight["carrier"]] += 1
        minutes[flight["carrier"]] += flight["arr_delay"] or 0
    with postgres() as address, EmbeddedBroker() as broker:
        await broker.create_topic("flights", 8)
        await fill(broker.bootstrap_servers, "flights", COUNT, lambda _done, _note: None)
        monkeypatch.setenv("AIOPARALLEL_BOOTSTRAP_SERVERS", broker.bootstrap_servers)

        async def counted() -> int:
            connection = await asyncpg.connect(address)
            try:
                return int(await connection.fetchval("SELECT coalesce(sum(flights), 0) FROM carriers") or 0)
            except asyncpg.UndefinedTableError:
                return 0
            finally:
                await connection.close()

        async with Child.of_module("killed", MODULE, "--database", address, log=tmp_path / "log") as child:
            await until(counted)
            await child.kill()
        assert 0 < await counted() <= COUNT
        async with Child.of_module("last", MODULE, "--database", address, log=tmp_path / "last") as child:
            lines = [await child.line(90) for _ in flights]
            await child.ended(30)
    found = [re.match(r"(\w+) +([\d,]+) flights +([-\d,]+) minutes late", line) for line in lines]
    assert {one[1]: int(one[2].replace(",", "")) for one in found if one} == flights
    assert {one[1]: int(one[3].replace(",", "")) for one in found if one} == minutes
