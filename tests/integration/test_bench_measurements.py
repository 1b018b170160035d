"""Measurements of the benchmark that are no contest, at their smallest, on the embedded broker with real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aioparallel.cli.bench.full_maps import pattern_ledgers
from aioparallel.cli.bench.holds import commit_holds
from aioparallel.cli.bench.latency import Course
from aioparallel.cli.bench.model import Case
from aioparallel.testing import EmbeddedBroker


@pytest.fixture
async def broker() -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker() as found:
        yield found


async def test_latency_is_measured_and_checked(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """At 20,000 records/s: each record is handled once and in order, and the latencies are told with the warm-up
    apart. A record is produced before it arrives."""
    case = Case("f", "f-20000", "title")
    await Course(broker.bootstrap_servers, broker.create_topic, tmp_path, seed=1).paced(case, 20_000.0, seconds=2.5)
    assert case.problems == []
    figures = case.figures
    assert case.records == 50_000
    assert figures["rate_asked"] == 20_000
    assert figures["rate_seen"] > 0
    for share in ("p50", "p99", "p999", "max"):
        for when in ("", "warm_up_"):
            waited = figures[f"{when}arrival_to_handler_{share}_ms"]
            assert 0 < waited < figures[f"{when}produce_to_handler_{share}_ms"]


async def test_commits_are_timed_and_read_back(broker: EmbeddedBroker) -> None:
    """Each round has its longest hold; the maps come back as they were committed."""
    await broker.create_topic("topic", 12)
    holds = await commit_holds(broker.bootstrap_servers, "topic", 12, pattern_ledgers(20_000, seed=1), rounds=2)
    assert holds.problems == []
    assert len(holds.longest) == len(holds.seconds) == 2
    assert holds.longest[0][0] > 0
    assert 0 < holds.shortest_map < holds.longest_map
