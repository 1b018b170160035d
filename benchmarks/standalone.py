"""Shared by the programs besides the main benchmark: options, errors, tables, and stored results."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import statistics
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from aioparallel.event_loop.loop import loop_factory
from aioparallel.jvm.sets import KAFKA_VERSION
from aioparallel.records.errors import AioparallelError
from benchmarks import blocks, pages
from benchmarks.facts import gather
from benchmarks.kept import Kept, Row, Tables, write
from benchmarks.tables import rows_table
from examples.postgres import postgres

__all__ = ["KAFKA", "goal", "median", "parser_of", "run", "run_with_postgres"]

KAFKA: Final = f"Apache Kafka {KAFKA_VERSION}, one node on this machine"


def parser_of(name: str, about: str | None) -> argparse.ArgumentParser:
    """The program's parser with ``--keep``. ``about``: its docstring."""
    parser = argparse.ArgumentParser(
        f"python -m benchmarks.{name}",
        description=(about or "").replace("``", ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="store the results and update the pages, as without any option, though options are given",
    )
    return parser


def median(unit: str, values: Sequence[float]) -> Row:
    """Columns for the median, the lowest and the highest value."""
    return {unit: statistics.median(values), "lowest": min(values), "highest": max(values)}


def goal(text: str, value: float, must: float) -> Row:
    """A row of the table ``GOALS``: the value must reach ``must``."""
    return {"goal": text, "seen": value, "must": f">= {must:g}", "verdict": "reached" if value >= must else "MISSED"}


def run(
    name: str,
    parser: argparse.ArgumentParser,
    asked: argparse.Namespace,
    measure: Callable[[argparse.Namespace], Tables],
    *,
    beside: str,
) -> int:
    """Measure and print the tables. At full size (without options) or with ``--keep``, store them and update the pages.

    Returns the exit code: 1 after an error or a timeout. A missed goal is no failure. ``beside``: what else runs on
    this machine, for the reader.
    """
    options = {option: value for option, value in vars(asked).items() if option != "keep"}
    keep = asked.keep or all(value == parser.get_default(option) for option, value in options.items())
    load, _, _ = os.getloadavg()
    facts = gather(broker=beside, seed=0, rounds=getattr(asked, "rounds", 1), scale=1)
    try:
        tables = measure(asked)
    except TimeoutError:
        print("ERROR it took too long: ask for less, see --help")
        return 1
    except AioparallelError as error:
        print(f"ERROR {error}")
        return 1
    for title, rows in tables.items():
        print(f"\n{title}\n\n{rows_table(rows)}")
    if keep:
        typed = [argument for argument in sys.argv[1:] if argument != "--keep"]
        command = shlex.join(["python", "-m", f"benchmarks.{name}", *typed])
        path = pages.RESULTS / f"{name}.json"
        write(Kept(command, options, facts, load, tables), path)
        changed = pages.write(blocks.figures(pages.RESULTS), pages.ROOT)
        print(f"\nKept in {path}; pages that changed: {', '.join(map(str, changed)) or 'none'}")
    return 0


def run_with_postgres(
    name: str,
    parser: argparse.ArgumentParser,
    asked: argparse.Namespace,
    measure: Callable[[argparse.Namespace, str], Coroutine[Any, Any, Tables]],
    *,
    durable: bool,
) -> int:
    """Like :func:`run` for a program that gets the address of a new PostgreSQL. ``durable``: each COMMIT is synced to
    disk."""

    def measure_there(asked: argparse.Namespace) -> Tables:
        with postgres(durable=durable) as address, asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(measure(asked, address))

    return run(name, parser, asked, measure_there, beside=f"{KAFKA}, and PostgreSQL")
