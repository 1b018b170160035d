"""The Dense format against a reader that was written from its description alone."""

from __future__ import annotations

import zlib
from array import array
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioparallel.offsets import OffsetMap, decode_offset_map, encode_offset_map, fit_offset_map
from aioparallel.offsets.dense.rice import RunningSizes, best_parameter, write_block
from aioparallel.offsets.java.java_formats import JAVA_FORMATS
from aioparallel.offsets.java.java_reader import decode_java_payload
from aioparallel.records.errors import OffsetMapError

BASE = 10**9


class PlainReader:
    """Reads digit by digit what docs/offset-maps.md describes."""

    def __init__(self, base: int, text: str) -> None:
        values = [ord(character) - 0x0800 for character in text]
        assert all(0 <= value < 2**15 for value in values)
        assert values[0] >> 7 == 0xA9
        assert values[0] >> 3 & 15 == 1
        covered = base.to_bytes(8, "big") + b"".join(ord(c).to_bytes(2, "big") for c in text[0] + text[3:])
        assert values[1] << 15 | values[2] == zlib.crc32(covered) % 2**30
        self.base = base
        self.kind = values[0] & 7
        self.digits = [value >> bit & 1 for value in values[3:] for bit in range(14, -1, -1)]

    def bits(self, width: int) -> int:
        value = 0
        for _ in range(width):
            value = 2 * value + self.digits.pop(0)
        return value

    def number(self) -> int:
        return self.bits(self.bits(6))

    def block(self) -> list[int]:
        count, k = self.number(), self.bits(6)
        length = self.number()
        low = [self.bits(k) for _ in range(count)]
        values, high = list[int](), 0
        for _ in range(length):
            if self.bits(1):
                high += 1
            else:
                values.append(high << k | low[len(values)])
                high = 0
        return values

    def read(self) -> OffsetMap:
        at, incompletes = self.base, list[int]()
        if self.kind == 0:
            size = self.number()
            for gap in self.block():
                incompletes.append(at + gap)
                at += gap + 1
            at = self.base + size
        elif self.kind == 1:
            complete = self.bits(1) == 1
            runs = [self.block(), self.block()]
            while runs[complete]:
                length = runs[complete].pop(0) + 1
                if not complete:
                    incompletes += range(at, at + length)
                at += length
                complete = not complete
            assert not any(runs)
        else:
            length = self.number()
            payload = bytes(self.bits(8) for _ in range(length))
            self.end()
            return decode_java_payload(self.base, payload)
        self.end()
        return OffsetMap(self.base, at - 1, tuple(incompletes))

    def end(self) -> None:
        assert len(self.digits) < 15
        assert not any(self.digits)


def _kind(text: str) -> int:
    return ord(text[0]) & 7


def _random_places(share: float, size: int) -> list[int]:
    random = Random(7)
    return [at for at in range(size) if random.random() < share]


PATTERNS = {
    "gaps": (0, _random_places(0.02, 3_000)),
    "bits, and a complete rest": (0, _random_places(0.5, 1_000)),
    "bits": (2, _random_places(0.5, 3_000)),
    "runs": (1, [at for at in range(3_000) if Random(at // 53).random() < 0.5]),
    "runs, complete first": (1, [at + 9 for at in range(2_990) if Random(at // 53).random() < 0.5]),
    "java": (2, [at for at in range(3_000) if at % 7 in (0, 2, 5)]),
    "none": (0, []),
    "all": (2, list(range(3_000))),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_reader_made_from_the_description_reads_it(name: str) -> None:
    """Each kind of body is chosen if it is the smallest, and has the meaning in the description."""
    kind, places = PATTERNS[name]
    wanted = OffsetMap(BASE, BASE + 2_999, tuple(BASE + place for place in places if place < 3_000))
    text = encode_offset_map(BASE, BASE + 2_999, wanted.incompletes, format="Dense")
    assert PlainReader(BASE, text).read() == wanted == decode_offset_map(BASE, text)
    assert _kind(text) == kind


@given(
    flags=st.lists(st.booleans() | st.just(True), max_size=200),
    base=st.sampled_from([0, 5, 2**62]),
)
def test_any_map_means_what_the_description_says(flags: list[bool], base: int) -> None:
    """The two readers agree on every map."""
    incompletes = tuple(base + at for at, complete in enumerate(flags) if not complete)
    wanted = OffsetMap(base, base + len(flags) - 1, incompletes)
    text = encode_offset_map(base, wanted.highest_succeeded, incompletes, format="Dense")
    assert PlainReader(base, text).read() == wanted


def test_one_gap_much_longer_than_the_others() -> None:
    """One in 20 offsets is incomplete, then comes a gap of 40,000: the best parameter is that of the short gaps."""
    incompletes = tuple(BASE + place for place in [*_random_places(0.05, 40_000), 80_000])
    wanted = OffsetMap(BASE, BASE + 80_000, incompletes)
    text = encode_offset_map(BASE, BASE + 80_000, incompletes, format="Dense", limit=None)
    assert _kind(text) == 0
    assert PlainReader(BASE, text).read() == wanted == decode_offset_map(BASE, text)


def test_the_limit_is_a_length_that_is_allowed() -> None:
    """A text of exactly this length is written, and one character more is refused."""
    incompletes = _random_places(0.1, 3_000)
    length = len(encode_offset_map(0, 2_999, incompletes, format="Dense", limit=None))
    assert len(encode_offset_map(0, 2_999, incompletes, format="Dense", limit=length)) == length
    with pytest.raises(ValueError, match=f"takes {length} characters"):
        encode_offset_map(0, 2_999, incompletes, format="Dense", limit=length - 1)


@given(share=st.sampled_from([0.01, 0.2, 0.5]), size=st.integers(0, 3_000), seed=st.integers(0, 99))
def test_kafka_counts_as_many_characters_as_python(share: float, size: int, seed: int) -> None:
    """Each character is one UTF-16 unit, so the limit has the same meaning in the broker's Java."""
    random = Random(seed)
    incompletes = [at for at in range(size) if random.random() < share]
    text = encode_offset_map(0, size - 1, incompletes, format="Dense")
    assert len(text.encode("utf-16-be")) == 2 * len(text)
    assert all("\u0800" <= character <= "\u87ff" for character in text)
    assert not text.isascii()


def test_damage_is_noticed() -> None:
    """A text with one character changed, removed or exchanged with its neighbour is refused."""
    incompletes = [BASE + at for at in PATTERNS["gaps"][1]]
    text = encode_offset_map(BASE, BASE + 2_999, incompletes, format="Dense")
    for at in range(len(text)):
        other = chr(0x0800 + (ord(text[at]) - 0x0800 ^ 0x155))
        damaged = [text[:at] + other + text[at + 1 :], text[:at] + text[at + 1 :]]
        if at and text[at - 1] != text[at]:
            damaged.append(text[: at - 1] + text[at] + text[at - 1] + text[at + 1 :])
        for wrong in filter(None, damaged):
            with pytest.raises(OffsetMapError):
                decode_offset_map(BASE, wrong)


def test_a_map_copied_to_another_offset_is_refused() -> None:
    """A tool that copies a commit to another offset with its metadata does not make records disappear."""
    text = encode_offset_map(BASE, BASE + 99, [BASE], format="Dense")
    with pytest.raises(OffsetMapError, match=f"not written for offset {BASE + 1}"):
        decode_offset_map(BASE + 1, text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("漢字で書いたメモ", "neither base64 nor Dense"),
        (chr(0x0800 + (0xA9 << 7 | 2 << 3)) + "漢字", "Dense of version 2; this reader knows 1"),
        (chr(0x0800 + (0xA9 << 7 | 1 << 3)), "truncated in its envelope"),
        (chr(0x0800 + (0xA9 << 7 | 1 << 3)) + "漢字", "truncated in its envelope"),
        (chr(0x0800 + (0xA9 << 7 | 1 << 3)) + "漢字ASCII", "outside U+0800"),
        (chr(0x0800 + (0xA9 << 7 | 1 << 3)) + "漢字漢字", "checksum that does not fit"),
    ],
)
def test_what_is_not_dense_has_a_reason(text: str, reason: str) -> None:
    """Foreign text in the same block, other versions and truncated envelopes have different reasons."""
    with pytest.raises(OffsetMapError, match=reason.replace("+", r"\+")):
        decode_offset_map(BASE, text)


def _enclosed(kind: int, digits: str, base: int = BASE) -> str:
    """Any digits in a valid envelope."""
    digits += "0" * (-len(digits) % 15)
    head = chr(0x0800 + (0xA9 << 7 | 1 << 3 | kind))
    body = "".join(chr(0x0800 + int(digits[at : at + 15], 2)) for at in range(0, len(digits), 15))
    checksum = zlib.crc32(base.to_bytes(8, "big") + (head + body).encode("utf-16-be")) % 2**30
    return head + chr(0x0800 + (checksum >> 15)) + chr(0x0800 + checksum % 2**15) + body


def _number(value: int) -> str:
    return format(value.bit_length(), "06b") + (format(value, "b") if value else "")


BLOCK = _number(2) + format(1, "06b") + _number(3) + "10" + "010"  # values 1 and 2 under k = 1

BROKEN_BODIES = {
    "kind": (5, "0" * 15, "unknown kind 5"),
    "size beyond int64": (0, _number(2**63 - 1) + BLOCK, r"beyond 2\*\*63-1"),
    "an offset above the highest": (0, _number(4) + BLOCK, "above its highest"),
    "cut in a number": (0, _number(2**40)[:15], "truncated"),
    "leading zero": (0, "000010" + "01" + BLOCK, "leading zero"),
    "remainders that are not there": (0, _number(9) + _number(2**40) + "111111" + _number(1) + "0", "truncated"),
    "a count that is not there": (0, _number(9) + _number(2**40) + "000000" + _number(1) + "0", "does not hold"),
    "unary part with no end": (0, _number(9) + _number(1) + "000000" + _number(3) + "101", "does not hold"),
    "digits behind": (0, _number(5) + BLOCK + "0" * 20, "digits after its end"),
    "ones behind": (0, _number(5) + BLOCK + "1", "digits after its end"),
    "runs not in turn": (1, "1" + BLOCK + _number(0) + "000000" + _number(0), "runs in turn"),
    "billions incomplete": (1, "0" + _number(1) + format(40, "06b") + _number(1) + "1" * 40 + "0" + BLOCK, "runs in"),
    "trillions incomplete": (
        1,
        "0" + _number(1) + format(40, "06b") + _number(1) + "1" * 40 + "0" + _number(0) + "000000" + _number(0),
        "incomplete offsets are more",
    ),
    "a Java payload that is none": (2, _number(2) + "0" * 16, "unknown magic"),
    "a Java payload cut short": (2, _number(9) + "0" * 16, "truncated"),
}


@pytest.mark.parametrize("name", BROKEN_BODIES)
def test_bodies_that_do_not_hold_together(name: str) -> None:
    """A correct checksum does not make an invalid body valid."""
    kind, digits, reason = BROKEN_BODIES[name]
    with pytest.raises(OffsetMapError, match=reason):
        decode_offset_map(BASE, _enclosed(kind, digits))


def test_a_body_made_by_hand_is_read() -> None:
    """The envelope of the other tests is valid: with a valid body it is a map."""
    assert decode_offset_map(BASE, _enclosed(0, _number(9) + BLOCK)) == OffsetMap(BASE, BASE + 8, (BASE + 1, BASE + 4))


def test_the_example_in_the_description_is_a_map() -> None:
    """The example in docs/offset-maps.md has the meaning given there."""
    text = "\u5c88\u18e2\u1130\u1121\u2842\u7a00"
    assert text == _enclosed(0, "0001001001000010100000010000101110010", 1_000)
    assert decode_offset_map(1_000, text) == OffsetMap(1_000, 1_008, (1_001, 1_004))


@given(digits=st.text(alphabet="01", max_size=300), kind=st.integers(0, 3))
def test_any_digits_in_an_envelope_decode_or_are_refused(digits: str, kind: int) -> None:
    """The result is a consistent map or OffsetMapError."""
    try:
        found = decode_offset_map(BASE, _enclosed(kind, digits))
    except OffsetMapError:
        return
    assert list(found.incompletes) == sorted(set(found.incompletes))
    assert all(BASE <= offset <= found.highest_succeeded for offset in found.incompletes)


@given(values=st.lists(st.integers(0, 30) | st.integers(0, 2**40), max_size=30))
def test_the_parameter_is_the_best(values: list[int]) -> None:
    """No parameter takes fewer digits (except for the length's own number), and sizes are computed correctly."""
    row = array("q", values)
    k, size = best_parameter(row)
    if size < 10_000:
        assert len(write_block(row, k)) == size
    assert all(size <= RunningSizes(row).block(len(row), other) + 6 for other in range(45))


@pytest.mark.parametrize(("share", "size"), [(0.01, 900_000), (0.1, 150_000), (0.5, 70_000)])
def test_dense_holds_over_twice_what_java_holds(share: float, size: int) -> None:
    """With random patterns, the prefix in 4,096 characters reaches at least 2.3 times as far."""
    random = Random(7)
    incompletes = [at for at in range(size) if random.random() < share]
    _, dense = fit_offset_map(0, size - 1, incompletes)
    _, java = fit_offset_map(0, size - 1, incompletes, formats="java")
    assert dense < size - 1  # the pattern is long enough to tell
    assert dense >= 2.3 * java


def test_dense_is_smaller_than_every_java_format() -> None:
    """Dense takes half the characters of a Java format, whatever the pattern (except for a few characters)."""
    for seed in range(20):
        random = Random(seed)
        share = random.random()
        incompletes = [at for at in range(2_000) if random.random() < share]
        dense = len(encode_offset_map(0, 1_999, incompletes, format="Dense"))
        java = min(len(encode_offset_map(0, 1_999, incompletes, format=name, limit=None)) for name in JAVA_FORMATS)
        assert dense <= java / 2
