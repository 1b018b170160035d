"""Metadata that is not a map is refused with the reason, in limited time and memory."""

from __future__ import annotations

import base64
import struct
import time
import tracemalloc
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from aioparallel.offsets import MAX_BODY_BYTES, MAX_INCOMPLETES, OffsetMap, decode_offset_map, encode_offset_map
from aioparallel.offsets.java.java_formats import JAVA_FORMATS
from aioparallel.records.errors import OffsetMapError

BASE = 1_000


def _text(magic: bytes, body: bytes = b"") -> str:
    return base64.b64encode(magic + body).decode()


def _frame(body: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(body)


def _runs(*lengths: int) -> bytes:
    return struct.pack(f">{len(lengths)}i", *lengths)


def _huge_window_frame() -> bytes:
    # Magic number, a frame header without content size, and a window of 2**31 bytes and more.
    return bytes.fromhex("28b52ffd00" + "a8" + "010000")


UNREADABLE = {
    "foreign text": ("committed by another tool", "not base64"),
    "json": ('{"offset": 5}', "not base64"),
    "not ascii": ("Größe", "not base64"),
    "padding missing": ("bgABAAEAQBhx"[:-1], "not base64"),
    "text after padding": ("bgAA====", "not base64"),
    "line break": ("bg\nAA", "not base64"),
    "base64 of foreign text": (_text(b"hello"), "unknown magic byte 0x68"),
    "only padding": ("====", "not base64"),
    "Kafka Streams": (_text(b"\1", struct.pack(">q", 5)), "Kafka Streams"),
    "Kafka Streams V2": (_text(b"\2", bytes(12)), "Kafka Streams"),
    "ByteArray": (_text(b"L", b"\1\0\1\0"), "ByteArray"),
    "ByteArrayCompressed": (_text(b"\xee", _frame(b"\1\0\1\0")), "ByteArray"),
    "unknown magic": (_text(b"d", b"\0\0"), "unknown magic byte 0x64"),
    "BitSet without count": (_text(b"l"), "truncated in its count"),
    "BitSet with half a count": (_text(b"l", b"\0"), "truncated in its count"),
    "BitSetV2 with half a count": (_text(b"o", b"\0\0\0"), "truncated in its count"),
    "BitSet with negative count": (_text(b"l", b"\xff\xff\0"), "counts -1 offsets"),
    "BitSetV2 with negative count": (_text(b"o", b"\x80\0\0\0\0"), "counts -2147483648 offsets"),
    "BitSet counts more than there is": (_text(b"l", b"\0\x64\xff\xff"), "counts 100 offsets and has 2 bytes"),
    "BitSet two bytes short": (_text(b"l", b"\0\x18\xff"), "counts 24 offsets and has 1 bytes"),
    "BitSetV2 counts 2**31-1": (_text(b"o", b"\x7f\xff\xff\xff\xff\0"), "counts 2147483647 offsets"),
    "BitSet with a bit above": (_text(b"l", b"\0\3\x0f\0"), "bits set after its 3 offsets"),
    "BitSet with a spare byte that is none": (_text(b"l", b"\0\3\x05\1"), "bits set after its 3 offsets"),
    "RunLength without runs": (_text(b"n"), "not a multiple of 2"),
    "RunLengthV2 without runs": (_text(b"e"), "not a multiple of 4"),
    "RunLength with a half entry": (_text(b"n", b"\0\1\0"), "not a multiple of 2"),
    "RunLengthV2 with a half entry": (_text(b"e", b"\0\0\0\1\0\0"), "not a multiple of 4"),
    "RunLength with a negative run": (_text(b"n", b"\0\1\xff\xff"), "negative run length"),
    "RunLengthV2 with a negative run": (_text(b"e", _runs(1, -5, 7)), "negative run length"),
    "billions incomplete": (_text(b"e", _runs(2**31 - 1)), "2147483647 incomplete offsets"),
    "one incomplete too many": (_text(b"e", _runs(MAX_INCOMPLETES, 5, 1)), "incomplete offsets are more"),
    "no frame": (_text(b"p", b"no zstd frame at all"), "damaged zstd frame"),
    "no frame, nothing": (_text(b"p"), "truncated"),
    "a frame cut short": (_text(b"p", _frame(_runs(1, 99, 1, 5, 3, 8) * 9)[:-3]), "truncated"),
    "a frame and more": (_text(b"p", _frame(_runs(1, 99)) + b"abc"), "3 bytes follow"),
    "two frames": (_text(b"p", _frame(_runs(1, 99)) * 2), "bytes follow"),
    "a frame and much more": (_text(b"p", _frame(_runs(1, 99)) + bytes(2_000)), "follow the zstd frame"),
    "a bomb": (_text(b"s", _frame(bytes(400 * 1024 * 1024))), f"more than {MAX_BODY_BYTES} bytes"),
    "a huge window": (_text(b"s", _huge_window_frame()), "damaged zstd frame"),
    "an empty frame": (_text(b"p", _frame(b"")), "body of 0 bytes"),
    "a frame of half an entry": (_text(b"p", _frame(b"\0\0\1")), "body of 3 bytes"),
    "a frame of bits of a few bytes": (_text(b"s", _frame(struct.pack(">i", 2**30) + b"\xff")), "counts 1073741824"),
    "a frame of zero bits": (_text(b"s", _frame(struct.pack(">i", 2**26) + bytes(2**23))), "67108864 incomplete"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_metadata_is_refused(name: str) -> None:
    """Each case is an OffsetMapError with a reason of its own, and takes a few MiB at most."""
    text, reason = UNREADABLE[name]
    tracemalloc.start()
    try:
        with pytest.raises(OffsetMapError, match=reason):
            decode_offset_map(BASE, text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * MAX_BODY_BYTES


def test_the_last_byte_of_bits_may_be_absent() -> None:
    """Java's reader takes missing bits as incomplete offsets."""
    assert decode_offset_map(BASE, _text(b"l", b"\0\x10\xff")) == OffsetMap(
        BASE, BASE + 15, tuple(range(BASE + 8, BASE + 16))
    )


@pytest.mark.parametrize(
    "text", [_text(b"e", _runs(0, 8)), _text(b"l", b"\0\x08\xff\0"), encode_offset_map(2**63 - 8, 2**63 - 1, [])]
)
def test_offsets_beyond_int64_are_refused(text: str) -> None:
    """A map that ends after the last possible offset is refused; one offset lower it is valid."""
    assert decode_offset_map(2**63 - 8, text) == OffsetMap(2**63 - 8, 2**63 - 1)
    with pytest.raises(OffsetMapError, match=r"beyond 2\*\*63-1"):
        decode_offset_map(2**63 - 7, text)


def test_a_plain_body_may_not_be_a_bomb_either() -> None:
    """Text longer than any body needs is refused before it is decoded."""
    with pytest.raises(OffsetMapError, match="more than the largest body needs"):
        decode_offset_map(0, "A" * (2 * MAX_BODY_BYTES))


def test_many_incompletes_from_few_bytes_are_listed_up_to_the_bound() -> None:
    """More than the maximum is refused, the maximum itself is not."""
    found = decode_offset_map(0, _text(b"e", _runs(MAX_INCOMPLETES, 1)))
    assert len(found.incompletes) == MAX_INCOMPLETES
    assert found.highest_succeeded == MAX_INCOMPLETES


def _decodes_or_refuses(base_offset: int, text: str) -> None:
    begun = time.process_time()
    try:
        found = decode_offset_map(base_offset, text)
    except OffsetMapError:
        return
    finally:
        # A few damaged bytes may claim as many incompletes as a map may list: that takes 0.3 s.
        assert time.process_time() - begun < 3.0
    listed = found.incompletes
    assert found.base_offset == base_offset
    assert found.highest_succeeded >= base_offset - 1
    assert list(listed) == sorted(set(listed))
    assert not listed or base_offset <= listed[0] <= listed[-1] <= found.highest_succeeded


MAGIC = st.sampled_from([bytes([form.magic]) for form in JAVA_FORMATS.values()])


@given(magic=MAGIC, body=st.binary(max_size=60))
def test_any_bytes_behind_a_magic_decode_or_are_refused(magic: bytes, body: bytes) -> None:
    """The result is a consistent map or OffsetMapError."""
    _decodes_or_refuses(BASE, _text(magic, body))


@given(magic=st.sampled_from([b"a", b"J", b"s", b"p"]), body=st.binary(max_size=60))
def test_any_bytes_in_a_frame_decode_or_are_refused(magic: bytes, body: bytes) -> None:
    """The same for the content of a whole zstd frame."""
    _decodes_or_refuses(BASE, _text(magic, _frame(body)))


@given(text=st.text(max_size=60) | st.text(alphabet="AQgbnloeJasp=+/", max_size=24))
def test_any_text_decodes_or_is_refused(text: str) -> None:
    """The same for any text."""
    _decodes_or_refuses(BASE, text)


VALID = [
    encode_offset_map(BASE, BASE + 300, sorted({BASE, *range(BASE + 5, BASE + 300, step)}), format=name, limit=None)
    for name in [*JAVA_FORMATS, "Dense"]
    for step in (3, 50)
]


@given(text=st.sampled_from(VALID), data=st.data())
def test_damaged_maps_decode_or_are_refused(text: str, data: st.DataObject) -> None:
    """A valid map with a byte changed, removed or inserted."""
    unpack: Callable[[str], bytes] = base64.b64decode if text.isascii() else lambda dense: dense.encode("utf-16-be")
    octets = bytearray(unpack(text))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(octets) - 1))
        octets[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        if not octets:
            break
    damaged = _text(bytes(octets)) if text.isascii() else octets.decode("utf-16-be", errors="replace")
    _decodes_or_refuses(BASE, damaged)


@given(text=st.sampled_from(VALID), keep=st.integers(0, 500))
def test_truncated_maps_decode_or_are_refused(text: str, keep: int) -> None:
    """A valid map truncated anywhere."""
    _decodes_or_refuses(BASE, text[:keep])
