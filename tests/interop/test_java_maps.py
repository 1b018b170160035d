"""Our offset maps against the Java library's own encoders and decoder, in both directions, case by case."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import pytest

from aioparallel.offsets import OffsetMap, decode_offset_map, encode_offset_map
from tests.support.interop.java_maps import Encodings, java_decodes, java_encodes
from tests.support.interop.java_programs import JavaPrograms

pytestmark = pytest.mark.timeout(600, func_only=True)

PLAIN = ("BitSet", "RunLength", "BitSetV2", "RunLengthV2")
FORMATS = (*PLAIN, *(f"{name}Compressed" for name in PLAIN))

BASES = (0, 1, 123, 2**31 - 1, 2**31, 2**53 + 1, 2**62)
SIZES = (1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 1_000, 1_607)
BOUNDARIES = (32_767, 32_768, 65_537)
"""Around what 16 bits count."""
MANY_RUNS = 20_000
GIVEN_AWAY = 28
"""Characters: with more runs we do not try every format, see smallest_java_payload."""


class Case(NamedTuple):
    """A map, and what the Java library makes of it."""

    map: OffsetMap
    java: Encodings

    def __str__(self) -> str:
        said = self.map
        return f"base {said.base_offset}, highest {said.highest_succeeded}, {len(said.incompletes)} incomplete"


def patterns(size: int, random: Random) -> Iterator[list[int]]:
    """Which of ``size`` offsets are incomplete: none, all, the ends, in turn, one long run, at random."""
    offsets = range(size)
    yield []
    yield [*offsets]
    yield [0]
    yield [size - 1]
    yield [*offsets[::2]]
    yield [*offsets[1::2]]
    yield [*offsets[size // 5 : 4 * size // 5]]
    for share in (0.01, 0.5, 0.99):
        yield [offset for offset in offsets if random.random() < share]


def maps() -> Iterator[OffsetMap]:
    """A few hundred maps."""
    random = Random(2026)
    for base in (1, 123, 2**31, 2**62):
        # Nothing is said. Not at base 0: there the Java library writes, and reads from an empty RunLength, that
        # offset 0 is complete. Neither library commits such a text.
        yield OffsetMap(base, base - 1)
    for size in (*SIZES, *BOUNDARIES):
        bases = [random.choice(BASES), 2**63 - 1 - size] if size < BOUNDARIES[0] else [random.choice(BASES)]
        for base in bases:
            for places in patterns(size, random):
                yield OffsetMap(base, base + size - 1, tuple(base + place for place in places))
    for run in (32_767, 32_768):  # the longest run of 16 bits, and one more, on either side
        for first in (0, 5):
            yield OffsetMap(first, first + run + 9, tuple(range(first, first + run)))
            yield OffsetMap(first, first + run, (first,))


@pytest.fixture(scope="module")
def cases(java_programs: JavaPrograms) -> list[Case]:
    """Every map with the Java library's encodings of it."""
    all_maps = list(maps())
    return [Case(*pair) for pair in zip(all_maps, java_encodes(java_programs, all_maps), strict=True)]


def ours(said: OffsetMap, name: str) -> str | None:
    """Our text in this format; None when the format cannot hold the map."""
    try:
        return encode_offset_map(said.base_offset, said.highest_succeeded, said.incompletes, format=name, limit=None)
    except ValueError:
        return None


def test_we_read_every_map_the_java_library_writes(cases: list[Case]) -> None:
    """Each of its formats decodes to the map it was made of."""
    assert len(cases) > 300
    for case in cases:
        assert len(case.java.texts) >= 4, case
        for name, text in case.java.texts.items():
            assert decode_offset_map(case.map.base_offset, text) == case.map, f"{name}: {case}"


def test_we_write_what_the_java_library_writes(cases: list[Case]) -> None:
    """The same formats hold a map here and there; without zstd the texts are equal, byte for byte."""
    for case in cases:
        for name in FORMATS:
            text = ours(case.map, name)
            assert (text is None) == (name not in case.java.texts), f"{name}: {case}"
            if name in PLAIN:
                assert text == case.java.texts.get(name), f"{name}: {case}"


def test_the_java_library_reads_every_map_we_write(cases: list[Case], java_programs: JavaPrograms) -> None:
    """Our texts in each of its formats, those with our zstd frames too, decode there to the map."""
    written = [(case, name, ours(case.map, name)) for case in cases for name in FORMATS]
    texts = [(case.map.base_offset, text) for case, _, text in written if text is not None]
    read = iter(java_decodes(java_programs, texts))
    for case, name, text in written:
        if text is not None:
            assert next(read) == case.map, f"{name}: {case}"


def test_what_we_would_commit_is_not_longer_than_in_the_format_java_picks(cases: list[Case]) -> None:
    """We try all formats, the Java library those with zstd only where no other is small. (Ours against ours: the frame
    of one map differs by a few bytes between versions of zstd.)"""
    for case in cases:
        said = case.map
        picked = ours(said, next(name for name, text in case.java.texts.items() if text == case.java.picked))
        text = encode_offset_map(said.base_offset, said.highest_succeeded, said.incompletes, limit=None, formats="java")
        few = 2 * min(len(said.incompletes), said.highest_succeeded - said.base_offset) < MANY_RUNS
        assert picked is not None
        assert len(text) <= len(picked) + (0 if few else GIVEN_AWAY), case
