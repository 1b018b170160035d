"""What is left out of a letter that is too large, and what is not."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator

import pytest

from aioparallel.config.policies import TooLargeLetters
from aioparallel.delivery.letters import LeftOut, Letter, original_headers, read_letter, write_letter
from aioparallel.delivery.shrinking import SentLetter, is_cut, smaller
from aioparallel.records.record import Failure, Headers, Origin, Outgoing, Record

OWN: Headers = (("trace", b"abc"), ("none", None))


def letter_of(value: bytes | None, key: bytes | None = b"key", own: Headers = OWN) -> SentLetter:
    failure = Failure(1000.0, "ValueError", "no good")
    letter = Letter(Origin("orders", 3, 17, 5), "billing", 3, failure, failure, "Traceback: here")
    return SentLetter("dlq", value, key, write_letter(own, letter))


def record_of(letter: Outgoing) -> Record:
    return Record("dlq", 0, 0, letter.key, letter.value, tuple(letter.headers))


def told(letter: Outgoing) -> Letter:
    found = read_letter(record_of(letter))
    assert found is not None
    return found


def steps(letter: SentLetter, how: TooLargeLetters = "drop_value") -> Iterator[SentLetter]:
    """Each smaller than the one before, or as large."""
    less = smaller(letter, how)
    while less is not None:
        yield less
        less = smaller(less, how)


def size_of(letter: Outgoing) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in letter.headers)
    return len(letter.key or b"") + len(letter.value or b"") + headers


def test_first_the_texts_of_the_error_go_and_then_the_value() -> None:
    """Key, headers and the story stay; with the value gone there is place for the texts again."""
    whole = letter_of(bytes(1_000_000))
    short, cut, *_ = steps(whole)
    assert not is_cut(short)
    assert (len(short.value or b""), told(short).last.message, told(short).traceback) == (1_000_000, "", "")
    assert is_cut(cut)
    assert (cut.value, cut.key, original_headers(tuple(cut.headers))) == (b"", b"key", OWN)
    found = told(cut)
    assert found._replace(left_out=None) == told(whole)
    assert found.left_out is not None
    assert (found.left_out.value, found.left_out.kept, found.left_out.key, found.left_out.headers) == (
        1_000_000,
        0,
        None,
        None,
    )


def test_the_checksum_is_that_of_the_whole_record() -> None:
    """By it the record is known again where it stands."""
    cut = [*steps(letter_of(b"v" * 5_000))][1]
    expected = zlib.crc32(b"key", zlib.crc32(b"+3 "))
    expected = zlib.crc32(b"v" * 5_000, zlib.crc32(b"+5000 ", expected))
    left_out = told(cut).left_out
    assert left_out is not None
    assert left_out.checksum == expected
    assert dict(cut.headers)[LeftOut.HEADER] == b"value=5000 kept=0 checksum=%d" % expected


@pytest.mark.parametrize("value", [None, b"", b"small"])
def test_what_is_largest_goes(value: bytes | None) -> None:
    """A key, or a header, that is larger than all else goes before a value that would not help."""
    _, cut, *_ = steps(letter_of(value, bytes(9_000)))
    assert (cut.key, cut.value) == (None, value)
    _, cut, *_ = steps(letter_of(value, own=(("large", bytes(9_000)), *OWN)))
    assert (cut.key, cut.value, original_headers(tuple(cut.headers))) == (b"key", value, OWN)
    left_out = told(cut).left_out
    assert left_out is not None
    assert (left_out.value, left_out.key, left_out.headers) == (None, None, 9_005)


def test_a_value_that_is_left_out_is_no_deletion() -> None:
    """It is empty, and not missing: a reader that does not know the header sends it back as it is."""
    assert all(one.value is not None for how in ("drop_value", "truncate") for one in steps(letter_of(b"v" * 99), how))


def test_truncated_it_has_the_first_half_or_quarter_of_its_value() -> None:
    """As much as the topic takes."""
    value = random.Random(1).randbytes(8_192)
    _, half, quarter, eighth, none, *_ = steps(letter_of(value), "truncate")
    assert [half.value, quarter.value, eighth.value, none.value] == [value[:4_096], value[:2_048], value[:1_024], b""]
    left_out = told(quarter).left_out
    assert left_out is not None
    assert (left_out.value, left_out.kept) == (8_192, 2_048)
    assert str(left_out) == "all but the first 2,048 bytes of the value's 8,192 bytes"


def test_held_it_keeps_its_record() -> None:
    """Only the texts of the error go."""
    (short,) = steps(letter_of(bytes(10_000)), "hold")
    assert (short.value, is_cut(short)) == (bytes(10_000), False)


def test_it_comes_to_an_end_whatever_it_is_made_of() -> None:
    """In few steps, and what is left is the letter's own headers without texts: some hundred bytes."""
    for seed in range(100):
        chance = random.Random(seed)
        own = tuple((f"h{n}", bytes(chance.choice((0, 99, 5_000)))) for n in range(chance.choice((0, 3, 300))))
        value, key = (chance.choice((None, b"", bytes(70_000), bytes(900))) for _ in range(2))
        how: TooLargeLetters = chance.choice(("drop_value", "truncate"))
        all_steps = [*steps(letter_of(value, key, own), how)]
        assert len(all_steps) <= 120
        assert size_of(all_steps[-1]) < 600 + 64
        for one in all_steps:
            assert told(one).origin == Origin("orders", 3, 17, 5)


def test_a_letter_of_a_version_that_left_nothing_out_reads_as_before() -> None:
    """And one whose header is damaged is no letter, as with each other."""
    assert told(letter_of(b"v")).left_out is None
    damaged = letter_of(b"v")
    damaged.headers = (*damaged.headers, (LeftOut.HEADER, b"value=many"))
    assert read_letter(record_of(damaged)) is None


def test_names_that_are_no_utf_8_stay_with_their_headers() -> None:
    """Also where one before them is left out."""
    raw = b"\xffa".decode("utf-8", "surrogateescape")
    whole = letter_of(b"v", own=(("large", b"x" * 500), (raw, b"1"), ("plain", b"2")))
    shorter = next(one for one in steps(whole) if is_cut(one))
    assert original_headers(tuple(shorter.headers)) == ((raw, b"1"), ("plain", b"2"))
