"""What the demo was asked to do, checked once."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from aioparallel.cli.demo.flights import FLIGHTS
from aioparallel.errors import ConfigurationError

__all__ = ["BrokerKind", "Settings"]

RECORDS_PER_KILL = 100  # fewer pass before a kill can be aimed at them


class BrokerKind(enum.StrEnum):
    """Which broker the demo starts."""

    EMBEDDED = "embedded"
    """librdkafka's mock cluster, inside this process: no Java, no Docker, there at once."""
    KAFKA = "kafka"
    """Apache Kafka as a local process: needs Maven, and a Java that may come with the jvm extra."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The command's options under the same names.

    ``bootstrap_servers`` is None when the demo starts a ``broker`` of its own; ``kills`` is 0 without --kill.
    Raises ConfigurationError, which names the option.
    """

    output: Path
    records: int = 20_000
    plain_records: int = 500
    concurrency: int = 500
    partitions: int = 8
    broker: BrokerKind = BrokerKind.EMBEDDED
    bootstrap_servers: str | None = None
    kills: int = 0
    seed: int = 2013

    def __post_init__(self) -> None:
        within("--records", self.records, 1, FLIGHTS)
        within("--plain-records", self.plain_records, 1, self.records)
        within("--concurrency", self.concurrency, 1, 10_000)
        within("--partitions", self.partitions, 1, 1_000)
        most = self.records // RECORDS_PER_KILL
        if self.kills > most:
            raise ConfigurationError(
                "--kills",
                self.kills,
                f"each kill needs {RECORDS_PER_KILL} records on its way, so {self.records} records allow {most}",
            )

    @property
    def evidence(self) -> Path:
        """The folder of the event files and of the logs of the other processes."""
        return self.output / "evidence"

    @property
    def enriched(self) -> Path:
        """The enriched records, JSON lines."""
        return self.output / "enriched.jsonl"

    @property
    def picture(self) -> Path:
        """Throughput, in flight and lag over time."""
        return self.output / "demo.png"


def within(option: str, value: int, least: int, most: int) -> None:
    """Raise ConfigurationError unless least <= value <= most."""
    if not least <= value <= most:
        raise ConfigurationError(option, value, f"must be from {least} to {most:,}")
