"""Encodes offset maps as the text in a commit's metadata, and decodes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from aioparallel.offsets.dense.dense_map import decode_dense, dense_text, is_dense
from aioparallel.offsets.dense.pattern import Pattern
from aioparallel.offsets.java.java_formats import JAVA_FORMATS, java_payload, java_text, smallest_java_payload
from aioparallel.offsets.java.java_reader import decode_java_text, java_format_of
from aioparallel.offsets.offset_map import MAX_OFFSET, OffsetMap

__all__ = [
    "DENSE",
    "Formats",
    "check_limits",
    "decode_offset_map",
    "encode_offset_map",
    "encode_pattern",
    "format_of",
]

DENSE = "Dense"
Formats = Literal["all", "java"]


def encode_offset_map(
    base_offset: int,
    highest_succeeded: int,
    incompletes: Iterable[int],
    *,
    format: str | None = None,  # noqa: A002 - the usual word
    limit: int | None = 4096,
    formats: Formats = "all",
) -> str:
    """Encode which offsets in ``[base_offset, highest_succeeded]`` are complete: all but ``incompletes``.

    ``incompletes`` must ascend, without duplicates, within that range. ``highest_succeeded`` is ``base_offset - 1``
    for an empty map. ``limit``: most characters of the text, or None; Kafka's default is 4096. ``format``:
    ``BitSet``, ``RunLength``, ``BitSetV2``, ``RunLengthV2``, each optionally followed by ``Compressed``, or ``Dense``.
    None takes the smallest Java format if it is within the limit, else Dense. ``formats="java"`` excludes Dense.

    Raises ValueError if the arguments are invalid, if the format cannot represent the map, or if the text would be
    longer than ``limit``. :func:`~aioparallel.offsets.fit_offset_map` cuts the map instead.
    """
    check_limits(limit, formats)
    pattern = Pattern(base_offset, highest_succeeded, incompletes)
    if format is None:
        return encode_pattern(pattern, limit, formats)
    if format == DENSE:
        if formats == "java":
            raise ValueError("format='Dense' is none of the Java formats that formats='java' allows")
        return dense_text(pattern, limit=limit)
    if format not in JAVA_FORMATS:
        raise ValueError(f"format={format!r}: must be one of {', '.join([*JAVA_FORMATS, DENSE])}")
    return _within(limit, java_text(java_payload(pattern, JAVA_FORMATS[format])), format)


def check_limits(limit: int | None, formats: Formats) -> None:
    """Raise ValueError for an invalid ``limit`` or ``formats``."""
    if formats not in ("all", "java"):
        raise ValueError(f"formats={formats!r}: must be 'all' or 'java'")
    if limit is not None and limit < 0:
        raise ValueError(f"limit={limit}: a number of characters, or None")


def encode_pattern(pattern: Pattern, limit: int | None, formats: Formats) -> str:
    """The smallest Java text, or Dense if that is longer than ``limit``. Raises ValueError."""
    payload = smallest_java_payload(pattern)
    if payload is not None:
        text = java_text(payload)
        if limit is None or len(text) <= limit:
            return text
        if formats == "java":
            return _within(limit, text, "the smallest Java format")
    elif formats == "java":
        raise ValueError(
            f"no Java format holds the {pattern.size} offsets from {pattern.base} on "
            f"with {len(pattern.offsets)} incomplete ones"
        )
    return dense_text(pattern, payload, limit)


def _within(limit: int | None, text: str, name: str) -> str:
    if limit is not None and len(text) > limit:
        raise ValueError(
            f"{name}: the offset map takes {len(text)} characters, more than limit={limit}; fit_offset_map cuts it"
        )
    return text


def decode_offset_map(base_offset: int, metadata: str | None) -> OffsetMap:
    """Decode the metadata of a commit at ``base_offset``, in any format. None and "" give an empty map.

    Raises OffsetMapError with the reason if the text is not a complete, undamaged map; the caller should continue
    without a map. Takes time and memory in proportion to the text and to the incomplete offsets in it. Refuses more
    than MAX_INCOMPLETES of these, and a compressed body of more than MAX_BODY_BYTES. Raises ValueError for an invalid
    offset.
    """
    if not 0 <= base_offset <= MAX_OFFSET:
        raise ValueError(f"base_offset={base_offset}: an offset is within 0..2**63-1")
    if not metadata:
        return OffsetMap(base_offset, base_offset - 1)
    if is_dense(metadata):
        return decode_dense(base_offset, metadata)
    return decode_java_text(base_offset, metadata)


def format_of(metadata: str | None) -> str | None:
    """The name of the format in which the text would be read; None if it looks like none. The text may be damaged."""
    if not metadata:
        return None
    return DENSE if is_dense(metadata) else java_format_of(metadata)
