"""parallel_map compared with plain asyncio as people write it: rates, checked, in turn.

``python -m benchmarks.parallel_map [--rounds 5] [--loop asyncio]``
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from aioparallel import parallel_map
from aioparallel.event_loop.loop import loop_factory, quick_collections
from benchmarks import standalone
from benchmarks.kept import Row, Tables

Handler = Callable[[int], Awaitable[int]]
# Items that the contestants with gather() have in tasks at once.
_CHUNK = 10_000


class Case(NamedTuple):
    """``seconds`` for each item; ``slow`` for one in a hundred."""

    items: int
    seconds: float
    slow: float
    concurrency: int
    keys: int | None
    contestants: tuple[str, ...]

    @property
    def bound(self) -> float:
        """The highest possible number of items per second; 0 without a limit."""
        mean = self.seconds * 0.99 + self.slow * 0.01
        return self.concurrency / mean if mean else 0.0


CASES = {
    "no-op": Case(400_000, 0.0, 0.0, 100, None, ("parallel_map", "engine", "gather")),
    "no-op, 1,000 keys": Case(400_000, 0.0, 0.0, 100, 1_000, ("parallel_map", "engine")),
    "5 ms, 500 at once": Case(200_000, 0.005, 0.005, 500, None, ("parallel_map", "gather", "sleeps")),
    "5 ms, 1 % at 500 ms": Case(100_000, 0.005, 0.5, 500, None, ("parallel_map", "gather")),
}


def seconds_of(case: Case, item: int) -> float:
    """The item's time, by a hash: every hundredth item could coincide with something periodic."""
    return case.slow if item * 2_654_435_761 % 2**32 < 2**32 // 100 else case.seconds


def handler_of(case: Case) -> Handler:
    """The handler that all contestants use."""

    async def nothing(item: int) -> int:
        return item

    async def sleeps(item: int) -> int:
        await asyncio.sleep(seconds_of(case, item))
        return item

    return sleeps if case.seconds else nothing


async def mapped(case: Case, handle: Handler) -> int:
    """Our parallel_map."""
    keys = case.keys
    key = None if keys is None else lambda item: item % keys
    total = 0
    async for outcome in parallel_map(handle, range(case.items), key=key, max_concurrency=case.concurrency):
        total += outcome.result()
    return total


async def engine(case: Case, handle: Handler) -> int:
    """The engine without outcomes: the cost of a consumer's records in it."""
    from aioparallel.config.handling import Ordering  # noqa: PLC0415
    from aioparallel.config.options import Options  # noqa: PLC0415
    from aioparallel.records.record import Record  # noqa: PLC0415
    from tests.support.engine.process import process  # noqa: PLC0415

    total = 0

    async def add(record: Record) -> None:
        nonlocal total
        total += await handle(record.offset)

    ordering = Ordering.UNORDERED if case.keys is None else Ordering.KEY
    names = [b"%d" % number for number in range(case.keys or 1)]
    records = (Record("t", 0, item, names[item % len(names)], b"value") for item in range(case.items))
    await process(records, add, Options(ordering=ordering, max_concurrency=case.concurrency), chunk=256)
    return total


async def gathered(case: Case, handle: Handler) -> int:
    """gather() with a semaphore in chunks, as all items at once would need a task each."""
    semaphore = asyncio.Semaphore(case.concurrency)

    async def bounded(item: int) -> int:
        async with semaphore:
            return await handle(item)

    total = 0
    for first in range(0, case.items, _CHUNK):
        total += sum(await asyncio.gather(*map(bounded, range(first, min(first + _CHUNK, case.items)))))
    return total


async def sleeping(case: Case, handle: Handler) -> int:
    """As many tasks as may run at once, each with its part of the items: the event loop's limit."""

    async def part(first: int) -> int:
        return sum([await handle(item) for item in range(first, case.items, case.concurrency)])

    return sum(await asyncio.gather(*map(part, range(case.concurrency))))


CONTESTANTS = {"parallel_map": mapped, "engine": engine, "gather": gathered, "sleeps": sleeping}


def run_one(name: str, contestant: str, loop: str) -> None:
    """Run in a new process; prints a line of JSON."""
    case = CASES[name]
    quick_collections(case.concurrency)
    factory = loop_factory() if loop == "uvloop" else asyncio.SelectorEventLoop
    with asyncio.Runner(loop_factory=factory) as runner:
        began, cpu = time.perf_counter(), time.process_time()
        total = runner.run(CONTESTANTS[contestant](case, handler_of(case)))
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    assert total == case.items * (case.items - 1) // 2, "not each item once"
    print(json.dumps({"rate": case.items / seconds, "cpu": cpu / case.items * 1e6}))


def rows_of(name: str, case: Case, given: argparse.Namespace) -> list[Row]:
    """A row for each contestant after all rounds."""
    results: dict[str, list[dict[str, float]]] = {contestant: [] for contestant in case.contestants}
    for number in range(given.rounds):
        for contestant in case.contestants[:: 1 if number % 2 else -1]:
            command = [sys.executable, "-m", "benchmarks.parallel_map", "--loop", given.loop, "--one"]
            ran = subprocess.run([*command, name, contestant], capture_output=True, text=True, check=True)
            results[contestant].append(json.loads(ran.stdout))
            print(f"round {number}, {name}, {contestant}: {results[contestant][-1]['rate']:,.0f} items/s", flush=True)
    rows: list[Row] = []
    for contestant, runs in results.items():
        rates = standalone.median("items/s", [run["rate"] for run in runs])
        cpu = statistics.median(run["cpu"] for run in runs)
        bound = statistics.median(run["rate"] for run in runs) / case.bound if case.bound else None
        rows.append({"case": name, "way": contestant, **rates, "CPU µs each": cpu, "of the bound": bound})
    return rows


def measure(given: argparse.Namespace) -> Tables:
    """Measure all cases."""
    rows = [row for name, case in CASES.items() for row in rows_of(name, case, given)]
    return {f"{given.rounds} rounds on {given.loop}, medians": rows}


def main() -> int:
    """Returns the exit code."""
    parser = standalone.parser_of("parallel_map", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of each contestant, in turns (default 5)")
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        run_one(*given.one, given.loop)
        return 0
    return standalone.run("parallel_map", parser, given, measure, beside="none")


if __name__ == "__main__":
    sys.exit(main())
