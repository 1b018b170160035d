"""Cases that pace and kill, at their smallest on the embedded broker with real processes, and their arithmetic."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest

from aioparallel.testing import EmbeddedBroker
from aioparallel.testing.event_log import Event, EventKind
from benchmarks.cases import CASES, Case
from benchmarks.commit_holds import commit_holds
from benchmarks.contest import Arena
from benchmarks.evidence import Evidence
from benchmarks.maps import pattern_ledgers
from benchmarks.programs import CONTESTANTS
from benchmarks.scripts import crash, latency_figures, members, paced


@pytest.fixture
async def arena() -> AsyncIterator[Arena]:
    async with EmbeddedBroker() as broker:
        yield Arena(broker.bootstrap_servers, broker.create_topic, CONTESTANTS, 1, 1, 100, print, 0.03, 0.0)


def smallest(name: str) -> Case:
    (case,) = (case for case in CASES if case.name == name)
    return case.smaller(100)


async def test_latency_is_measured_and_checked(arena: Arena) -> None:
    """At 20,000 records/s: each record is handled once and in order, and the latencies are told with the warm-up
    apart. A record is produced before it arrives."""
    result = await paced(smallest("f-20000"), arena)
    assert result.problems == []
    figures = result.figures
    assert (result.records, figures["rate_asked"]) == (60_000, 20_000)
    assert figures["rate_seen"] > 0
    for share in ("p50", "p99", "p999", "max"):
        for when in ("", "warm_up_"):
            waited = figures[f"{when}arrival_to_handler_{share}_ms"]
            assert 0 < waited < figures[f"{when}produce_to_handler_{share}_ms"]


def test_latencies_are_those_that_were_seen() -> None:
    """Each from its own record: when it was sent, and when the fetch returned that took it or one behind it."""
    second = 10**9
    sent = [np.array([0, 3 * second]), np.array([4 * second])]
    arrivals = [Event(EventKind.BEGAN, 0, 1, 3 * second + 2_000_000), Event(EventKind.BEGAN, 1, 5, 4 * second)]
    events = [
        Event(EventKind.BEGAN, 0, 1, 3 * second + 5_000_000),
        Event(EventKind.ENDED, 0, 1, 3 * second + 9_000_000),
        Event(EventKind.BEGAN, 1, 0, 4 * second + 1_000_000),
        Event(EventKind.BEGAN, 0, 0, 3 * second + 6_000_000),
    ]
    found = latency_figures(Evidence.of(events), Evidence.of(arrivals), sent, 10.0)
    assert (found["arrival_to_handler_p50_ms"], found["arrival_to_handler_max_ms"]) == (1.0, 3.0)
    assert (found["produce_to_handler_p50_ms"], found["produce_to_handler_max_ms"]) == (1.0, 5.0)
    assert found["warm_up_produce_to_handler_max_ms"] == 3_006.0
    assert found["rate_seen"] == 1


@pytest.mark.slow
async def test_a_crash_repeats_nothing_of_ours(arena: Arena) -> None:
    """Behind one stuck record: the offset map knows what was done; commits by hand do not."""
    result = await crash(smallest("h-recovery"), arena)
    assert result.problems == []
    ours, by_hand = result.figures["contestants"]
    assert (ours["repeated"], by_hand["repeated"]) == (0, result.records - 101)
    assert 0 < ours["seconds_from_first_handler"] <= ours["seconds_to_recover"]


async def test_members_are_let_go_together(arena: Arena) -> None:
    """Here the only one, as the embedded broker has no balance: it has all partitions before it begins, and repeats
    nothing."""
    result = await members(smallest("i-members-1"), arena)
    assert result.problems == []
    for kind in ("sleep", "noop"):
        assert result.figures[f"rate_{kind}"] > 0
        assert (result.figures[f"shares_{kind}"], result.figures[f"repeated_{kind}"]) == ([5_000], 0)


async def test_a_contestant_that_dies_is_a_problem(arena: Arena) -> None:
    """Of the case, with its last words; figures there are none."""
    dying = replace(CONTESTANTS["ours"], command=("sh", "-c", "echo no luck today >&2; exit 3"))
    arena.contestants = {**CONTESTANTS, "ours": dying}
    result = await members(smallest("i-members-1"), arena)
    assert any("no luck today" in problem for problem in result.problems)
    assert result.figures == {}


async def test_commits_are_timed_and_read_back(arena: Arena) -> None:
    """Each round has its longest hold; the maps come back as they were committed."""
    await arena.create_topic("topic", 12)
    holds = await commit_holds(arena.bootstrap_servers, "topic", 12, pattern_ledgers(20_000, seed=1), rounds=2)
    assert holds.problems == []
    assert len(holds.longest) == len(holds.seconds) == 2
    assert holds.longest[0][0] > 0
    assert 0 < holds.shortest_map < holds.longest_map
