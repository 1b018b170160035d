"""What an offset map says, against sets of offsets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aioparallel.offsets import OffsetMap

END = 20


@st.composite
def maps(draw: st.DrawFn) -> OffsetMap:
    """Any within twenty offsets, whose highest one is complete."""
    base = draw(st.integers(0, END))
    highest = draw(st.integers(base - 1, END))
    incompletes = draw(st.sets(st.integers(base, highest - 1))) if highest > base else set()
    if highest >= base:
        incompletes |= {base} - {highest}
    return OffsetMap(base, highest, tuple(sorted(incompletes)))


def complete(one: OffsetMap) -> set[int]:
    """As the words of the design say it."""
    above = set(range(one.base_offset, one.highest_succeeded + 1)) - set(one.incompletes)
    return set(range(one.base_offset)) | above


@given(maps())
def test_what_is_complete(one: OffsetMap) -> None:
    """Offset by offset."""
    assert {offset for offset in range(END + 5) if one.is_complete(offset)} == complete(one)


@given(maps(), maps())
def test_what_one_says_of_all_that_another_says(one: OffsetMap, other: OffsetMap) -> None:
    """Whether all of it is among it. Of a base that is no complete offset above the other's it may say less."""
    if one.covers(other):
        assert complete(other) <= complete(one)
    elif one.base_offset >= other.base_offset:
        assert not complete(other) <= complete(one)
