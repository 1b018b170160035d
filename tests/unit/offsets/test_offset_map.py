"""Offset maps against sets of offsets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioparallel.offsets import OffsetMap

END = 20


@st.composite
def maps(draw: st.DrawFn) -> OffsetMap:
    """Any map within twenty offsets, whose highest one is complete."""
    base = draw(st.integers(0, END))
    highest = draw(st.integers(base - 1, END))
    incompletes = draw(st.sets(st.integers(base, highest - 1))) if highest > base else set()
    if highest >= base:
        incompletes |= {base} - {highest}
    return OffsetMap(base, highest, tuple(sorted(incompletes)))


def complete(one: OffsetMap) -> set[int]:
    """The complete offsets, by the definition."""
    above = set(range(one.base_offset, one.highest_succeeded + 1)) - set(one.incompletes)
    return set(range(one.base_offset)) | above


@given(maps())
def test_what_is_complete(one: OffsetMap) -> None:
    """Offset by offset."""
    assert {offset for offset in range(END + 5) if one.is_complete(offset)} == complete(one)


@given(maps(), maps())
def test_whether_one_map_covers_another(one: OffsetMap, other: OffsetMap) -> None:
    """Whether one map contains all complete offsets of the other. If its base is lower, the result may be False
    nevertheless."""
    if one.covers(other):
        assert complete(other) <= complete(one)
    elif one.base_offset >= other.base_offset:
        assert not complete(other) <= complete(one)
