"""Encoding and decoding maps in all formats: round trips, the choice, limits, invalid arguments, time."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioparallel.offsets import MAX_INCOMPLETES, OffsetMap, decode_offset_map, encode_offset_map
from aioparallel.offsets.java.java_formats import JAVA_FORMATS

ALL_FORMATS = [*JAVA_FORMATS, "Dense"]


@st.composite
def offset_maps(draw: st.DrawFn, most: int = 400) -> OffsetMap:
    """Maps of all densities, regular and in bursts, at small and large offsets."""
    base = draw(st.sampled_from([0, 1, 123, 2**31 - 3, 2**62, 2**63 - 1 - most]))
    runs = draw(st.lists(st.one_of(st.integers(1, 3), st.integers(1, 40)), max_size=30))
    side, flags = draw(st.booleans()), list[bool]()
    for run in runs:
        flags += [side] * run
        side = not side
    if draw(st.booleans()):
        flags += draw(st.lists(st.booleans(), max_size=100))
    flags = flags[:most]
    return OffsetMap(base, base + len(flags) - 1, tuple(base + at for at, flag in enumerate(flags) if flag))


@given(wanted=offset_maps(), name=st.sampled_from(ALL_FORMATS))
def test_every_format_decodes_to_what_was_encoded(wanted: OffsetMap, name: str) -> None:
    """Each format decodes to exactly the map that was encoded."""
    text = encode_offset_map(wanted.base_offset, wanted.highest_succeeded, wanted.incompletes, format=name, limit=None)
    assert decode_offset_map(wanted.base_offset, text) == wanted


@given(wanted=offset_maps())
def test_the_choice_is_the_smallest_java_format(wanted: OffsetMap) -> None:
    """Without a format, the shortest of the eight Java texts is written."""
    arguments = wanted.base_offset, wanted.highest_succeeded, wanted.incompletes
    chosen = encode_offset_map(*arguments, limit=None)
    assert len(chosen) == min(len(encode_offset_map(*arguments, format=name, limit=None)) for name in JAVA_FORMATS)
    assert chosen.isascii()


@pytest.mark.parametrize("period", [997, 5_003, 11_003])
@pytest.mark.parametrize("share", [0.1, 0.3])
def test_the_choice_is_the_smallest_where_a_pattern_repeats(period: int, share: float) -> None:
    """There are so many runs that not all formats are made, and the pattern repeats only beyond the sample that
    decides."""
    random, size = Random(period), 24_000
    phrase = [random.random() < share for _ in range(period)]
    incompletes = [at for at in range(size - 1) if phrase[at % period]]
    chosen = encode_offset_map(0, size - 1, incompletes, limit=None)
    every = [encode_offset_map(0, size - 1, incompletes, format=name, limit=None) for name in JAVA_FORMATS]
    assert len(chosen) == min(map(len, every))


@given(wanted=offset_maps(), limit=st.integers(0, 200))
def test_the_limit_decides_between_java_and_dense(wanted: OffsetMap, limit: int) -> None:
    """A Java format while it fits, Dense if only that fits, and ValueError if nothing does."""
    arguments = wanted.base_offset, wanted.highest_succeeded, wanted.incompletes
    java = encode_offset_map(*arguments, limit=None)
    dense = encode_offset_map(*arguments, format="Dense", limit=None)
    if len(java) <= limit:
        assert encode_offset_map(*arguments, limit=limit) == java
    elif len(dense) <= limit:
        assert encode_offset_map(*arguments, limit=limit) == dense
        with pytest.raises(ValueError, match=f"more than limit={limit}"):
            encode_offset_map(*arguments, limit=limit, formats="java")
    else:
        with pytest.raises(ValueError, match=f"Dense: .* more than limit={limit}"):
            encode_offset_map(*arguments, limit=limit)


@pytest.mark.parametrize("size", [32_766, 32_767, 32_768, 65_536, 65_537, 262_145])
@pytest.mark.parametrize("share", [0.0, 0.0005, 0.02, 0.3, 0.97])
def test_large_maps_say_what_was_written(size: int, share: float) -> None:
    """The code for sparse and for dense patterns, and for bitsets of more than one piece, agrees."""
    random = Random(size)
    base = 10**12
    incompletes = tuple(base + at for at in range(size) if random.random() < share)
    wanted = OffsetMap(base, base + size - 1, incompletes)
    for name in (None, "BitSetV2", "RunLengthV2", "BitSetV2Compressed", "RunLengthV2Compressed", "Dense"):
        text = encode_offset_map(base, base + size - 1, incompletes, format=name, limit=None)
        assert decode_offset_map(base, text) == wanted


@pytest.mark.parametrize("around", [2**15, 2**16, 2**31, 2**32, 2**62])
@pytest.mark.parametrize("name", [None, "Dense"])
def test_offsets_around_a_power_of_two(around: int, name: str | None) -> None:
    """At each offset that needs another width, as the highest and as the last incomplete one."""
    for highest in range(around - 2, around + 3):
        wanted = OffsetMap(around - 9, highest, (around - 9, around - 7, highest))
        text = encode_offset_map(wanted.base_offset, highest, wanted.incompletes, format=name, limit=None)
        assert decode_offset_map(wanted.base_offset, text) == wanted


@pytest.mark.parametrize("kind", [list, tuple, dict.fromkeys, iter, lambda offsets: range(5, 8)])
def test_incompletes_may_be_any_iterable(kind: Callable[[list[int]], list[int]]) -> None:
    """A ledger's dict, a generator or a list."""
    assert encode_offset_map(5, 9, kind([5, 6, 7])) == encode_offset_map(5, 9, [5, 6, 7])


@pytest.mark.parametrize("metadata", [None, ""])
def test_no_metadata_is_an_empty_map(metadata: str | None) -> None:
    """A committed offset without metadata says nothing above it."""
    assert decode_offset_map(77, metadata) == OffsetMap(77, 76)


@pytest.mark.parametrize(
    ("base", "highest", "incompletes", "message"),
    [
        (-1, 5, [], "base_offset=-1"),
        (5, 3, [], "highest_succeeded=3"),
        (5, 2**63, [], "highest_succeeded="),
        (2**63, 2**63, [], "base_offset="),
        (5, 9, [4], r"4 is outside \[5, 9\]"),
        (5, 9, [10], r"10 is outside \[5, 9\]"),
        (5, 9, [7, 6], "must ascend"),
        (5, 9, [6, 6], "must ascend"),
        (0, 9, [0, 0], "must ascend"),
        (5, 9, [-3], "-3 is outside"),
        (5, 9, [5, -3, 9], "must ascend"),
        (5, 9, [5, -3], "-3 is outside"),
        (1, 9, [1, -(2**63)], "is outside"),
        (5, 9, [5, -(2**63), 9], "must ascend"),
        (0, 2**63 - 1, [0, 2**63 - 2, 1, 2**63 - 1], "must ascend"),
        (5, 9, [2**64], r"within 0\.\.2\*\*63-1"),
    ],
)
def test_arguments_that_make_no_map(base: int, highest: int, incompletes: list[int], message: str) -> None:
    """Invalid arguments are refused, and the message names them."""
    with pytest.raises(ValueError, match=message):
        encode_offset_map(base, highest, incompletes)


@given(values=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 30), max_size=6))
def test_order_is_checked_in_one_sweep(values: list[int]) -> None:
    """The check of all offsets at once accepts exactly the ascending ones in range."""
    valid = all(0 <= value <= 2**62 for value in values) and sorted(set(values)) == values
    try:
        encode_offset_map(0, 2**62, values, format="Dense", limit=None)
    except ValueError:
        assert not valid
    else:
        assert valid


def test_names_and_limits_that_do_not_exist() -> None:
    """An unknown format, an unknown set of formats and a negative limit are refused."""
    with pytest.raises(ValueError, match="format='Bitset': must be one of BitSet, "):
        encode_offset_map(0, 0, [], format="Bitset")
    with pytest.raises(ValueError, match="formats='python'"):
        encode_offset_map(0, 0, [], formats="python")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="format='Dense' is none of the Java formats"):
        encode_offset_map(0, 0, [], format="Dense", formats="java")
    with pytest.raises(ValueError, match="limit=-1"):
        encode_offset_map(0, 0, [], limit=-1)
    with pytest.raises(ValueError, match="base_offset=-1"):
        decode_offset_map(-1, "")


def test_more_incompletes_than_a_map_lists() -> None:
    """A map that decoding would refuse is not written either."""
    with pytest.raises(ValueError, match=f"lists at most {MAX_INCOMPLETES}"):
        encode_offset_map(0, MAX_INCOMPLETES + 1, range(MAX_INCOMPLETES + 1))


@pytest.mark.parametrize("pattern", ["0.1%", "1%", "10%", "50%", "every other", "bursts"])
def test_100_000_offsets_take_milliseconds(pattern: str) -> None:
    """The goal is 5 ms to encode or to decode; ten times that is allowed here, for busy machines."""
    random = Random(1)
    size = 100_000
    if pattern == "every other":
        incompletes = list(range(0, size, 2))
    elif pattern == "bursts":
        incompletes = [at for at in range(size) if at % 1_100 < 100 * (at % 3)]
    else:
        share = float(pattern[:-1]) / 100
        incompletes = [at for at in range(size) if random.random() < share]
    fastest = [1.0, 1.0]
    for _attempt in range(5):
        begun = time.process_time()
        text = encode_offset_map(0, size - 1, incompletes, limit=None)
        written = time.process_time()
        found = decode_offset_map(0, text)
        read = time.process_time()
        fastest = [min(fastest[0], written - begun), min(fastest[1], read - written)]
    assert list(found.incompletes) == incompletes
    assert max(fastest) < 0.050, fastest
