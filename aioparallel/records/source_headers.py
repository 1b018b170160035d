"""Headers of a derived record that name the record it was made from.

A stage that writes at least once (Spark, a consumer that was killed) may write a derived record twice. Both copies name
the same source record, so the next stage can recognise them.
"""

from __future__ import annotations

import sys
from typing import Any, Final, NamedTuple

from aioparallel.records.record import Headers, Record

__all__ = [
    "SOURCE_DIGEST",
    "SOURCE_INDEX",
    "SOURCE_OFFSET",
    "SOURCE_PARTITION",
    "SOURCE_TOPIC",
    "Coordinates",
    "coordinates_of",
    "source_headers",
    "why_no_coordinates",
    "with_digest",
]

SOURCE_TOPIC: Final = "src-topic"
SOURCE_PARTITION: Final = "src-partition"
SOURCE_OFFSET: Final = "src-offset"
SOURCE_INDEX: Final = "src-index"
SOURCE_DIGEST: Final = "src-digest"

_LONGEST: Final = 249
"""Most bytes of a topic's name in Kafka. Numbers and digests are shorter."""
_NAMES: Final = frozenset({SOURCE_TOPIC, SOURCE_PARTITION, SOURCE_OFFSET, SOURCE_INDEX, SOURCE_DIGEST})


class Coordinates(NamedTuple):
    """The source record of a derived one, and which of its derived records this is."""

    topic: str
    partition: int
    offset: int
    nth: int = 0
    """The index among several outputs of one source, from 0."""
    digest: str = ""
    """A digest of the output among several of one source. Empty: no header."""


def coordinates_of(headers: Headers) -> Coordinates | None:
    """Reads ``src-topic``, ``src-partition``, ``src-offset`` and, if present, ``src-index`` and ``src-digest``: UTF-8
    text, decimal numbers. None if they are missing or malformed. Of repeated headers the last one counts."""
    found = {name: value or b"" for name, value in headers if name in _NAMES}
    if max(map(len, found.values()), default=0) > _LONGEST:
        return None
    try:
        source = Coordinates(
            sys.intern(found[SOURCE_TOPIC].decode()),  # many coordinates share one string
            int(found[SOURCE_PARTITION]),
            int(found[SOURCE_OFFSET]),
            int(found.get(SOURCE_INDEX, b"0")),
            found.get(SOURCE_DIGEST, b"").decode(),
        )
    except (KeyError, ValueError):
        return None
    return None if min(source[1:4]) < 0 else source


def why_no_coordinates(headers: Headers) -> str:
    """Describes which headers :func:`coordinates_of` cannot read."""
    found = {name: value or b"" for name, value in headers if name in _NAMES}
    places = (SOURCE_TOPIC, SOURCE_PARTITION, SOURCE_OFFSET)
    if missing := [name for name in places if name not in found]:
        return f"no header {', '.join(missing)}"
    for name, value in found.items():
        is_text = name in {SOURCE_TOPIC, SOURCE_DIGEST}
        if len(value) > _LONGEST:
            return f"header {name} has {len(value)} bytes, more than {_LONGEST}"
        if not (_is_text(value) if is_text else _is_count(value)):
            return f"header {name} is {value!r:.60}, not {'UTF-8 text' if is_text else 'a whole number from 0'}"
    return "its headers are right"


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except ValueError:
        return False
    return True


def _is_count(value: bytes) -> bool:
    try:
        return int(value) >= 0
    except ValueError:
        return False


def source_headers(record: Record[Any, Any], index: int | None = None) -> Headers:
    """Headers for a record derived from this one: the record's own, with its place as the source.

    They replace the source headers of an earlier stage. A stage that should pass those on returns ``record.headers``
    unchanged. ``index``: which of several outputs this is, from 0, the same at each attempt. Without it, outputs of
    one call with equal coordinates get a digest of their bytes (:mod:`~aioparallel.delivery.output_names`).
    """
    kept = tuple(header for header in record.headers if header[0] not in _NAMES)
    places = [(SOURCE_TOPIC, record.topic), (SOURCE_PARTITION, record.partition), (SOURCE_OFFSET, record.offset)]
    if index is not None:
        places.append((SOURCE_INDEX, index))
    return (*kept, *((name, str(place).encode()) for name, place in places))


def with_digest(headers: Headers, digest: str) -> Headers:
    """The headers with this ``src-digest`` instead of theirs."""
    return (*(header for header in headers if header[0] != SOURCE_DIGEST), (SOURCE_DIGEST, digest.encode()))
