"""``aioparallel bench``: its options and help. The code is imported when it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import Parameter

from aioparallel.cli.console import make_console, require_extra
from aioparallel.cli.meanings import means, of_dataclass
from aioparallel.config.handling import Handling
from aioparallel.event_loop.own_loop import own_runner
from aioparallel.records.errors import ConfigurationError

__all__ = ["BenchSettings", "bench"]

NEEDS: Final = ("confluent_kafka",)
EMBEDDED_RECORDS: Final = 30_000
"""Most records of a partition: the embedded broker keeps 5 MiB of each."""


@Parameter(name="*")
@means(of_dataclass(Handling), concurrency="max_concurrency")
@dataclass(frozen=True, kw_only=True, slots=True)
class BenchSettings:
    """What to measure. Raises ConfigurationError."""

    bootstrap_servers: Annotated[str | None, Parameter(env_var="AIOPARALLEL_BOOTSTRAP_SERVERS")] = None
    """Your brokers: host:port, several with commas. Not given: a broker in this process, without network and disk."""
    topic: str | None = None
    """A topic of yours to read with a temporary group, instead of a topic made for this. Needs your brokers."""
    records: int = 100_000
    """How many records to write, or at most to read."""
    keys: int = 1_000
    """How many different keys the records have, in equal shares. Your topic has its own."""
    partitions: int = 8
    """Partitions of the topic made for this."""
    handler_ms: float = 5.0
    """How long each handler sleeps, in milliseconds; 0 returns at once."""
    concurrency: int = 100
    share: bool = False
    """Measure a ShareConsumer, as the only member of a share group, in place of the ParallelConsumer. Needs your
    brokers, Kafka 4.2 or later."""

    def __post_init__(self) -> None:
        for name in ("records", "keys", "partitions", "concurrency"):
            if getattr(self, name) < 1:
                raise ConfigurationError(name, getattr(self, name), "must be 1 or more")
        if not 0 <= self.handler_ms <= 60_000:
            raise ConfigurationError("handler_ms", self.handler_ms, "must be from 0 to 60,000")
        if self.bootstrap_servers is None and self.topic is not None:
            raise ConfigurationError("topic", self.topic, "needs bootstrap_servers as well")
        if self.bootstrap_servers is None and self.share:
            raise ConfigurationError(
                "share",
                True,
                "needs bootstrap_servers as well: the broker in this process has no share groups, and `aioparallel "
                "broker --kafka` starts Apache Kafka, which has them",
            )
        most = EMBEDDED_RECORDS * self.partitions
        if self.bootstrap_servers is None and self.records > most:
            raise ConfigurationError("records", self.records, f"the embedded broker can keep only {most}")

    @property
    def consumer(self) -> str:
        """The class that is measured."""
        return "ShareConsumer" if self.share else "ParallelConsumer"


def bench(*, settings: BenchSettings = BenchSettings()) -> bool:
    """Measure aioparallel on your brokers next to a plain loop, and what limits it.

    Creates and fills a topic, and deletes it at the end; or reads one of yours with a temporary group. The handler
    sleeps instead of the call that yours makes. Then new records are sent at half of the measured rate, for latency and
    lag. The exit code is 1 if a record was lost, repeated, out of order in its key, or not committed; with `--share`,
    where there is no order, if one was lost, repeated, or not acknowledged.

    **Examples**

    - `aioparallel bench`: on a broker inside this process, in half a minute
    - `aioparallel bench --bootstrap-servers localhost:9092 --handler-ms 20 --concurrency 500`
    - `aioparallel bench --bootstrap-servers localhost:9092 --topic orders --records 50000`
    - `aioparallel bench --bootstrap-servers localhost:9092 --share`
    """
    require_extra("bench", NEEDS)
    from aioparallel.cli.bench.measuring import measure  # noqa: PLC0415 - brings the Kafka clients

    with own_runner() as runner:  # the event loop that consumers use
        return runner.run(measure(settings, make_console()))
