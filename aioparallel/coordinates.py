"""Where a record came from that was made of another one: the headers that say it, and what is read from them.

A stage that writes at least once (Spark, or any consumer that is killed) may write a record twice. Both copies name the
same record that they were made of, so whoever reads them can tell.
"""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

from aioparallel.records import Headers

__all__ = [
    "SOURCE_INDEX",
    "SOURCE_OFFSET",
    "SOURCE_PARTITION",
    "SOURCE_TOPIC",
    "Coordinates",
    "coordinates_of",
]

SOURCE_TOPIC: Final = "src-topic"
SOURCE_PARTITION: Final = "src-partition"
SOURCE_OFFSET: Final = "src-offset"
SOURCE_INDEX: Final = "src-index"

_NAMES: Final = frozenset({SOURCE_TOPIC, SOURCE_PARTITION, SOURCE_OFFSET, SOURCE_INDEX})


class Coordinates(NamedTuple):
    """The record that another one was made of, and which of those made of it that is."""

    topic: str
    partition: int
    offset: int
    nth: int = 0
    """Where one record becomes several: the number of each, from 0."""


def coordinates_of(headers: Headers) -> Coordinates | None:
    """What the headers ``src-topic``, ``src-partition``, ``src-offset`` and, if there is one, ``src-index`` say: UTF-8
    text, numbers in decimal. None where they are missing or say nothing of that kind; of several with one name the last
    counts."""
    found: dict[str, bytes] = {name: value for name, value in headers if name in _NAMES and value is not None}
    try:
        return Coordinates(
            sys.intern(found[SOURCE_TOPIC].decode()),  # one text, for however many are kept
            int(found[SOURCE_PARTITION]),
            int(found[SOURCE_OFFSET]),
            int(found.get(SOURCE_INDEX, b"0")),
        )
    except (KeyError, ValueError):
        return None
