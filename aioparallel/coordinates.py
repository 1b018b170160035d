"""Where a record came from that was made of another one: the headers that say it, and what is read from them.

A stage that writes at least once (Spark, or any consumer that is killed) may write a record twice. Both copies name the
same record that they were made of, so whoever reads them can tell.
"""

from __future__ import annotations

import sys
from typing import Any, Final, NamedTuple

from aioparallel.records import Headers, Record

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
"""Bytes of a topic's name in Kafka. Numbers and digests are shorter."""
_NAMES: Final = frozenset({SOURCE_TOPIC, SOURCE_PARTITION, SOURCE_OFFSET, SOURCE_INDEX, SOURCE_DIGEST})


class Coordinates(NamedTuple):
    """The record that another one was made of, and which of those made of it that is."""

    topic: str
    partition: int
    offset: int
    nth: int = 0
    """Where one record becomes several: the number of each, from 0."""
    digest: str = ""
    """Where one record becomes several: a digest of each. Empty: the header is missing."""


def coordinates_of(headers: Headers) -> Coordinates | None:
    """What the headers ``src-topic``, ``src-partition``, ``src-offset`` and, if they are there, ``src-index`` and
    ``src-digest`` say: UTF-8 text, numbers in decimal. None where they are missing or say nothing of that kind; of
    several with one name the last counts."""
    found = {name: value or b"" for name, value in headers if name in _NAMES}
    if max(map(len, found.values()), default=0) > _LONGEST:
        return None
    try:
        source = Coordinates(
            sys.intern(found[SOURCE_TOPIC].decode()),  # one text, for however many are kept
            int(found[SOURCE_PARTITION]),
            int(found[SOURCE_OFFSET]),
            int(found.get(SOURCE_INDEX, b"0")),
            found.get(SOURCE_DIGEST, b"").decode(),
        )
    except (KeyError, ValueError):
        return None
    return None if min(source[1:4]) < 0 else source


def why_no_coordinates(headers: Headers) -> str:
    """Says for people which headers keep :func:`coordinates_of` from an answer."""
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
    """The headers of a record that is made of this one: its own, and where it stands.

    Those of an earlier stage with the same names go: what stands behind a stage that passes on their copies passes on
    ``record.headers`` as they are. ``index``: where one record becomes several, which of them it is, from 0, the same
    each time. Without it the outputs of one call that would have the same name get a digest of their bytes
    (:mod:`~aioparallel.delivery.output_names`).
    """
    kept = tuple(header for header in record.headers if header[0] not in _NAMES)
    places = [(SOURCE_TOPIC, record.topic), (SOURCE_PARTITION, record.partition), (SOURCE_OFFSET, record.offset)]
    if index is not None:
        places.append((SOURCE_INDEX, index))
    return (*kept, *((name, str(place).encode()) for name, place in places))


def with_digest(headers: Headers, digest: str) -> Headers:
    """The same headers with this ``src-digest`` in place of theirs."""
    return (*(header for header in headers if header[0] != SOURCE_DIGEST), (SOURCE_DIGEST, digest.encode()))
