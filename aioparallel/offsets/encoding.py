"""Offset maps as text in a commit's metadata, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from aioparallel.offsets.dense.dense_map import decode_dense, dense_text, is_dense
from aioparallel.offsets.dense.pattern import Pattern
from aioparallel.offsets.java.java_formats import JAVA_FORMATS, java_payload, java_text, smallest_java_payload
from aioparallel.offsets.java.java_reader import decode_java_text
from aioparallel.offsets.offset_map import MAX_OFFSET, OffsetMap

__all__ = ["DENSE", "Formats", "decode_offset_map", "encode_offset_map", "encode_pattern"]

DENSE = "Dense"
Formats = Literal["all", "java"]


def encode_offset_map(
    base_offset: int,
    highest_succeeded: int,
    incompletes: Iterable[int],
    *,
    format: str | None = None,  # noqa: A002 - the word everybody looks for
    limit: int | None = 4096,
    formats: Formats = "all",
) -> str:
    """Write which offsets in ``[base_offset, highest_succeeded]`` are complete: all but ``incompletes``.

    ``incompletes`` ascend, each once, within that range. ``highest_succeeded`` is ``base_offset - 1`` when
    there is nothing to say. ``limit``: the most characters the text may have (Kafka's own default is 4096), or
    None. ``format``: ``BitSet``, ``RunLength``, ``BitSetV2``, ``RunLengthV2``, each also with ``Compressed``
    behind it, or ``Dense``; None takes the smallest Java format if it keeps to the limit, else Dense, which
    ``formats="java"`` rules out.

    Raises ValueError when the arguments make no map, when the format cannot hold it, or when the text would be
    longer than ``limit``; :func:`~aioparallel.offsets.fit_offset_map` says less instead.
    """
    if formats not in ("all", "java"):
        raise ValueError(f"formats={formats!r}: must be 'all' or 'java'")
    if limit is not None and limit < 0:
        raise ValueError(f"limit={limit}: a number of characters, or None")
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


def encode_pattern(pattern: Pattern, limit: int | None, formats: Formats) -> str:
    """The smallest Java text, or Dense where that is longer than ``limit``. Raises ValueError."""
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
    """Read the text committed beside ``base_offset``, in any of the formats; None and "" say nothing.

    Raises OffsetMapError with the reason for everything that is no whole, undamaged map: then go on without
    one. Takes time and memory in proportion to the text and to the incomplete offsets in it, of which more than
    MAX_INCOMPLETES are refused, as is a compressed body of more than MAX_BODY_BYTES. Raises ValueError for an
    offset that is none.
    """
    if not 0 <= base_offset <= MAX_OFFSET:
        raise ValueError(f"base_offset={base_offset}: an offset is within 0..2**63-1")
    if not metadata:
        return OffsetMap(base_offset, base_offset - 1)
    if is_dense(metadata):
        return decode_dense(base_offset, metadata)
    return decode_java_text(base_offset, metadata)
