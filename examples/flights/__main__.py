"""The command: ``python -m examples.flights``, or ``make demo ARGS=...``, which installs what it needs first."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from cyclopts import App
from rich.console import Console

from aioparallel import AioparallelError, ConfigurationError
from examples.flights.demo import Demo
from examples.flights.result import Result, show
from examples.flights.settings import Settings

__all__ = ["app"]

DEFAULTS = Settings()
WIDTH_WITHOUT_TERMINAL = 120  # columns

app = App(name="python -m examples.flights", version_flags=(), help_format="markdown")


@app.default
def main(*, settings: Settings = DEFAULTS) -> int:
    """Enrich 20,000 real flights over HTTP, first one at a time, then with aioparallel, and check the promises.

    The flights that left New York in 2013 go to a Kafka topic, keyed by tail number. For each one the handler asks a
    local HTTP service, which answers after 5 to 30 ms with the plane, both airports and the weather. For an unknown
    plane it answers 404, which counts as an answer.

    At the end: records/s of both ways, the order of every key as seen by the handler and the service, lost and repeated
    records, committed offsets against end offsets. The exit code is 1 if a check fails.

    **Examples**

    - `python -m examples.flights`: half a minute; needs no Java and no Docker
    - `... --kill`: the consumer is killed three times and loses nothing
    - `... --concurrency 50`: the effect of fewer handlers at once
    - `... --broker kafka`: the same on Apache Kafka
    - `... --bootstrap-servers localhost:9092`: on a running broker

    **Files** in the output folder

    - `demo.png`: throughput, in flight and lag over time
    - `enriched.jsonl`: the enriched flights, one JSON object a line. Delivery is at least once: flights that were
      handled but not committed when the consumer was killed are in it again
    - `evidence/`: logs of the handler, the service and all processes
    """
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH_WITHOUT_TERMINAL)
    try:
        result = asyncio.run(run(settings, console))
    except (AioparallelError, OSError) as error:
        console.print(f"[bold red]ERROR[/bold red] {error}", highlight=False, soft_wrap=True)
        return 2 if isinstance(error, ConfigurationError) else 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("Stopped; every process that the demo started has ended.")
        return 128 + signal.SIGINT
    show(result, console)
    console.print(
        f"Picture: {settings.picture}\nEnriched records: {settings.enriched}\nEvidence: {settings.evidence}",
        highlight=False,
        soft_wrap=True,
    )
    return 0 if result.passed else 1


async def run(settings: Settings, console: Console) -> Result:
    """Run the demo. SIGTERM cancels it like Ctrl-C, so that everything is closed in order."""
    task = asyncio.current_task()
    assert task is not None  # a running coroutine has one
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    demo = Demo(settings, console)
    settings.clear_output()
    # Kafka clients log conditions that pass by themselves: into a file, not between the progress bars.
    logging.basicConfig(
        filename=settings.evidence / "demo.log", format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    return await demo.run()


if __name__ == "__main__":
    app()
