"""How long offset maps take to write and to read, and how much fits: the process of ``maps.py``.

Its job: ``seed``, ``repeats``. It tells ``times`` (a row of each pattern, see :func:`map_times`) and ``densities`` (see
:func:`map_density`). Nothing here needs a broker.
"""

from __future__ import annotations

import statistics
import time
from base64 import b64decode
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from aioparallel.cli.bench.worker import end_with_parent, job, tell
from aioparallel.event_loop import quick_collections
from aioparallel.offsets import OffsetMap, decode_offset_map, encode_offset_map, fit_offset_map
from aioparallel.offsets.encoding import DENSE, Formats
from aioparallel.offsets.java.java_formats import JAVA_FORMATS

__all__ = ["PATTERNS", "main", "map_density", "map_times"]

Pattern = Callable[[Random, int], list[int]]
"""Makes the incomplete ones of so many offsets from 0 on, ascending."""

OFFSETS: Final = 100_000
LIMIT: Final = 4_096
"""Characters of commit metadata that Kafka takes."""
DENSITIES: Final = {0.01: 1_200_000, 0.1: 250_000, 0.5: 120_000}
"""Shares of incomplete offsets, and for each so many offsets that no format holds them all in the limit."""
SEEDS: Final = 3
FORMATS: Final[tuple[Formats, ...]] = ("all", "java")


def strewn(share: float) -> Pattern:
    """Each is incomplete with this probability."""
    return lambda random, size: [at for at in range(size) if random.random() < share]


def every_other(_: Random, size: int) -> list[int]:
    """The even ones."""
    return list(range(0, size, 2))


def bursts(random: Random, size: int) -> list[int]:
    """Runs of 1 to 200 incomplete ones with 1 to 2,000 complete ones between them."""
    found, at = list[int](), 0
    while at < size:
        end = min(size, at + random.randint(1, 200))
        found += range(at, end)
        at = end + random.randint(1, 2_000)
    return found


PATTERNS: Final[Mapping[str, Pattern]] = {
    "0.1 %": strewn(0.001),
    "1 %": strewn(0.01),
    "10 %": strewn(0.1),
    "50 %": strewn(0.5),
    "every other": every_other,
    "bursts": bursts,
}


def map_times(name: str, seed: int, size: int = OFFSETS, repeats: int = 31) -> dict[str, Any]:
    """Write and read a map of ``size`` offsets ``repeats`` times, without a limit.

    Gives ``encode_ms`` and ``decode_ms`` (medians of wall time), ``..._worst_ms``, ``characters``, ``format``,
    ``incompletes``, and ``right``: whether what was read is what was written.
    """
    incompletes = PATTERNS[name](Random(seed), size)
    writing, reading, text, found = [], [], "", OffsetMap(0, -1)
    for _ in range(repeats):
        began = time.perf_counter()
        text = encode_offset_map(0, size - 1, incompletes, limit=None)
        written = time.perf_counter()
        found = decode_offset_map(0, text)
        writing.append((written - began) * 1e3)
        reading.append((time.perf_counter() - written) * 1e3)
    return {
        "pattern": name,
        "offsets": size,
        "incompletes": len(incompletes),
        "encode_ms": round(statistics.median(writing), 3),
        "encode_worst_ms": round(max(writing), 3),
        "decode_ms": round(statistics.median(reading), 3),
        "decode_worst_ms": round(max(reading), 3),
        "characters": len(text),
        "format": format_of(text),
        "right": found == OffsetMap(0, size - 1, tuple(incompletes)),
    }


def format_of(text: str) -> str:
    """The name of the format that a map is written in."""
    if not text.isascii():
        return DENSE
    magic = b64decode(text[:4])[0]
    return next(form.name for form in JAVA_FORMATS.values() if form.magic == magic)


def map_density(share: float, size: int, seed: int, limit: int = LIMIT) -> dict[str, Any]:
    """How many offsets fit into ``limit`` characters, strewn with this share of incomplete ones.

    Gives ``ours`` and ``java`` (the Java format that reaches farthest) in offsets, medians of three patterns,
    ``ratio``, the lowest of them, and ``right``: whether what was read is what was written.
    """
    ours, java, right = list[int](), list[int](), True
    for number in range(SEEDS):
        incompletes = strewn(share)(Random(f"{seed} {number}"), size)
        for formats in FORMATS:
            text, highest = fit_offset_map(0, size - 1, incompletes, limit=limit, formats=formats)
            below = tuple(at for at in incompletes if at <= highest)
            # What fits whole says nothing of what would fit.
            right = right and highest < size - 1 and len(text) <= limit
            right = right and decode_offset_map(0, text) == OffsetMap(0, highest, below)
            (ours if formats == "all" else java).append(highest + 1)
    return {
        "incomplete": f"{share:.0%}",
        "ours": statistics.median(ours),
        "java": statistics.median(java),
        "ratio": round(min(mine / theirs for mine, theirs in zip(ours, java, strict=True)), 3),
        "right": right,
    }


def main() -> None:
    """The process."""
    end_with_parent()
    order = job()
    quick_collections()
    tell(times=[map_times(name, order["seed"], repeats=order["repeats"]) for name in PATTERNS])
    tell(densities=[map_density(share, size, order["seed"]) for share, size in DENSITIES.items()])


if __name__ == "__main__":
    main()
