"""``python -m examples.flights_pipeline``: runs all steps, and checks the totals.

Exits with 1 if a step fails, or if a total differs from that of pandas over the CSV files.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console

from aioparallel import AioparallelError
from aioparallel.event_loop import loop_factory
from aioparallel.testing.brokers.local import LocalKafka
from examples.flights.flights import FLIGHTS
from examples.flights_pipeline.comparing import differences, expected_totals, found_totals, table_of
from examples.flights_pipeline.plot import draw
from examples.flights_pipeline.settings import Settings
from examples.flights_pipeline.stages import Stages, clear

__all__ = ["compare", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example. Returns the exit code."""
    console = Console()
    try:
        settings = _settings(arguments)
        clear(settings)
        return _run(settings, console)
    except AioparallelError as error:
        console.print(f"[bold red]Failed:[/bold red] {error}", highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("Interrupted; the broker and all other processes have ended.")
        return 130


def _settings(arguments: Sequence[str] | None) -> Settings:
    parser = argparse.ArgumentParser(prog="make pipeline ARGS=...", description=__doc__)
    parser.add_argument("--flights", type=int, default=FLIGHTS, metavar="N", help=f"the first N of {FLIGHTS:,}")
    parser.add_argument("--output", type=Path, default=Path("flights-output"), help="directory for the results")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep the broker with its topics until Ctrl-C, and the checkpoints in the output directory",
    )
    options = parser.parse_args(arguments)
    return Settings(options.output, options.flights, options.keep)


def _run(settings: Settings, console: Console) -> int:
    began = time.monotonic()
    with LocalKafka(report=console.print) as kafka:
        console.print(
            f"Apache Kafka runs at {kafka.bootstrap_servers}; output: {settings.output.absolute()}", soft_wrap=True
        )
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            counts = runner.run(Stages(settings, kafka, console).run())
        console.print(
            f"{counts.flights:,} flights in {counts.records:,} records of the last topic: {counts.duplicates:,} came "
            f"twice, and were added up once; {counts.overtaken:,} overtook an earlier one of the same aircraft",
            highlight=False,
            soft_wrap=True,
        )
        code = compare(settings, console) or int(counts.overtaken > 0)
        console.print(f"{time.monotonic() - began:.0f} s in all", highlight=False)
        if settings.keep:
            _wait(kafka, console)
    if not settings.keep:  # the checkpoints refer to topics that are gone
        for path in (settings.storage, settings.project):
            shutil.rmtree(path, ignore_errors=True)
    return code


def compare(settings: Settings, console: Console) -> int:
    """Draw the plot, and compare the totals. Returns the exit code."""
    found = found_totals(settings.delays, settings.missing)
    draw(pd.read_parquet(settings.delays), found.loc["carrier"]["cancelled"], settings.picture)
    console.print(f"Plot: {settings.picture}\nParquet: {settings.delays}", highlight=False, soft_wrap=True)
    expected = expected_totals(settings.flights)
    if wrong := differences(expected, found):
        console.print(table_of(wrong))
        console.print(f"[bold red]FAIL[/bold red]: {len(wrong)} figures are not those of the CSV files")
        return 1
    every = found.loc["all"].iloc[0]
    console.print(
        f"[green]PASS[/green]: all {expected.size} totals equal those of the CSV files: {every['flights']:,} flights, "
        f"{every['dep_delay']:,} minutes late at departure and {every['arr_delay']:,} at arrival, "
        f"{every['cancelled']:,} cancelled",
        highlight=False,
        soft_wrap=True,
    )
    return 0


def _wait(kafka: LocalKafka, console: Console) -> None:
    console.print(f"The topics stay at {kafka.bootstrap_servers} until Ctrl-C.")
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    sys.exit(main())
