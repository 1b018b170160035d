"""Offsets as they are typed. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition

__all__ = ["parse_places"]

_PLACE: Final = re.compile(r"([^:\s]+):(\d{1,10}):(\d{1,19})(?:-(\d{1,19}))?")
_AS_SHOWN: Final = re.compile(r"\A([^:\s]+)-(\d{1,10})(?:@| offset )(\d{1,19})\Z")
"""A record as ``aioparallel consume`` and the log write it."""
_MOST: Final = 1_000_000
"""Offsets in one command."""


def parse_places(texts: Iterable[str]) -> dict[TopicPartition, list[int]]:
    """Parses ``topic:partition:offset``, or ``topic:partition:first-last`` with the last one included;
    ``topic-partition@offset`` and ``topic-partition offset N`` are the same. The offsets of each partition ascend, each
    once. Raises ConfigurationError."""
    found: defaultdict[TopicPartition, set[int]] = defaultdict(set)
    count = 0
    for text in texts:
        place = _PLACE.fullmatch(_AS_SHOWN.sub(r"\1:\2:\3", text))
        if place is None or (place[4] is not None and int(place[4]) < int(place[3])):
            raise ConfigurationError(
                "PLACES", text, "must be topic:partition:offset or topic:partition:first-last, as in orders:3:1234"
            )
        first, last = int(place[3]), int(place[4] or place[3])
        count += last - first + 1
        if count > _MOST:
            raise ConfigurationError("PLACES", text, f"must be at most {_MOST:,} offsets together; use rewind for more")
        found[TopicPartition(place[1], int(place[2]))].update(range(first, last + 1))
    if not found:
        raise ConfigurationError("PLACES", None, "must be given, as in orders:3:1234")
    return {partition: sorted(offsets) for partition, offsets in found.items()}
