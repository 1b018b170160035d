"""``python -m benchmarks compare REV [REV]``: is one commit slower than another, and by how much?"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.errors import AioparallelError
from aioparallel.testing import LocalKafka
from benchmarks.cases import Case
from benchmarks.compare.cases import COMPARED
from benchmarks.compare.instructions import count
from benchmarks.compare.pairs import CONFIDENCE, Comparison, Measured, compare, play_pair, prepare
from benchmarks.compare.revisions import WORKING_TREE, Revision, extract
from benchmarks.contest import Arena, Field
from benchmarks.intervals import Interval
from benchmarks.topics import Topics

__all__ = ["main"]

HEAP: Final = "1g"
TIMEOUT: Final = 60.0
COUNTED_ALIKE: Final = 0.005
"""Instructions of the same code differ by less: up to 0.2 % was seen."""
INTERRUPTED: Final = 130  # 128 + SIGINT, as shells count
TITLES: Final[dict[Measured, str]] = {"seconds": "time", "cpu_per_record": "CPU"}


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks compare",
        description="Two revisions side by side. Each row is the second one over the first: 1.02 takes 2 % more.",
        epilog="Examples: compare HEAD~1 HEAD; compare main (against the files as they are now); compare HEAD HEAD "
        "--times 20 (nothing against nothing: do the intervals hold 1?).",
    )
    parser.add_argument("before", metavar="REV", help="a commit, branch or tag")
    parser.add_argument("after", metavar="REV", nargs="?", default=WORKING_TREE, help="default: the working tree")
    parser.add_argument("--cases", nargs="+", default=list(COMPARED), choices=list(COMPARED), metavar="CASE",
                        help=f"some of: {', '.join(COMPARED)}")  # fmt: skip
    parser.add_argument("--width", type=float, default=2.0, metavar="PERCENT",
                        help="pairs until the interval is narrower (default 2 %%)")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=180.0, help="for a case, at most (default 180)")
    parser.add_argument("--times", type=int, default=1, help="compare so often (default 1)")
    parser.add_argument("--no-instructions", dest="instructions", action="store_false", help="count none")
    parser.add_argument("--seed", type=int, default=2013, help="for records, turns and hash seeds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every ratio, too")
    found = parser.parse_args(arguments)
    if found.width <= 0 or found.seconds < 0 or found.times < 1 or found.seed < 0:
        parser.error("--width above 0, --seconds and --seed from 0, --times from 1")
    return found


@dataclass(slots=True)
class Row:
    """All that is known of one case.

    ``instructions``: a record, before and after; or why they were not counted. ``failure``: why there is no more.
    """

    case: Case
    instructions: list[float] | str = "not asked for"
    comparisons: list[Comparison] = field(default_factory=list)
    failure: str = ""


async def run(asked: argparse.Namespace, say: Callable[[str], None], progress: Callable[[str], None]) -> list[Row]:
    """All cases, a row printed after each. ``progress``: told what runs now."""
    rows = [Row(COMPARED[name]) for name in asked.cases]
    with tempfile.TemporaryDirectory(prefix="aioparallel-compare-") as folder:
        sides = [extract(name, Path(folder, side)) for side, name in (("before", asked.before), ("after", asked.after))]
        say(f"{sides[1].title} over {sides[0].title}; intervals of {CONFIDENCE:.0%}")
        for row in rows if asked.instructions else ():
            progress(f"{row.case.name}: counting instructions")
            await _reported(row, _count(row, sides), say)
        cpu = keep_a_core()  # not before: what is counted may use all of them
        async with (
            LocalKafka(heap=HEAP, compile_once=True, report=say) as kafka,
            Admin(kafka.bootstrap_servers, timeout=TIMEOUT) as admin,
        ):
            topics = Topics(admin)
            arena = Arena(
                kafka.bootstrap_servers, topics.create, {}, 0, asked.seed, 1, progress, asked.width / 100,
                asked.seconds, cpu,
            )  # fmt: skip
            for row in rows:
                if not row.failure:
                    await _reported(row, _compare(row, arena, sides, asked, say), say)
                    await topics.clear()
    return rows


async def _reported(row: Row, work: Awaitable[None], say: Callable[[str], None]) -> None:
    """A case that one of the revisions cannot do takes no other one with it."""
    try:
        await work
    except AioparallelError as error:
        row.failure = str(error)
        say(f"{row.case.name:<16} not compared: {error}")


async def _count(row: Row, sides: Sequence[Revision]) -> None:
    row.instructions = await asyncio.to_thread(count, row.case, sides)


def keep_a_core() -> int | None:
    """The core that is kept for the processes that are measured: this process, and the broker that it starts, leave it
    alone. None where there is only one, or the system cannot."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    *others, kept = sorted(os.sched_getaffinity(0))
    if not others:
        return None
    os.sched_setaffinity(0, others)
    return kept


async def _compare(
    row: Row, arena: Arena, sides: Sequence[Revision], asked: argparse.Namespace, say: Callable[[str], None]
) -> None:
    async with Field.of(row.case, arena) as place:
        await prepare(place)
        # Until the broker's own code is compiled it takes a part of the cores.
        await play_pair(place, sides, random.Random(asked.seed))
        for number in range(asked.times):
            found = await compare(place, sides, seed=asked.seed + number)
            row.comparisons.append(found)
            say(_sentence(row, found, asked.width))
    if asked.times > 1:
        say(f"  {row.case.name}: {_held(row)}")


def _sentence(row: Row, found: Comparison, width: float) -> str:
    parts = [f"{TITLES[measured]} {_shown(found.interval(measured))}" for measured in found.ratios]
    parts.append(_instructions(row.instructions))
    pairs = f"{len(found.ratios['seconds'])} pairs in {found.seconds:.0f} s"
    pairs += f", {found.repeated} repeated" * bool(found.repeated)
    before = found.medians["cpu_per_record"][0] * 1e6
    said = verdict(found, row.instructions, width)
    return f"{row.case.name:<16} {said:<28} {'; '.join(parts)}; {before:.2f} µs before; {pairs}"


def verdict(found: Comparison, instructions: list[float] | str, width: float) -> str:
    """In words: slower or faster where an interval leaves 1 out, or where instructions differ by more than those of the
    same code do; else whether an interval was narrow enough to say so."""
    for measured in found.ratios:
        seen = found.interval(measured)
        if not seen.holds(1.0):
            return _difference(TITLES[measured], seen.median)
    if not isinstance(instructions, str) and abs(more := instructions[1] / instructions[0] - 1) > COUNTED_ALIKE:
        return _difference("instructions", 1 + more)
    return "no difference" if found.width <= width / 100 else f"not resolved ({found.width:.1%})"


def _difference(what: str, ratio: float) -> str:
    return f"{'MORE' if ratio > 1 else 'less'} {what}, by {abs(ratio - 1):.1%}"


def _shown(seen: Interval) -> str:
    return f"{seen.median:.3f} ({seen.low:.3f}-{seen.high:.3f})"


def _instructions(counted: list[float] | str) -> str:
    if isinstance(counted, str):
        return f"instructions {counted}"
    before, after = counted
    return f"instructions {after / before:.4f} ({before:,.0f} before)"


def _held(row: Row) -> str:
    parts = []
    for measured in TITLES:
        held = sum(one.interval(measured).holds(1.0) for one in row.comparisons)
        parts.append(f"{TITLES[measured]} holds 1 in {held} of {len(row.comparisons)}")
    return ", ".join(parts)


def main(arguments: Sequence[str], console: Console) -> int:
    """The exit code: 1 when something could not be compared."""
    asked = options(arguments)

    def say(sentence: str) -> None:
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    try:
        with console.status("Starting Apache Kafka") as status:
            rows = asyncio.run(run(asked, say, status.update))
    except AioparallelError as error:
        say(f"ERROR {error}")
        return 1
    except KeyboardInterrupt:
        say("Stopped; every process that the comparison started has ended.")
        return INTERRUPTED
    if asked.json:
        asked.json.write_text(json.dumps([_plain(row) for row in rows], indent=1) + "\n")
    return 1 if any(row.failure for row in rows) else 0


def _plain(row: Row) -> dict[str, Any]:
    return {
        "case": row.case.name,
        "instructions": row.instructions,
        "failure": row.failure,
        "comparisons": [
            {"ratios": one.ratios, "medians": one.medians, "repeated": one.repeated, "seconds": one.seconds}
            for one in row.comparisons
        ],
    }
