"""The settings of the demo, from which the command's options are made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from aioparallel import ConfigurationError
from examples.flights.flights import FLIGHTS

__all__ = ["Settings"]

RECORDS_PER_KILL = 100  # fewer would pass before a kill takes effect

MUCH, WHERE, TROUBLE = (Group.create_ordered(name) for name in ("How much", "Where", "Trouble"))


def up_to(most: int, group: Group = MUCH) -> Parameter:
    """A number from 1."""
    return Parameter(validator=Number(gte=1, lte=most), group=group)


@Parameter(name="*", negative="")
@dataclass(frozen=True)
class Settings:
    """The options."""

    records: Annotated[int, up_to(FLIGHTS)] = 20_000
    """How many flights, at most 336,776."""
    plain_records: Annotated[int, up_to(FLIGHTS)] = 500
    """How many of them, at most, the plain loop handles first, at about 50 a second."""
    concurrency: Annotated[int, up_to(10_000)] = 500
    """Handlers that run at once (max_concurrency), and connections to the service."""
    partitions: Annotated[int, up_to(1_000)] = 8
    """Partitions of the topic."""
    broker: Annotated[Literal["embedded", "kafka"], Parameter(group=WHERE)] = "embedded"
    """Which broker to start: embedded (inside this process, no Java, no Docker) or kafka (Apache Kafka as a local
    process; needs Java, and Maven the first time)."""
    bootstrap_servers: Annotated[str | None, Parameter(group=WHERE)] = None
    """Use this running broker instead: host:port, several with commas. The demo creates a topic there and deletes it
    at the end."""
    output: Annotated[Path, Parameter(group=WHERE)] = Path("demo-output")
    """Folder for the picture, the records and the evidence."""
    kill: Annotated[bool, Parameter(group=TROUBLE, show_default=False)] = False
    """Kill the consumer with SIGKILL, and start it again."""
    kills: Annotated[int, up_to(FLIGHTS, TROUBLE)] = 3
    """How many times, with --kill."""
    seed: Annotated[int, Parameter(group=TROUBLE)] = 2013
    """Seed of the service's delays: the same seed, the same delay for each flight."""

    @property
    def kills_asked(self) -> int:
        """0 without --kill. Raises ConfigurationError if there are too few records."""
        most = self.records // RECORDS_PER_KILL
        if self.kill and self.kills > most:
            allowed = f"each needs {RECORDS_PER_KILL} records, so {self.records} records allow {most}"
            raise ConfigurationError("--kills", self.kills, allowed)
        return self.kills if self.kill else 0

    @property
    def evidence(self) -> Path:
        """The folder of event logs and of the logs of processes."""
        return self.output / "evidence"

    @property
    def enriched(self) -> Path:
        """The enriched records as JSON lines."""
        return self.output / "enriched.jsonl"

    @property
    def picture(self) -> Path:
        """Throughput, records in flight and lag over time."""
        return self.output / "demo.png"

    def clear_output(self) -> None:
        """Remove the files of an earlier demo, and nothing else: the folder may be in use otherwise."""
        self.evidence.mkdir(parents=True, exist_ok=True)
        earlier = [path for ending in ("events", "jsonl", "log") for path in self.evidence.glob(f"*.{ending}")]
        for path in (*earlier, self.enriched, self.picture):
            path.unlink(missing_ok=True)
