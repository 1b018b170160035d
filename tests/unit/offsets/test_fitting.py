"""Cutting a map to the limit: the result is the ledger up to h (I9), and h is as high as possible."""

from __future__ import annotations

import time
import tracemalloc
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aioparallel.offsets import MAX_INCOMPLETES, OffsetMap, decode_offset_map, encode_offset_map, fit_offset_map
from aioparallel.offsets.encoding import Formats
from tests.support.examples import examples

BASE = 10**9
FORMATS: list[Formats] = ["all", "java"]


def _pattern(seed: int, size: int) -> list[int]:
    """Incomplete offsets of some density: random, in bursts, or regular. The first offset is always incomplete."""
    random = Random(seed)
    share = random.choice([0.001, 0.02, 0.1, 0.4, 0.9])
    shape = random.choice(["strewn", "bursts", "regular"])
    if shape == "strewn":
        places = [at for at in range(1, size) if random.random() < share]
    elif shape == "bursts":
        places, at = list[int](), 1
        while at < size:
            length = random.randint(1, 60)
            places += range(at, min(size, at + length))
            at += length + random.randint(1, max(1, int(60 / share)))
    else:
        places = list(range(1, size, random.randint(2, 50)))
    return [BASE, *(BASE + place for place in places)]


def _check(incompletes: list[int], highest: int, limit: int, formats: Formats) -> int:
    """The map is correct up to h, and within the limit. Returns h."""
    text, cut = fit_offset_map(BASE, highest, incompletes, limit=limit, formats=formats)
    assert len(text) <= limit
    assert BASE - 1 <= cut <= highest
    assert cut == highest or cut not in set(incompletes)
    assert (cut >= BASE) == bool(text)
    assert formats == "all" or text.isascii()
    wanted = OffsetMap(BASE, cut, tuple(offset for offset in incompletes if offset <= cut))
    assert decode_offset_map(BASE, text) == wanted
    return cut


@given(seed=st.integers(0, 10**6), limit=st.integers(0, 300), formats=st.sampled_from(FORMATS))
@example(seed=1271, limit=8, formats="all")  # the first text comes out a character too long
def test_the_map_is_the_ledger_up_to_h(seed: int, limit: int, formats: Formats) -> None:
    """I9: the committed map decodes to exactly the ledger up to h, and says nothing above."""
    incompletes = _pattern(seed, 1_500)
    _check(incompletes, BASE + 1_499, limit, formats)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("formats", FORMATS)
def test_the_map_is_the_ledger_up_to_h_at_full_size(seed: int, formats: Formats) -> None:
    """I9 with Kafka's own limit, and a range that does not fit."""
    incompletes = _pattern(seed, 300_000)
    _check(incompletes, BASE + 299_999, 4_096, formats)


@settings(max_examples=examples(40))
@given(seed=st.integers(0, 10**6), limit=st.integers(0, 60))
def test_h_is_the_highest_that_fits_in_javas_formats(seed: int, limit: int) -> None:
    """No higher complete offset has a Java map within the limit."""
    random = Random(seed)
    incompletes = [BASE + at for at in range(300) if random.random() < (0.02, 0.2, 0.5)[seed % 3]]
    cut = _check(incompletes, BASE + 299, limit, "java")
    assert not [
        higher
        for higher in range(cut + 1, BASE + 300)
        if higher not in incompletes and _fits(incompletes, higher, limit, "java")
    ]


def _fits(incompletes: list[int], highest: int, limit: int, formats: Formats) -> bool:
    below = [offset for offset in incompletes if offset <= highest]
    try:
        encode_offset_map(BASE, highest, below, limit=limit, formats=formats)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("share", [0.003, 0.01, 0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("formats", FORMATS)
def test_h_is_nearly_the_highest_that_fits(share: float, formats: Formats) -> None:
    """Over all formats hardly one more offset would fit: no map that is 1 % longer does."""
    random = Random(3)
    size = int(9_000 / min(share, 1 - share))
    incompletes = [BASE + at for at in range(size) if random.random() < share]
    cut = _check(incompletes, BASE + size - 1, 1_024, formats)
    assert cut < BASE + size - 1
    assert not _fits(incompletes, BASE + int((cut - BASE) * 1.01), 1_024, formats)


@pytest.mark.parametrize("formats", FORMATS)
def test_a_pattern_that_zstd_finds_is_followed(formats: Formats) -> None:
    """A regular pattern that becomes random is kept at least as far as it is regular."""
    random = Random(1)
    regular = [at for at in range(200_000) if at % 7 in (0, 2, 5)]
    noise = [at for at in range(200_000, 400_000) if random.random() < 0.5]
    incompletes = [BASE + at for at in regular + noise]
    assert _check(incompletes, BASE + 399_999, 4_096, formats) > BASE + 200_000


@given(seed=st.integers(0, 10**6), limit=st.integers(0, 3_000) | st.none(), formats=st.sampled_from(FORMATS))
def test_what_fits_whole_is_written_whole(seed: int, limit: int | None, formats: Formats) -> None:
    """If everything fits, the text is exactly that of encode_offset_map."""
    incompletes, highest = _pattern(seed, 1_500), BASE + 1_499
    try:
        whole = encode_offset_map(BASE, highest, incompletes, limit=limit, formats=formats)
    except ValueError:
        assert fit_offset_map(BASE, highest, incompletes, limit=limit, formats=formats)[1] < highest
    else:
        assert fit_offset_map(BASE, highest, incompletes, limit=limit, formats=formats) == (whole, highest)


@pytest.mark.parametrize("highest", [BASE - 1, BASE - 7])
def test_nothing_to_say_is_no_text(highest: int) -> None:
    """If nothing is complete above the base, the text is empty. Gaps in the log may leave the highest offset below
    it."""
    assert fit_offset_map(BASE, highest, [BASE, BASE + 1]) == ("", BASE - 1)


@pytest.mark.parametrize("limit", [0, 3])
def test_a_limit_too_small_for_any_map_is_no_text(limit: int) -> None:
    """A broker that accepts no metadata gets none."""
    assert fit_offset_map(BASE, BASE + 9, [BASE], limit=limit) == ("", BASE - 1)


def test_nothing_complete_that_fits_is_no_text() -> None:
    """A map that could contain only incomplete offsets is not written."""
    random = Random(2)
    incompletes = [*range(BASE, BASE + 90_000), *(BASE + 90_000 + at for at in range(9_000) if random.random() < 0.5)]
    text, cut = fit_offset_map(BASE, BASE + 99_000, incompletes, limit=4, formats="java")
    assert (text, cut) == ("", BASE - 1)


def test_incompletes_above_the_highest_are_left_out() -> None:
    """A ledger's dict is passed unchanged, with incomplete offsets above the highest completed one."""
    ledger = dict.fromkeys([BASE, BASE + 5, BASE + 10, BASE + 11])
    assert fit_offset_map(BASE, BASE + 9, ledger) == (
        encode_offset_map(BASE, BASE + 9, [BASE, BASE + 5]),
        BASE + 9,
    )


def test_more_incompletes_than_a_map_lists_are_cut() -> None:
    """A map never lists more than the reader accepts, whatever the limit."""
    incompletes = range(0, 2 * MAX_INCOMPLETES + 2, 2)
    text, cut = fit_offset_map(0, 2 * MAX_INCOMPLETES + 1, incompletes)
    assert cut == 2 * MAX_INCOMPLETES - 1
    assert len(decode_offset_map(0, text).incompletes) == MAX_INCOMPLETES


def test_as_many_incompletes_as_a_map_lists_are_whole() -> None:
    """The maximum itself is allowed."""
    highest = 2 * MAX_INCOMPLETES - 1
    assert fit_offset_map(0, highest, range(0, highest, 2))[1] == highest


def test_without_a_limit_what_no_format_holds_is_cut() -> None:
    """Java's run lengths end at 2**31-1. A longer run is cut there."""
    text, cut = fit_offset_map(0, 2**32, [0], limit=None, formats="java")
    assert cut == 2**31 - 1
    assert decode_offset_map(0, text) == OffsetMap(0, cut, (0,))


def test_wrong_arguments_are_refused() -> None:
    """As in encode_offset_map; cutting hides no error."""
    with pytest.raises(ValueError, match="must ascend"):
        fit_offset_map(0, 9, [5, 3, 9], limit=0)
    with pytest.raises(ValueError, match=r"3 is outside \[5, 9\]"):
        fit_offset_map(5, 9, [3])
    with pytest.raises(ValueError, match="limit=-1"):
        fit_offset_map(0, 9, [5], limit=-1)
    with pytest.raises(ValueError, match="formats='none'"):
        fit_offset_map(0, 9, [5], formats="none")  # type: ignore[arg-type]


@pytest.mark.parametrize("formats", FORMATS)
def test_cutting_takes_milliseconds(formats: Formats) -> None:
    """100,000 offsets, half of them incomplete, in about 15 ms; 200 are allowed here, for busy machines."""
    random = Random(4)
    incompletes = [at for at in range(100_000) if random.random() < 0.5]
    fastest = 1.0
    for _ in range(3):
        begun = time.process_time()
        fit_offset_map(0, 99_999, incompletes, formats=formats)
        fastest = min(fastest, time.process_time() - begun)
    assert fastest < 0.2


@pytest.mark.parametrize("formats", FORMATS)
@pytest.mark.parametrize("gap", [2**27, 2**31 - 1, 2**31, 2**33])
def test_a_gap_of_billions_cuts_the_map_and_nothing_worse(formats: Formats, gap: int) -> None:
    """After a dense part there is a gap of billions. The map is correct up to where it was cut, whatever the limit, and
    the gap takes no memory."""
    random = Random(gap)
    near = sorted(random.sample(range(12_000), 6_000))
    incompletes = [*near, near[-1] + gap]
    for limit in (4096, 2000, 40):
        tracemalloc.start()
        try:
            text, highest = fit_offset_map(0, incompletes[-1] + 5, incompletes, limit=limit, formats=formats)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert len(text) <= limit
        assert peak < 150_000_000
        if text:
            found = decode_offset_map(0, text)
            assert found.highest_succeeded == highest
            assert list(found.incompletes) == [offset for offset in incompletes if offset <= highest]


def test_a_bitset_reaches_no_farther_than_it_can_be_written() -> None:
    """In a Java format, a few hundred incomplete offsets before a gap of billions are cut where the largest bitset
    ends, instead of refused."""
    random = Random(24)
    limit = random.choice((4096, 2000))
    random.choice((1, 2))
    incompletes, at = list[int](), 5
    for _ in range(random.choice((400, 3000, 6000))):
        incompletes.append(at)
        at += random.choice((1, 1, 2, 5, 50))
    text, highest = fit_offset_map(0, incompletes[-1] + 2**33, incompletes, limit=limit, formats="java")
    assert 0 < len(text) <= limit
    assert decode_offset_map(0, text) == OffsetMap(0, highest, tuple(incompletes))
