"""Chunks as records: what is written is read again, and anything else is refused."""

from __future__ import annotations

import json

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from aioparallel.persistence.dedup.chunks import ChunkKey, decode_chunk, decode_key, encode_chunk, encode_key
from aioparallel.persistence.dedup.identities import ONCE, Identity, Mark, Position, RecordIdentity
from aioparallel.records.record import TopicPartition

NUMBERS = st.integers(0, 2**63 - 1)
TEXTS = st.text(max_size=5)
RECORDS = st.builds(RecordIdentity, TEXTS, NUMBERS, NUMBERS, NUMBERS, TEXTS, TEXTS)
MARKS = st.builds(Mark, TEXTS, NUMBERS, st.binary(max_size=20))
POSITIONS = st.builds(Position, NUMBERS, NUMBERS, st.lists(TEXTS, max_size=3).map(tuple))
ENTRIES = st.one_of(st.dictionaries(RECORDS, st.just(ONCE)), st.dictionaries(MARKS, POSITIONS))


@given(ENTRIES)
def test_a_chunk_is_read_as_it_was_written(entries: dict[Identity, Position]) -> None:
    """Texts of any characters, keys of any bytes."""
    assert decode_chunk(encode_chunk(entries)) == entries


def test_a_chunk_of_before_digests_is_read() -> None:
    """And one without digests is written as it was then, byte for byte: an older member of the group reads it."""
    told = {
        "v": 1,
        "records": [["flights", 0, [[1024, 0, ""], [1027, 1, "3"]]]],
        "marks": [["flights", 0, [["N14228", 1024, 0]]]],
    }
    data = zstandard.ZstdCompressor().compress(json.dumps(told, separators=(",", ":")).encode())
    entries = decode_chunk(data)
    assert entries == {
        RecordIdentity("flights", 0, 1024, 0, ""): ONCE,
        RecordIdentity("flights", 0, 1027, 1, "3"): ONCE,
        Mark("flights", 0, b"N14228"): Position(1024),
    }
    assert encode_chunk(entries) == data


def test_a_member_that_knows_of_no_digests_passes_over_what_has_them() -> None:
    """It reads ``records`` and ``marks``, and must not take one of several for all of them."""
    entries: dict[Identity, Position] = {
        RecordIdentity("t", 0, 1, 0, "", "ab"): ONCE,
        RecordIdentity("t", 0, 2, 0, ""): ONCE,
        Mark("t", 0, b"k"): Position(7, 0, ("ab", "cd")),
        Mark("t", 0, b"l"): Position(8),
    }
    told = json.loads(zstandard.ZstdDecompressor().decompress(encode_chunk(entries)))
    assert (told["v"], told["records"], told["marks"]) == (1, [["t", 0, [[2, 0, ""]]]], [["t", 0, [["l", 8, 0]]]])


@given(st.text(), st.text(), NUMBERS, st.text(), NUMBERS)
def test_a_key_is_read_as_it_was_written(group_id: str, topic: str, partition: int, name: str, number: int) -> None:
    """Names of any characters."""
    key = ChunkKey(group_id, TopicPartition(topic, partition), name, number)
    assert decode_key(encode_key(key)) == key


@pytest.mark.parametrize(
    "data", [None, b"", b"{}", b"[]", b"\xff", b'["g", "t", "0", "n", 1]', b"k", b"5", b"[" * 200_000]
)
def test_a_strange_key_is_nobodys(data: bytes | None) -> None:
    """The topic may hold records of others."""
    assert decode_key(data) is None


def packed(told: object) -> bytes:
    """As a chunk is packed."""
    return zstandard.ZstdCompressor().compress(json.dumps(told).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no zstd",
        packed({}),
        packed([]),
        packed({"v": 2, "records": [], "marks": []}),
        packed({"v": 1, "records": [["t", 0, [["no number", 0, ""]]]], "marks": []}),
        packed({"v": 1, "records": [["t", 0]], "marks": []}),
        packed({"v": 1, "records": [], "marks": [["t", 0, [["Ж", 1, 0]]]]}),
        packed({"v": 1, "records": [[7, 0, []]], "marks": []}),
        zstandard.ZstdCompressor().compress(b"\xff\xfe"),
        zstandard.ZstdCompressor().compress(b" " * 70_000_000),
        zstandard.ZstdCompressor().compress(b"[" * 200_000),
        packed({"v": 1, "records": [["t", 0, [[float("inf"), 0, ""]]]], "marks": []}),
        packed({"v": 1, "records": [], "marks": [], "digested": {"records": [["t", 0, [[1, 0, "", "a", "b"]]]]}}),
        packed({"v": 1, "records": [], "marks": [], "digested": []}),
        encode_chunk({})[:-3],
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    """Damaged, of a later version, of somebody else, or a bomb."""
    with pytest.raises(ValueError, match=r"."):
        decode_chunk(data)
