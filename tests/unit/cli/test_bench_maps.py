"""The measurements of offset maps, on a small scale."""

from __future__ import annotations

from random import Random

import pytest

from aioparallel.cli.bench.full_maps import full_ledgers, ledger_of, map_sessions, pattern_ledgers
from aioparallel.cli.bench.map_times import PATTERNS, format_of, map_density, map_times
from aioparallel.cli.bench.maps import hold_figures, wrong_rows
from aioparallel.group.client import Generation
from aioparallel.offsets import encode_offset_map, fit_offset_map
from aioparallel.offsets.java.java_formats import JAVA_FORMATS


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_ascending_offsets_that_follow_from_the_seed(name: str) -> None:
    """Each once, within the range, and the same for the same seed."""
    found = PATTERNS[name](Random(1), 5_000)
    assert found == sorted(set(found)) == PATTERNS[name](Random(1), 5_000)
    assert 0 <= found[0] <= found[-1] < 5_000


@pytest.mark.parametrize("name", PATTERNS)
def test_times_are_those_of_a_right_map(name: str) -> None:
    """A row tells medians not above the worst, the size and the format of the very text, and that it was read back."""
    row = map_times(name, seed=1, size=2_000, repeats=3)
    text = encode_offset_map(0, 1_999, PATTERNS[name](Random(1), 2_000), limit=None)
    assert row["right"]
    assert 0 < row["encode_ms"] <= row["encode_worst_ms"]
    assert 0 < row["decode_ms"] <= row["decode_worst_ms"]
    assert row["characters"] == len(text)
    assert row["incompletes"] == len(PATTERNS[name](Random(1), 2_000))
    assert row["format"] in JAVA_FORMATS


@pytest.mark.parametrize("name", [*JAVA_FORMATS, "Dense"])
def test_every_format_is_known_by_its_text(name: str) -> None:
    """The format told is the one that was asked for."""
    assert format_of(encode_offset_map(5, 99, range(5, 99, 3), format=name)) == name


def test_density_is_the_reach_of_ours_over_that_of_java() -> None:
    """Both reaches come from maps within the limit that were read back; ours is longer."""
    row = map_density(0.5, size=9_000, seed=1, limit=256)
    assert row["right"]
    assert row["ours"] > row["java"] > 0
    assert 1 < row["ratio"] <= max(row["ours"] / row["java"] * 1.2, 2)


def test_a_pattern_that_fits_whole_is_no_density() -> None:
    """It does not tell how much would fit."""
    assert not map_density(0.5, size=500, seed=1, limit=4_096)["right"]


def test_wrong_maps_become_problems() -> None:
    """A row whose map came back otherwise is named; the rows keep figures only."""
    rows = [{"pattern": "1 %", "right": True}, {"pattern": "bursts", "right": False}]
    assert wrong_rows(rows, "pattern") == ["bursts: the map read is not the map written"]
    assert rows == [{"pattern": "1 %"}, {"pattern": "bursts"}]


def test_a_ledger_says_what_its_pattern_says() -> None:
    """The first offset is incomplete and the last is complete, so that the map is about all of them."""
    said = ledger_of([3, 5, 9], 10).snapshot()
    assert (said.base_offset, said.highest_succeeded, said.incompletes) == (0, 9, (0, 3, 5))


def test_ledgers_have_maps_of_the_size_asked_for() -> None:
    """Those of patterns are about all offsets; the full ones take about all of 4,096 characters, and are not cut."""
    for ledger in pattern_ledgers(1_000, seed=1):
        assert (ledger.next_commit, ledger.highest_completed) == (0, 999)
    for ledger in full_ledgers():
        said = ledger.snapshot()
        text, highest = fit_offset_map(said.base_offset, said.highest_succeeded, said.incompletes)
        assert 3_800 < len(text) <= 4_096
        assert highest == said.highest_succeeded


def test_each_partition_has_a_dirty_session() -> None:
    """With the ledgers by turns."""
    ledgers = pattern_ledgers(100, seed=1)
    sessions = map_sessions("topic", 8, Generation(3, "member"), ledgers)
    assert [session.partition.partition for session in sessions] == list(range(8))
    assert all(session.dirty for session in sessions)
    assert sessions[len(ledgers)].ledger is sessions[0].ledger


def test_holds_are_medians_of_the_rounds() -> None:
    """In ms, CPU and wall time, and the longest is named."""
    figures = hold_figures(
        {
            "longest": [[0.001, 0.005, 0.0, "one"], [0.009, 0.009, 0.0, "two"], [0.002, 0.004, 0.0, "three"]],
            "seconds": [1.0, 2.0, 6.0],
            "shortest_map": 10,
            "longest_map": 20,
        }
    )
    assert figures["longest_hold_ms"] == 2.0
    assert figures["longest_hold_wall_ms"] == 5.0
    assert figures["longest_hold_rounds_ms"] == [1.0, 9.0, 2.0]
    assert figures["commit_seconds"] == 2.0
