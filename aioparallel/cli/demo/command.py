"""``aioparallel demo``: its options, its help, and how it ends."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from aioparallel.cli.console import make_console, require_extra

if TYPE_CHECKING:
    from aioparallel.cli.demo.settings import Settings

__all__ = ["demo"]

NEEDS: Final = ("aiohttp", "httpx", "httpx_aiohttp", "matplotlib")


async def demo(
    *,
    records: Annotated[int, Parameter(help="How many flights, at most 336,776.")] = 20_000,
    plain_records: Annotated[
        int, Parameter(help="How many of them, at most, the plain loop takes first, at about 50 a second.")
    ] = 500,
    concurrency: Annotated[int, Parameter(help="Handlers that run at once, and connections to the service.")] = 500,
    partitions: Annotated[int, Parameter(help="Partitions of the topic.")] = 8,
    broker: Annotated[Literal["embedded", "kafka"], Parameter(help="Which broker to start.")] = "embedded",
    bootstrap_servers: Annotated[
        str | None, Parameter(help="Use this running broker instead: host:port, several with commas.")
    ] = None,
    output: Annotated[Path, Parameter(help="Folder for the picture, the records and the evidence.")] = Path(
        "demo-output"
    ),
    kill: Annotated[bool, Parameter(help="Kill the consumer with SIGKILL on its way and start it again.")] = False,
    kills: Annotated[PositiveInt, Parameter(help="How many times, with --kill.")] = 3,
    seed: Annotated[int, Parameter(help="For the service's delays.")] = 2013,
) -> bool:
    """Enrich 20,000 real flights over HTTP, first one at a time, then with aioparallel, and check the promises.

    The flights that left New York in 2013 go to a Kafka topic, keyed by tail number. For each one the handler
    asks a local HTTP service, which answers after 5 to 30 ms with the plane, both airports and the weather.

    At the end: records/s of both ways, the order of every key as the handler and the service saw it, lost and
    repeated records, committed offsets against end offsets. The exit code is 1 when a check fails.

    **Examples**

    - `aioparallel demo`: about half a minute; needs no Java and no Docker
    - `aioparallel demo --kill`: the consumer is killed three times and loses nothing
    - `aioparallel demo --broker kafka`: the same on Apache Kafka

    **Files** in the output folder: `demo.png`, `enriched.jsonl` and `evidence/`.
    """
    require_extra("demo", NEEDS)
    from aioparallel.cli.demo.settings import BrokerKind, Settings  # noqa: PLC0415

    settings = Settings(
        output=output,
        records=records,
        plain_records=min(plain_records, records),
        concurrency=concurrency,
        partitions=partitions,
        broker=BrokerKind(broker),
        bootstrap_servers=bootstrap_servers,
        kills=kills if kill else 0,
        seed=seed,
    )
    return await run_demo(settings)


async def run_demo(settings: Settings) -> bool:
    """Run the demo and show what came out of it; whether all checks passed."""
    from aioparallel.cli.demo.report import show  # noqa: PLC0415
    from aioparallel.cli.demo.run import Demo  # noqa: PLC0415

    console = make_console()
    demo = Demo(settings, console)
    # Kafka clients speak about what passes by itself; that belongs into a file, not between the bars.
    demo.clear_output()
    logging.basicConfig(
        filename=settings.evidence / "demo.log",
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    outcome = await demo.run()
    show(outcome, console)
    console.print(
        f"Picture: {settings.picture}\nEnriched records: {settings.enriched}\nEvidence: {settings.evidence}",
        highlight=False,
    )
    return outcome.passed
