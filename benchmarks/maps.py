"""(g) Offset maps: time to encode and decode, density, and how long their commit blocks the event loop."""

from __future__ import annotations

import statistics
import timeit
import uuid
from base64 import b64decode
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from aioparallel.event_loop.loop import quick_collections
from aioparallel.offsets import Ledger, OffsetMap, decode_offset_map, encode_offset_map, fit_offset_map
from aioparallel.offsets.encoding import DENSE, Formats
from aioparallel.offsets.java.java_formats import JAVA_FORMATS
from benchmarks.cases import Case
from benchmarks.commit_holds import Holds, commit_holds, full_ledgers, ledger_of
from benchmarks.contest import Arena
from benchmarks.measures import Result

__all__ = ["PATTERNS", "map_density", "map_times", "maps", "pattern_ledgers"]

Pattern = Callable[[Random, int], list[int]]
"""Returns the incomplete ones of so many offsets from 0, ascending."""

OFFSETS: Final = 100_000
HELD_OFFSETS: Final = 10_000
"""Offsets in each map whose commit is timed."""
REPEATS: Final = 31
ROUNDS: Final = 5
LIMIT: Final = 4_096
"""Characters of commit metadata that Kafka accepts."""
DENSITIES: Final = {0.01: 1_200_000, 0.1: 250_000, 0.5: 120_000}
"""Parts of incomplete offsets, and for each a number of offsets that exceeds the limit in every format."""
SEEDS: Final = 3
FORMATS: Final[tuple[Formats, ...]] = ("all", "java")


def strewn(share: float) -> Pattern:
    """Each offset is incomplete with this probability."""
    return lambda random, size: [at for at in range(size) if random.random() < share]


def every_other(_: Random, size: int) -> list[int]:
    """Even offsets are incomplete."""
    return list(range(0, size, 2))


def bursts(random: Random, size: int) -> list[int]:
    """Runs of 1 to 200 incomplete offsets between 1 to 2,000 complete ones."""
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


def map_times(name: str, seed: int, size: int = OFFSETS, repeats: int = REPEATS) -> dict[str, Any]:
    """Encode and decode a map of ``size`` offsets ``repeats`` times, without a limit.

    Returns ``encode_ms`` and ``decode_ms`` (medians of wall time), ``..._worst_ms``, ``characters``, ``format``,
    ``incompletes``, and ``right``: whether decoding returned the same map.
    """
    incompletes = PATTERNS[name](Random(seed), size)
    text = encode_offset_map(0, size - 1, incompletes, limit=None)
    steps: dict[str, Callable[[], object]] = {
        "encode": lambda: encode_offset_map(0, size - 1, incompletes, limit=None),
        "decode": lambda: decode_offset_map(0, text),
    }
    row: dict[str, Any] = {"pattern": name, "offsets": size, "incompletes": len(incompletes)}
    for what, step in steps.items():
        seconds = timeit.repeat(step, number=1, repeat=repeats)
        row[f"{what}_ms"] = round(statistics.median(seconds) * 1e3, 3)
        row[f"{what}_worst_ms"] = round(max(seconds) * 1e3, 3)
    right = decode_offset_map(0, text) == OffsetMap(0, size - 1, tuple(incompletes))
    return {**row, "characters": len(text), "format": format_of(text), "right": right}


def format_of(text: str) -> str:
    """The name of a map's format."""
    if not text.isascii():
        return DENSE
    magic = b64decode(text[:4])[0]
    return next(form.name for form in JAVA_FORMATS.values() if form.magic == magic)


def map_density(share: float, size: int, seed: int, limit: int = LIMIT) -> dict[str, Any]:
    """How many offsets fit into ``limit`` characters if this part of them is incomplete, at random.

    Returns ``ours`` and ``java`` (the Java format that reaches farthest) in offsets, medians of three patterns,
    ``ratio``, the lowest of them, and ``right``: whether decoding returned the same map.
    """
    ours, java, right = list[int](), list[int](), True
    for number in range(SEEDS):
        incompletes = strewn(share)(Random(f"{seed} {number}"), size)
        for formats in FORMATS:
            text, highest = fit_offset_map(0, size - 1, incompletes, limit=limit, formats=formats)
            below = tuple(at for at in incompletes if at <= highest)
            # A map that fits completely would not show the limit.
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


def pattern_ledgers(offsets: int, seed: int) -> list[Ledger]:
    """A ledger for each pattern."""
    return [ledger_of(make(Random(seed), offsets), offsets) for make in PATTERNS.values()]


async def maps(case: Case, arena: Arena) -> Result:
    """Measure a case. A scale reduces repetitions and partitions."""
    arena.say(f"{case.name}: {case.title}")
    result = Result(case.group, case.name, case.title)
    if case.name == "g-hold":
        await holds(result, case.shape.partitions, arena)
        return result
    if case.name == "g-time":
        rows = [map_times(name, arena.seed, repeats=max(5, REPEATS // arena.scale)) for name in PATTERNS]
        for what in ("encode_ms", "decode_ms"):
            result.figures[what] = max(row[what] for row in rows)
    else:
        rows = [map_density(share, size, arena.seed) for share, size in DENSITIES.items()]
        result.figures["density_ratio"] = min(row["ratio"] for row in rows)
    wrong = [next(iter(row.values())) for row in rows if not row.pop("right")]
    result.problems += [f"{name}: the map read is not the map written" for name in wrong]
    result.figures["patterns"] = rows
    return result


async def holds(result: Result, partitions: int, arena: Arena) -> None:
    """Commit maps for so many partitions on the running loop, which must not be uvloop."""
    partitions = result.figures["partitions"] = max(10, partitions // arena.scale)
    topic, count = f"bench-g-{uuid.uuid4().hex[:8]}", max(3, ROUNDS // arena.scale)
    await arena.create_topic(topic, partitions)
    quick_collections()  # like a consumer
    ledgers = {"": pattern_ledgers(HELD_OFFSETS, arena.seed), "full_": full_ledgers()}
    for prefix, some in ledgers.items():
        found = await commit_holds(arena.bootstrap_servers, topic, partitions, some, count)
        result.problems += found.problems
        result.figures |= {f"{prefix}{name}": value for name, value in hold_figures(found).items()}


def hold_figures(found: Holds) -> dict[str, Any]:
    """Medians of the rounds in ms, and the CPU time of each round."""
    cpu = [round(hold[0] * 1e3, 3) for hold in found.longest]
    return {
        "longest_hold_ms": statistics.median(cpu),
        "longest_hold_wall_ms": round(statistics.median(hold[1] * 1e3 for hold in found.longest), 3),
        "longest_hold_rounds_ms": cpu,
        "commit_seconds": round(statistics.median(found.seconds), 3),
        "map_characters": [found.shortest_map, found.longest_map],
    }
