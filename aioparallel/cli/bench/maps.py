"""(g) Offset maps: time to write and read them, how much fits, and how long their commit holds the event loop.

``g-time``: maps of 100,000 offsets, without a limit on their size, in the format that is smallest. ``g-density``: how
many offsets fit into Kafka's 4,096 characters, ours against the Java format that reaches farthest. ``g-hold``: all of
500 partitions have a new map of 10,000 offsets to be committed; the longest turn that the event loop gives to one
callback meanwhile, in CPU time of its thread and in wall time, the median of the rounds. The same with maps as large
as Kafka takes, in figures named ``full_...``.
"""

from __future__ import annotations

import statistics
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from aioparallel.cli.bench.model import Case, CreateTopic
from aioparallel.cli.bench.worker import Worker
from aioparallel.errors import AioparallelError

__all__ = ["measure"]

PARTITIONS: Final = 500
ROUNDS: Final = 5
REPEATS: Final = 31
TIMEOUT: Final = 120.0


async def measure(
    bootstrap_servers: str, create_topic: CreateTopic, scale: int, seed: int, progress: Callable[[str], None]
) -> list[Case]:
    """The cases ``g-time``, ``g-density`` and ``g-hold``. With ``scale`` above 1 fewer repetitions and partitions."""
    times = Case("g", "g-time", "Time to write and read a map of 100,000 offsets")
    density = Case("g", "g-density", "Offsets in 4,096 characters, ours against the best Java format")
    partitions = max(10, PARTITIONS // scale)
    hold = Case("g", "g-hold", f"Longest hold of the event loop by a commit of {partitions} maps")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        progress("offset maps: time and size")
        await _times_and_density(times, density, {"seed": seed, "repeats": max(5, REPEATS // scale)}, folder)
        progress(f"offset maps: commits of {partitions} partitions")
        topic = f"bench-g-{uuid.uuid4().hex[:8]}"
        order = {
            "bootstrap_servers": bootstrap_servers,
            "topic": topic,
            "partitions": partitions,
            "seed": seed,
            "rounds": max(3, ROUNDS // scale),
        }
        try:
            await create_topic(topic, partitions)
        except (AioparallelError, TimeoutError) as error:
            hold.problems.append(str(error))
        else:
            await _holds(hold, order, folder)
    return [times, density, hold]


async def _times_and_density(times: Case, density: Case, order: dict[str, Any], folder: Path) -> None:
    try:
        async with Worker("map_times", order, folder) as worker:
            rows = (await worker.told(TIMEOUT))["times"]
            times.problems += wrong_rows(rows, "pattern")
            times.figures = {
                "encode_ms": max(row["encode_ms"] for row in rows),
                "decode_ms": max(row["decode_ms"] for row in rows),
                "patterns": rows,
            }
            rows = (await worker.told(TIMEOUT))["densities"]
    except AioparallelError as error:
        (density if times.figures else times).problems.append(str(error))
        return
    density.problems += wrong_rows(rows, "incomplete")
    density.figures = {"density_ratio": min(row["ratio"] for row in rows), "patterns": rows}


def wrong_rows(rows: list[dict[str, Any]], name: str) -> list[str]:
    """Takes the verdict of the check out of the rows, and says it in sentences where it is bad."""
    return [f"{row[name]}: the map read is not the map written" for row in rows if not row.pop("right")]


async def _holds(case: Case, order: dict[str, Any], folder: Path) -> None:
    case.figures["partitions"] = order["partitions"]
    try:
        async with Worker("holds", order, folder) as worker:
            for kind, prefix in (("patterns", ""), ("full", "full_")):
                holds = (await worker.told(TIMEOUT))[kind]
                case.problems += holds["problems"]
                case.figures |= {f"{prefix}{name}": value for name, value in hold_figures(holds).items()}
    except AioparallelError as error:
        case.problems.append(str(error))


def hold_figures(holds: dict[str, Any]) -> dict[str, Any]:
    """Medians of the rounds in ms, and each round's CPU time."""
    cpu = [round(hold[0] * 1e3, 3) for hold in holds["longest"]]
    return {
        "longest_hold_ms": statistics.median(cpu),
        "longest_hold_wall_ms": round(statistics.median(hold[1] * 1e3 for hold in holds["longest"]), 3),
        "longest_hold_rounds_ms": cpu,
        "commit_seconds": round(statistics.median(holds["seconds"]), 3),
        "map_characters": [holds["shortest_map"], holds["longest_map"]],
    }
