"""The commands and their options. What a command does stands in a package of its own."""

from __future__ import annotations

import asyncio
import logging
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from aioparallel.cli.bench.command import bench
from aioparallel.cli.dlq.commands import dlq
from aioparallel.cli.running import failing_with_a_sentence, make_console, require_extra, until_terminated

if TYPE_CHECKING:
    from aioparallel.cli.demo.report import DemoResult
    from aioparallel.cli.demo.settings import Settings

__all__ = ["app"]

DEMO_NEEDS = ("aiohttp", "httpx", "httpx_aiohttp", "matplotlib")
WIDTH_WITHOUT_TERMINAL = 120  # columns

app = typer.Typer(
    name="aioparallel",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(dlq)


def show_version(asked: bool) -> None:
    """Print the version and leave."""
    if asked:
        typer.echo(f"aioparallel {version('aioparallel')}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The asyncio parallel consumer for Kafka.

    Start with **aioparallel demo**: real data, a plain loop and the parallel consumer side by side. **aioparallel
    bench** measures it beside its peers.
    """


@app.command()
def demo(
    records: Annotated[
        int, typer.Option(help="How many flights, at most 336,776.", rich_help_panel="How much")
    ] = 20_000,
    plain_records: Annotated[
        int,
        typer.Option(
            help="How many of them, at most, the plain loop takes first, at about 50 a second.",
            rich_help_panel="How much",
        ),
    ] = 500,
    concurrency: Annotated[
        int,
        typer.Option(
            help="Handlers that run at once (max_concurrency), and connections to the service.",
            rich_help_panel="How much",
        ),
    ] = 500,
    partitions: Annotated[int, typer.Option(help="Partitions of the topic.", rich_help_panel="How much")] = 8,
    broker: Annotated[
        Literal["embedded", "kafka"],
        typer.Option(
            help="Which broker to start: **embedded** (inside this process, no Java, no Docker) or "
            "**kafka** (Apache Kafka as a local process; needs Maven and Java).",
            rich_help_panel="Where",
        ),
    ] = "embedded",
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            help="Use this running broker instead: host:port, several with commas. The demo makes a topic of "
            "its own there and deletes it at the end.",
            show_default="none, starts a broker",
            rich_help_panel="Where",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option(help="Folder for the picture, the records and the evidence.", rich_help_panel="Where")
    ] = Path("demo-output"),
    kill: Annotated[
        bool,
        typer.Option(
            "--kill", help="Kill the consumer with SIGKILL on its way and start it again.", rich_help_panel="Trouble"
        ),
    ] = False,
    kills: Annotated[int, typer.Option(min=1, help="How many times, with --kill.", rich_help_panel="Trouble")] = 3,
    seed: Annotated[
        int,
        typer.Option(
            help="For the service's delays: the same seed, the same delay for each flight.",
            rich_help_panel="Trouble",
        ),
    ] = 2013,
) -> None:
    """Enrich 20,000 real flights over HTTP, first one at a time, then with aioparallel, and check the promises.

    The flights that left New York in 2013 go to a Kafka topic, keyed by tail number. For each one the handler
    asks a local HTTP service, which answers after 5 to 30 ms with the plane, both airports and the weather. A
    plane that nobody knows is a 404, and that is an answer too.

    At the end: records/s of both ways, the order of every key as the handler and the service saw it, lost and
    repeated records, committed offsets against end offsets. The exit code is 1 when a check fails.

    **Examples**

    - `aioparallel demo`: about half a minute; needs no Java and no Docker

    - `aioparallel demo --kill`: the consumer is killed three times and loses nothing

    - `aioparallel demo --concurrency 50`: what fewer handlers at once mean

    - `aioparallel demo --broker kafka`: the same on Apache Kafka

    - `aioparallel demo --bootstrap-servers localhost:9092`: on a broker that runs already

    **Files** in the output folder

    - `demo.png`: throughput, in flight and lag over time

    - `enriched.jsonl`: the enriched flights, one JSON object a line. Delivery is at least once: what was done but not
    yet committed when the consumer was killed is done again, and stands there again with another `run`

    - `evidence/`: what the handler and the service saw, and the logs of all processes
    """
    console = make_console(WIDTH_WITHOUT_TERMINAL)
    require_extra("demo", DEMO_NEEDS)
    from aioparallel.cli.demo.settings import BrokerKind, Settings  # noqa: PLC0415

    with failing_with_a_sentence("demo", console):
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
        outcome = run_demo(settings, console)
    if not outcome.passed:
        raise typer.Exit(1)


app.command()(bench)


def run_demo(settings: Settings, console: Console) -> DemoResult:
    """Run the demo and show what came out of it."""
    from aioparallel.cli.demo.report import show  # noqa: PLC0415
    from aioparallel.cli.demo.run import Demo  # noqa: PLC0415

    demo = Demo(settings, console)
    # Kafka clients speak about what passes by itself; that belongs into a file, not between the bars.
    demo.clear_output()
    logging.basicConfig(
        filename=settings.evidence / "demo.log",
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    outcome = asyncio.run(until_terminated(demo.run()))
    show(outcome, console)
    console.print(
        f"Picture: {settings.picture}\nEnriched records: {settings.enriched}\nEvidence: {settings.evidence}",
        highlight=False,
    )
    return outcome
