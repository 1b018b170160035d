"""The measurements of offset maps, on a small scale."""

from __future__ import annotations

from random import Random

import pytest

from aioparallel.offsets import encode_offset_map, fit_offset_map
from aioparallel.offsets.java.java_formats import JAVA_FORMATS
from benchmarks.commit_holds import full_ledgers, ledger_of
from benchmarks.maps import PATTERNS, format_of, map_density, map_times


@pytest.mark.parametrize("name", PATTERNS)
def test_times_are_those_of_a_right_map(name: str) -> None:
    """A row tells medians not above the worst, the size and the format of the very text, and that it was read back."""
    row = map_times(name, seed=1, size=2_000, repeats=3)
    incompletes = PATTERNS[name](Random(1), 2_000)
    assert incompletes == sorted(set(incompletes))
    assert row["right"]
    assert 0 < row["encode_ms"] <= row["encode_worst_ms"]
    assert 0 < row["decode_ms"] <= row["decode_worst_ms"]
    assert row["characters"] == len(encode_offset_map(0, 1_999, incompletes, limit=None))
    assert row["incompletes"] == len(incompletes)
    assert row["format"] in JAVA_FORMATS


@pytest.mark.parametrize("name", [*JAVA_FORMATS, "Dense"])
def test_every_format_is_known_by_its_text(name: str) -> None:
    """The format told is the one that was asked for."""
    assert format_of(encode_offset_map(5, 99, range(5, 99, 3), format=name)) == name


def test_density_is_the_reach_of_ours_over_that_of_java() -> None:
    """Both reaches come from maps within the limit that were read back; ours is longer. A pattern that fits whole does
    not tell how much would fit."""
    row = map_density(0.5, size=9_000, seed=1, limit=256)
    assert row["right"]
    assert row["ours"] > row["java"] > 0
    assert row["ratio"] > 1
    assert not map_density(0.5, size=500, seed=1, limit=4_096)["right"]


def test_ledgers_have_the_maps_asked_for() -> None:
    """The first offset is incomplete and the last is complete, so that the map is about all of them; full ones have
    about 4,000 characters."""
    said = ledger_of([3, 5, 9], 10).snapshot()
    assert (said.base_offset, said.highest_succeeded, said.incompletes) == (0, 9, (0, 3, 5))
    for ledger in full_ledgers():
        full = ledger.snapshot()
        text, highest = fit_offset_map(full.base_offset, full.highest_succeeded, full.incompletes, limit=4_096)
        assert highest == full.highest_succeeded
        assert 3_800 < len(text) <= 4_096
