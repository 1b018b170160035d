"""``python -m benchmarks compare REV [REV]``: whether one commit is slower than another, and by how much."""

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
from aioparallel.records.errors import AioparallelError
from aioparallel.testing import LocalKafka
from benchmarks.cases import Case
from benchmarks.compare.cases import COMPARED, DEFAULT
from benchmarks.compare.instructions import count
from benchmarks.compare.pairs import CONFIDENCE, Comparison, Measured, compare, play_pair, prepare
from benchmarks.compare.revisions import WORKING_TREE, Revision, extract
from benchmarks.contest import Arena, Field
from benchmarks.intervals import Interval
from benchmarks.shell import HEAP, INTERRUPTED, TIMEOUT, end_on_sigterm
from benchmarks.topics import Topics

__all__ = ["Row", "compare_row", "main", "options", "verdict"]

READING: Final = (
    f"In brackets intervals of {CONFIDENCE:.0%}. Identical code shows a difference in about one of fifty rows."
)
COUNTED_ALIKE: Final = 0.005
"""Largest relative difference of instructions that counts as equal: up to 0.2 % was seen for the same code."""
TITLES: Final[dict[Measured, str]] = {"cpu_per_record": "CPU", "seconds": "time"}


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks compare",
        description="Two revisions side by side. Each row is the second one over the first: 1.02 takes 2 % more.",
        epilog="Examples: compare HEAD~1 HEAD; compare main (against the files as they are now); compare HEAD HEAD "
        "--times 20 --scale 10 --seconds 0 (nothing against nothing: do the intervals hold 1?).",
    )
    parser.add_argument("before", metavar="REV", help="a commit, branch or tag")
    parser.add_argument("after", metavar="REV", nargs="?", default=WORKING_TREE, help="default: the working tree")
    parser.add_argument("--cases", default=",".join(DEFAULT), metavar="CASE,CASE",
                        help=f"some of: {', '.join(COMPARED)}; metrics and traces only in the second")  # fmt: skip
    parser.add_argument("--width", type=float, default=2.0, metavar="PERCENT",
                        help="pairs until the interval is narrower (default 2 %%)")  # fmt: skip
    parser.add_argument(
        "--seconds",
        type=float,
        default=180.0,
        help="for a case (default 180), and at least the 8 pairs that an interval needs",
    )
    parser.add_argument("--times", type=int, default=1, help="compare so often (default 1)")
    parser.add_argument("--scale", type=int, default=1, metavar="N",
                        help="record counts divided by N (default 1): pairs come sooner, each varies more")  # fmt: skip
    parser.add_argument("--no-instructions", dest="instructions", action="store_false", help="count none")
    parser.add_argument("--seed", type=int, default=2013, help="for records, turns and hash seeds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every ratio, too")
    found = parser.parse_args(arguments)
    found.cases = found.cases.split(",")
    if wrong := [name for name in found.cases if name not in COMPARED]:
        parser.error(f"--cases {', '.join(wrong)}: there are {', '.join(COMPARED)}")
    for name, wrong in (("width", found.width <= 0), ("seconds", found.seconds < 0), ("seed", found.seed < 0)):
        if wrong:
            parser.error(f"--{name} {getattr(found, name)}: {'above' if name == 'width' else 'from'} 0")
    for name in ("times", "scale"):
        if getattr(found, name) < 1:
            parser.error(f"--{name} {getattr(found, name)}: from 1")
    if found.json and not found.json.resolve().parent.is_dir():
        parser.error(f"--json {found.json}: there is no folder {found.json.resolve().parent}")
    return found


@dataclass(slots=True)
class Row:
    """The results of a case.

    ``instructions``: per record, before and after; or why they were not counted. ``failure``: why there is no more.
    """

    case: Case
    instructions: list[float] | str = "not asked for"
    comparisons: list[Comparison] = field(default_factory=list)
    failure: str = ""


async def run(asked: argparse.Namespace, say: Callable[[str], None], progress: Callable[[str], None]) -> list[Row]:
    """Compare all cases and print a row after each. ``progress``: called with what runs now."""
    end_on_sigterm()
    rows = [Row(COMPARED[name].smaller(asked.scale)) for name in asked.cases]
    with tempfile.TemporaryDirectory(prefix="aioparallel-compare-") as folder:
        sides = [extract(name, Path(folder, side)) for side, name in (("before", asked.before), ("after", asked.after))]
        say(f"{sides[1].title} over {sides[0].title}. {READING}")
        for row in rows if asked.instructions else ():
            progress(f"{row.case.name}: counting instructions")
            await _reported(row, _count(row, sides, say), say)
        cpu = keep_a_core()  # not before, as counting instructions may use all cores
        async with (
            LocalKafka(heap=HEAP, compile_once=True, report=say) as kafka,
            Admin(kafka.bootstrap_servers, timeout=TIMEOUT) as admin,
        ):
            topics = Topics(admin)
            arena = Arena(
                kafka.bootstrap_servers, topics.create, {}, 0, asked.seed, asked.scale, progress, asked.width / 100,
                asked.seconds, cpu,
            )  # fmt: skip
            for number, row in enumerate(rows, 1):
                if not row.failure:
                    await _reported(row, compare_row(row, arena, sides, asked, say), say)
                    await topics.clear()
                if asked.json:
                    asked.json.write_text(json.dumps([_plain(one) for one in rows[:number]], indent=1) + "\n")
    return rows


async def _reported(row: Row, work: Awaitable[None], say: Callable[[str], None]) -> None:
    """Report the failure of a case, and let the others go on."""
    try:
        await work
    except AioparallelError as error:
        row.failure = str(error)
        say(f"{row.case.name:<16} not compared: {error}")


async def _count(row: Row, sides: Sequence[Revision], say: Callable[[str], None]) -> None:
    row.instructions = await count(row.case, sides)
    say(f"{row.case.name:<16} {_instructions(row.instructions)}")


def keep_a_core() -> int | None:
    """Reserve a core for the measured processes: this process and the broker do not use it. None if there is only one
    core, or the system does not support it."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    *others, kept = sorted(os.sched_getaffinity(0))
    if not others:
        return None
    os.sched_setaffinity(0, others)
    return kept


async def compare_row(
    row: Row, arena: Arena, sides: Sequence[Revision], asked: argparse.Namespace, say: Callable[[str], None]
) -> None:
    """Compare one case as often as requested, and print a line for each."""
    async with Field.of(row.case, arena) as place:
        await prepare(place)
        # A warm-up: until the broker's code is compiled it uses part of the cores.
        await play_pair(place, sides, random.Random(asked.seed))
        for number in range(asked.times):
            found = await compare(place, sides, seed=asked.seed + number)
            row.comparisons.append(found)
            say(_sentence(row, found, asked.width))
    if asked.times > 1:
        say(f"  {row.case.name}: {_held(row)}")


def _sentence(row: Row, found: Comparison, width: float) -> str:
    before = found.medians["cpu_per_record"][0] * 1e6
    pairs = f"{len(found.ratios['seconds'])} pairs in {found.seconds:.0f} s"
    pairs += f", {found.repeated} turns repeated" * bool(found.repeated)
    pairs += f", the machine moved in {found.unquiet} that count" * bool(found.unquiet)
    parts = [f"{verdict(found, measured, width)} {_shown(found.interval(measured))}" for measured in TITLES]
    return "; ".join([f"{row.case.name:<16} {parts[0]}", *parts[1:], f"{before:.2f} µs before; {pairs}"])


def verdict(found: Comparison, measured: Measured, width: float) -> str:
    """The result in words: more or less if the interval excludes 1, else whether it is narrow enough for "the same"."""
    seen = found.interval(measured)
    if not seen.holds(1.0):
        return _difference(TITLES[measured], seen.median)
    return f"{TITLES[measured]} {'the same' if seen.width <= width / 100 else 'not resolved'}"


def _difference(what: str, ratio: float) -> str:
    return f"{'MORE' if ratio > 1 else 'less'} {what}, by {abs(ratio - 1):.1%}"


def _shown(seen: Interval) -> str:
    return f"{seen.median:.3f} ({seen.low:.3f}-{seen.high:.3f})"


def _instructions(counted: list[float] | str) -> str:
    if isinstance(counted, str):
        return f"instructions {counted}"
    before, after = counted
    ratio = after / before
    said = "instructions the same" if abs(ratio - 1) <= COUNTED_ALIKE else _difference("instructions", ratio)
    return f"{said} {ratio:.4f} ({before:,.0f} before, in memory)"


def _held(row: Row) -> str:
    parts = []
    for measured in TITLES:
        held = sum(one.interval(measured).holds(1.0) for one in row.comparisons)
        parts.append(f"{TITLES[measured]} holds 1 in {held} of {len(row.comparisons)}")
    return ", ".join(parts)


def main(arguments: Sequence[str], console: Console) -> int:
    """Returns the exit code: 1 if something could not be compared."""
    asked = options(arguments)

    def say(sentence: str) -> None:
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    try:
        with console.status("Starting Apache Kafka") as status:
            rows = asyncio.run(run(asked, say, status.update))
    except AioparallelError as error:
        say(f"ERROR {error}")
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        say("Stopped; every process that the comparison started has ended.")
        return INTERRUPTED
    return 1 if any(row.failure for row in rows) else 0


def _plain(row: Row) -> dict[str, Any]:
    return {
        "case": row.case.name,
        "instructions": row.instructions,
        "failure": row.failure,
        "comparisons": [
            {
                "ratios": one.ratios,
                "medians": one.medians,
                "repeated": one.repeated,
                "unquiet": one.unquiet,
                "seconds": one.seconds,
            }
            for one in row.comparisons
        ],
    }
