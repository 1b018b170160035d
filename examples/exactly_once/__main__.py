"""Statistics of each carrier's delays from a topic of flights, exactly once, while members are killed at random.

In a clone of the repository::

    make exactly-once                           # or, with Java and Maven installed:
    python -m examples.exactly_once --flights 40000 --kills 8

It starts Apache Kafka, writes real flights to topic ``flights`` and starts two members of ``delays.py``. Every few
seconds it kills one of them (SIGKILL) and starts it again. Meanwhile it reads topic ``delays`` under ``read_committed``
and compares it by carrier with the CSV file: number of flights, and sum of delays.
"""

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as Partition
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from aioparallel.testing import LocalKafka
from examples.flights.flights import read_flights
from examples.flights_pipeline.filling import fill

PARTITIONS = 8
Totals = tuple[Counter[str], Counter[str]]
"""By carrier: flights that have arrived, and the sum of their delays in minutes."""


def from_file(count: int) -> Totals:
    """The expected totals."""
    flights, minutes = Counter[str](), Counter[str]()
    for flight in read_flights(count):
        row = json.loads(flight.value)
        if row["arr_delay"] is not None:
            flights[row["carrier"]] += 1
            minutes[row["carrier"]] += row["arr_delay"]
    return flights, minutes


def at_least(least: int) -> Callable[[str], int]:
    """Parses a whole number of the command line."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least {least}")
        return int(text)

    return number


@asynccontextmanager
async def reader(servers: str) -> AsyncIterator[AIOKafkaConsumer]:
    """A reader of topic ``delays``, committed records only."""
    places = [Partition("delays", number) for number in range(PARTITIONS)]
    consumer = AIOKafkaConsumer(
        bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    async with consumer:
        consumer.assign(places)
        yield consumer


class Members:
    """Processes of ``delays.py``."""

    def __init__(self, servers: str, names: list[str]) -> None:
        self._servers = servers
        self._running = {name: self._start(name) for name in names}
        self.kills = 0

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "examples.exactly_once.delays", self._servers, name]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def kill_one(self) -> str:
        """Kill a member (SIGKILL) and start it again."""
        name = random.choice(list(self._running))
        self._running[name].kill()
        self._running[name].wait()
        self._running[name] = self._start(name)
        self.kills += 1
        return name

    def stop(self) -> None:
        """Stop all members."""
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def watch(servers: str, members: Members, wanted: int, kills: int, pause: float, console: Console) -> Totals:
    """Read committed records, and kill members meanwhile."""
    flights, minutes = Counter[str](), Counter[str]()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    kill_at = time.monotonic() + pause
    last = time.monotonic()
    async with reader(servers) as consumer:
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("delays", total=wanted)
            # Some more seconds after the last record: duplicates would arrive now.
            while flights.total() < wanted or time.monotonic() - last < 2:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    for record in records:
                        flights[record.key.decode()] += 1
                        minutes[record.key.decode()] += int(record.value)
                        last = time.monotonic()
                progress.update(task, completed=flights.total())
                if time.monotonic() > kill_at and members.kills < kills and flights.total() < wanted:
                    name = members.kill_one()
                    progress.update(task, description=f"delays, kill {members.kills} of {kills} ({name})")
                    kill_at = time.monotonic() + pause * random.uniform(0.5, 1.5)
                if time.monotonic() - last > 120:
                    break
    return flights, minutes


def show(found: Totals, wanted: Totals, console: Console) -> bool:
    """Print a table. Returns whether all totals are equal."""
    table = Table("carrier", "flights", "of", "minutes late", "of", "")
    for carrier in sorted(wanted[0]):
        same = all(totals[carrier] == others[carrier] for totals, others in zip(found, wanted, strict=True))
        cells = [f"{totals[carrier]:,}" for pair in zip(found, wanted, strict=True) for totals in pair]
        table.add_row(carrier, *cells, "equal" if same else "[bold red]DIFFERENT[/bold red]")
    console.print(table)
    return found == wanted


async def main() -> int:
    """Run the example."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.exactly_once",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--flights", type=at_least(1), default=40_000, metavar="N", help="flights to count (40,000)")
    parser.add_argument("--kills", type=at_least(0), default=8, metavar="N", help="times that a member is killed (8)")
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between two kills, on average (2)")
    given = parser.parse_args()
    console = Console()
    with LocalKafka() as kafka:
        servers = kafka.bootstrap_servers
        for topic in ("flights", "delays"):
            await kafka.create_topic(topic, PARTITIONS)
        await fill(servers, "flights", given.flights, lambda _done, _note: None)
        wanted = from_file(given.flights)
        console.print(f"{given.flights:,} flights are on topic flights, {wanted[0].total():,} of them have arrived")
        members = Members(servers, ["one", "two"])
        try:
            found = await watch(servers, members, wanted[0].total(), given.kills, given.pause, console)
        finally:
            members.stop()
    equal = show(found, wanted, console)
    console.print(f"{members.kills} kills: {'equal to the file' if equal else 'NOT equal to the file'}")
    return 0 if equal else 1


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
