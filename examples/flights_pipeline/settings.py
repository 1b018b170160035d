"""Names and paths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aioparallel import ConfigurationError
from examples.flights.flights import FLIGHTS, data_directory

__all__ = ["ENRICHED", "PARTITIONS", "PROJECT", "RAW", "SEEN", "WORK", "Settings"]

RAW: Final = "raw"
WORK: Final = "work"
ENRICHED: Final = "enriched"
SEEN: Final = "flights-seen"
"""A compacted topic: which flights of topic work are enriched, so that copies are left out."""
PARTITIONS: Final = 4
"""Partitions of each topic: the same number, so that a key keeps its partition number."""

PROJECT: Final = Path(__file__).parent
"""The folder of the declared pipeline."""


@dataclass(frozen=True)
class Settings:
    """The options of the command, and the paths of its files. Raises ConfigurationError."""

    output: Path
    flights: int = FLIGHTS
    keep: bool = False
    per_trigger: int = 50_000
    """Records in a micro-batch, which is what Spark repeats at most after a crash."""

    def __post_init__(self) -> None:
        if not 1 <= self.flights <= FLIGHTS:
            raise ConfigurationError("--flights", self.flights, f"must be from 1 to {FLIGHTS:,}")
        if "%" in self.storage.absolute().as_uri():
            raise ConfigurationError(
                "--output",
                str(self.output.absolute()),
                "has characters that URIs encode, such as spaces, so Spark would keep its checkpoints in a directory "
                "of another name: choose another directory",
            )

    @property
    def project(self) -> Path:
        """The declared pipeline with the settings of this run."""
        return self.output / "project"

    @property
    def storage(self) -> Path:
        """The declared pipeline's checkpoints."""
        return self.output / "storage"

    @property
    def checkpoint(self) -> Path:
        """The checkpoint of its one flow: Spark names it by sink and flow."""
        return self.storage / "_checkpoints" / WORK / "to_work" / "0"

    @property
    def logs(self) -> Path:
        """Output of the other processes."""
        return self.output / "logs"

    @property
    def delays(self) -> Path:
        """The result as Parquet: a row for each carrier and weather."""
        return self.output / "delays.parquet"

    @property
    def missing(self) -> Path:
        """The number of raw flights without a result, by carrier, as Parquet: those that were cancelled."""
        return self.output / "missing.parquet"

    @property
    def picture(self) -> Path:
        """The plot."""
        return self.output / "delays.png"

    @property
    def airlines(self) -> Path:
        """A CSV file with names of carriers."""
        return data_directory() / "airlines.csv"
