"""Changing single offsets of a map changes nothing else: compared with sets of offsets."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioparallel.offsets import MAX_INCOMPLETES, OffsetMap, decode_offset_map, encode_offset_map
from aioparallel.offsets.editing import completed, difference, encode_like, reopened, rewound
from aioparallel.offsets.encoding import format_of

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "java_offset_maps.json").read_text())
TOP = 90


@st.composite
def maps(draw: st.DrawFn) -> OffsetMap:
    """Any map near offset 20, also one that ends with incomplete offsets."""
    base = draw(st.integers(10, 30))
    highest = draw(st.integers(base - 1, base + 40))
    offsets = range(base, highest + 1)
    return OffsetMap(base, highest, tuple(draw(st.sets(st.sampled_from(offsets)).map(sorted)) if offsets else ()))


def complete(known: OffsetMap) -> set[int]:
    return {offset for offset in range(TOP) if known.is_complete(offset)}


def is_normal(known: OffsetMap) -> bool:
    """Whether it begins with an incomplete offset and ends with a complete one, or is empty."""
    return known.highest_succeeded < known.base_offset or (
        known.incompletes[:1] == (known.base_offset,) and known.is_complete(known.highest_succeeded)
    )


@given(maps(), st.sets(st.integers(0, TOP - 1), max_size=5))
def test_skip_completes_these_offsets(known: OffsetMap, offsets: set[int]) -> None:
    """And no others, whether they are below the base, in the map or above it."""
    after = completed(known, offsets)
    assert complete(after) == complete(known) | offsets
    assert after is known or is_normal(after)


@given(maps(), st.sets(st.integers(0, TOP - 1)))
def test_redo_reopens_these_offsets(known: OffsetMap, offsets: set[int]) -> None:
    """And no others, whether they are below the base, in the map or above it."""
    after = reopened(known, offsets)
    assert complete(after) == complete(known) - offsets
    assert after is known or is_normal(after)


@given(maps(), st.integers(0, TOP - 1))
def test_rewind_reopens_all_from_an_offset_on(known: OffsetMap, to: int) -> None:
    """And none below."""
    after = rewound(known, to)
    assert complete(after) == {offset for offset in complete(known) if offset < to}
    assert is_normal(after)


@given(maps(), maps())
def test_the_difference_of_two_maps(before: OffsetMap, after: OffsetMap) -> None:
    """What runs again, and what does not run; each offset once, in order."""
    again, skipped = difference(before, after)
    for found, expected in ((again, complete(before) - complete(after)), (skipped, complete(after) - complete(before))):
        assert [offset for some in found for offset in some] == sorted(expected)
        assert all(one.stop < other.start for one, other in pairwise(found)) or len(found) < 2


def test_too_far_above_the_map() -> None:
    """Each offset between would be listed."""
    far = OffsetMap(10, 9)
    assert completed(far, [10 + MAX_INCOMPLETES]).highest_succeeded == 10 + MAX_INCOMPLETES
    with pytest.raises(ValueError, match=r"above the last offset of the map \(9\)"):
        completed(far, [11 + MAX_INCOMPLETES])


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_maps_of_the_java_library_stay_in_their_format(vector: dict[str, Any]) -> None:
    """Skipping an offset in each text that the Java library has written gives a text of the same format, unless that
    cannot represent the new map; then of another Java format. It decodes to the same map with that offset."""
    base, missing = vector["base"], vector["incompletes"]
    for name, encoding in vector["encodings"].items():
        text = encoding["metadata"]
        known = decode_offset_map(base, text)
        assert format_of(text) == name
        for offset in {*missing[:1], *missing[len(missing) // 2 :][:1], known.highest_succeeded + 1}:
            after = completed(known, [offset])
            written = encode_like(after, text, None)
            assert decode_offset_map(after.base_offset, written) == after or not written
            found = format_of(written)
            assert found in (name, None) or (found != "Dense" and not _fits(after, name))
            assert difference(known, after) == ([], [range(offset, offset + 1)])


def _fits(known: OffsetMap, name: str) -> bool:
    try:
        encode_offset_map(known.base_offset, known.highest_succeeded, known.incompletes, format=name, limit=None)
    except ValueError:
        return False
    return True


def test_dense_stays_dense_and_new_maps_are_javas() -> None:
    """So that a group of the Java library can read them. A text that is too long is refused, not cut."""
    known = OffsetMap(10, 29, (10, 15))
    assert format_of(encode_like(known, encode_offset_map(10, 12, [10], format="Dense"), 4_096)) == "Dense"
    assert format_of(encode_like(known, "", 4_096)) == "BitSet"
    assert encode_like(OffsetMap(10, 9), "", 0) == ""
    chance = random.Random(1)
    odd = OffsetMap(0, 9_999, tuple(offset for offset in range(9_999) if chance.random() < 0.5))
    for found in ("", encode_offset_map(0, 2, [0], format="BitSet"), encode_offset_map(0, 2, [0], format="Dense")):
        with pytest.raises(ValueError, match="limit=100"):
            encode_like(odd, found, 100)
