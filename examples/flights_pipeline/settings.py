"""Names and places."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aioparallel.errors import ConfigurationError
from examples.flights.flights import FLIGHTS, data_directory

__all__ = ["ENRICHED", "PARTITIONS", "PROJECT", "RAW", "SEEN", "WORK", "Settings"]

RAW: Final = "raw"
WORK: Final = "work"
ENRICHED: Final = "enriched"
SEEN: Final = "flights-seen"
"""Compacted: which flights of topic work are enriched, so that copies of them are left out."""
PARTITIONS: Final = 4
"""Of each topic: the same number in all of them, so that a key keeps the number of its partition."""

PROJECT: Final = Path(__file__).parent
"""Where the declared pipeline is."""


@dataclass(frozen=True)
class Settings:
    """The options of the command, and where its files go. Raises ConfigurationError, which names the option."""

    output: Path
    flights: int = FLIGHTS
    keep: bool = False
    per_trigger: int = 50_000
    """Records of a micro-batch: what Spark writes once more at most when it begins anew after a crash."""

    def __post_init__(self) -> None:
        if not 1 <= self.flights <= FLIGHTS:
            raise ConfigurationError("--flights", self.flights, f"must be from 1 to {FLIGHTS:,}")
        if "%" in self.storage.absolute().as_uri():
            raise ConfigurationError(
                "--output",
                str(self.output.absolute()),
                "has letters that a URI writes otherwise, as spaces, and Spark would keep its checkpoints in a "
                "directory of another name: name another directory",
            )

    @property
    def project(self) -> Path:
        """The declared pipeline as it is run: with the storage of this run in it."""
        return self.output / "project"

    @property
    def storage(self) -> Path:
        """Where the declared pipeline has its checkpoints."""
        return self.output / "storage"

    @property
    def checkpoint(self) -> Path:
        """Of its one flow: Spark names it by sink and flow."""
        return self.storage / "_checkpoints" / WORK / "to_work" / "0"

    @property
    def logs(self) -> Path:
        """What the other processes write."""
        return self.output / "logs"

    @property
    def delays(self) -> Path:
        """The result, Parquet: a row for each carrier and weather."""
        return self.output / "delays.parquet"

    @property
    def missing(self) -> Path:
        """The raw flights of each carrier that did not come through, Parquet: those that were cancelled."""
        return self.output / "missing.parquet"

    @property
    def picture(self) -> Path:
        """The plot."""
        return self.output / "delays.png"

    @property
    def airlines(self) -> Path:
        """Names of carriers, a CSV file."""
        return data_directory() / "airlines.csv"
