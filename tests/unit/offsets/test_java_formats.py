"""The Java library's formats, against texts that the Java library wrote."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TypedDict

import pytest
import zstandard

from aioparallel.offsets import OffsetMap, decode_offset_map, encode_offset_map
from aioparallel.offsets.java.java_formats import JAVA_FORMATS


class Encoding(TypedDict):
    metadata: str
    java_highest_seen: int


class Vector(TypedDict):
    name: str
    base: int
    highest_succeeded: int
    compression_forced: bool
    incompletes: list[int]
    encodings: dict[str, Encoding]


VECTORS: list[Vector] = json.loads((Path(__file__).parent / "data" / "java_offset_maps.json").read_text())
CASES = [
    pytest.param(vector, name, id=f"{vector['name']}-{name}-{'forced' if vector['compression_forced'] else 'chosen'}")
    for vector in VECTORS
    for name in vector["encodings"]
]

# Written by hand from the reference: format, base, highest, incompletes, body without magic.
BY_HAND = [
    ("RunLengthV2", 5, 50_000, [5], "000000010000c34b"),
    ("RunLengthV2", 123, 100_000, [123, 2345, 8765], "00000001000008ad00000001000019130000000100016463"),
    ("RunLength", 10, 12, [11], "000000010001" + "0001"),
    ("BitSet", 10, 12, [11], "00030500"),
    ("BitSet", 0, 4, [0, 2, 3], "00051200"),
    ("RunLength", 0, 32_767, [0], "00017fff"),
    ("RunLength", 9, 32_775, [], "00007fff"),
    ("BitSetV2", 0, -1, [], "0000000000"),
]


@pytest.mark.parametrize(("vector", "name"), CASES)
def test_reads_what_java_wrote(vector: Vector, name: str) -> None:
    """Every text decodes to exactly Java's incompletes and highest seen offset."""
    encoding = vector["encodings"][name]
    found = decode_offset_map(vector["base"], encoding["metadata"])
    assert found == OffsetMap(vector["base"], encoding["java_highest_seen"], tuple(vector["incompletes"]))


@pytest.mark.parametrize(("vector", "name"), CASES)
def test_writes_what_java_writes(vector: Vector, name: str) -> None:
    """Without zstd the text is identical; with zstd the frame has the same body."""
    theirs = vector["encodings"][name]["metadata"]
    ours = encode_offset_map(
        vector["base"],
        vector["highest_succeeded"],
        vector["incompletes"],
        format=name,
        limit=None,
    )
    if "Compressed" not in name:
        assert ours == theirs
        return
    bodies = []
    for text in (ours, theirs):
        payload = base64.b64decode(text)
        bodies.append((payload[0], zstandard.ZstdDecompressor().decompressobj().decompress(payload[1:])))
    assert bodies[0] == bodies[1]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_chooses_nothing_longer_than_java(vector: Vector) -> None:
    """The chosen text is as short as the shortest of Java's own."""
    text = encode_offset_map(vector["base"], vector["highest_succeeded"], vector["incompletes"], limit=None)
    theirs = min(len(encoding["metadata"]) for encoding in vector["encodings"].values())
    assert len(text) <= theirs


@pytest.mark.parametrize(("name", "base", "highest", "incompletes", "body"), BY_HAND)
def test_bodies_written_by_hand(name: str, base: int, highest: int, incompletes: list[int], body: str) -> None:
    """Bodies computed on paper are written exactly so, and read back."""
    text = encode_offset_map(base, highest, incompletes, format=name, limit=None)
    assert base64.b64decode(text) == bytes([JAVA_FORMATS[name].magic]) + bytes.fromhex(body)
    assert decode_offset_map(base, text) == OffsetMap(base, highest, tuple(incompletes))


@pytest.mark.parametrize("name", ["BitSet", "BitSetCompressed"])
def test_bitset_v1_counts_to_32767(name: str) -> None:
    """A BitSet with a 16-bit count contains at most 32,767 offsets."""
    text = encode_offset_map(0, 32_766, [0], format=name, limit=None)
    assert decode_offset_map(0, text) == OffsetMap(0, 32_766, (0,))
    with pytest.raises(ValueError, match=f"{name}: 32768 offsets are more than 32767"):
        encode_offset_map(0, 32_767, [0], format=name, limit=None)


@pytest.mark.parametrize("name", ["RunLength", "RunLengthCompressed"])
@pytest.mark.parametrize("complete", [True, False])
def test_run_length_v1_holds_runs_to_32767(name: str, complete: bool) -> None:
    """A run of 32,768 offsets, complete or not, is too long for a 16-bit entry, and is never split."""
    for length in (32_767, 32_768):
        incompletes = [7] if complete else list(range(7, 7 + length))
        highest = 7 + length
        if length == 32_767:
            text = encode_offset_map(7, highest, incompletes, format=name, limit=None)
            assert decode_offset_map(7, text) == OffsetMap(7, highest, tuple(incompletes))
        else:
            with pytest.raises(ValueError, match=f"{name}: a run of 32768 offsets is longer than 32767"):
                encode_offset_map(7, highest, incompletes, format=name, limit=None)


def test_run_length_v1_holds_any_number_of_runs() -> None:
    """Only the length of a run is limited, not their number."""
    incompletes = list(range(3, 3 + 2 * 32_768, 2))
    text = encode_offset_map(3, incompletes[-1] + 1, incompletes, format="RunLength", limit=None)
    assert decode_offset_map(3, text).incompletes == tuple(incompletes)


def test_run_length_v2_holds_runs_below_2_31() -> None:
    """No Java format can represent a run of 2**31 offsets; Dense can, and is chosen."""
    base = 2**40
    longest = encode_offset_map(base, base + 2**31 - 1, [base], format="RunLengthV2")
    assert decode_offset_map(base, longest) == OffsetMap(base, base + 2**31 - 1, (base,))
    with pytest.raises(ValueError, match="RunLengthV2: a run of 2147483648 offsets"):
        encode_offset_map(base, base + 2**31, [base], format="RunLengthV2")
    with pytest.raises(ValueError, match="no Java format holds"):
        encode_offset_map(base, base + 2**31, [base], formats="java")
    chosen = encode_offset_map(base, base + 2**31, [base])
    assert decode_offset_map(base, chosen) == OffsetMap(base, base + 2**31, (base,))


def test_a_billion_complete_offsets_cost_nothing() -> None:
    """One stuck offset below a billion complete ones takes twelve characters, and only it is listed when reading."""
    text = encode_offset_map(5, 5 + 10**9, [5])
    assert text == base64.b64encode(b"e" + (1).to_bytes(4, "big") + (10**9).to_bytes(4, "big")).decode()
    assert decode_offset_map(5, text) == OffsetMap(5, 5 + 10**9, (5,))


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        pytest.param("6c0010aaaa", (1000, 1002, 1004, 1006, 1008, 1010, 1012, 1014), id="no-spare-byte"),
        pytest.param("6c0010aaaa000000", (1000, 1002, 1004, 1006, 1008, 1010, 1012, 1014), id="more-zeros"),
        pytest.param("6c0009ff", (1008,), id="last-byte-absent-because-it-is-zero"),
        pytest.param("6f00000000", (), id="empty-without-spare-byte"),
    ],
)
def test_tolerates_what_javas_reader_does(payload: str, expected: tuple[int, ...]) -> None:
    """A bitset may lack its spare byte, have more of them, or lack a last byte of zeros."""
    text = base64.b64encode(bytes.fromhex(payload)).decode()
    assert decode_offset_map(1000, text).incompletes == expected


def test_frames_with_content_size_are_read() -> None:
    """A frame that was made at once, with its size in the header, is read as well."""
    body = (1).to_bytes(4, "big") + (99).to_bytes(4, "big")
    text = base64.b64encode(b"p" + zstandard.ZstdCompressor().compress(body)).decode()
    assert decode_offset_map(1, text) == OffsetMap(1, 100, (1,))


def test_frames_are_streamed_as_javas() -> None:
    """Frames have no content size, like those of Java's streaming writer."""
    text = encode_offset_map(5, 50_000, [5], format="RunLengthV2Compressed")
    assert base64.b64decode(text)[1:7].hex() == "28b52ffd0058"
