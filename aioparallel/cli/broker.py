"""``aioparallel broker``: a broker to try things out, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import Parameter

from aioparallel.cli.console import make_console
from aioparallel.records.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

    from aioparallel.testing import Broker

__all__ = ["broker"]


class NewTopic(NamedTuple):
    """A topic to create at the start."""

    name: str
    partitions: int
    is_compacted: bool = False

    def __str__(self) -> str:
        compacted = ", compacted" if self.is_compacted else ""
        return f"{self.name} ({self.partitions} partition{'s' if self.partitions > 1 else ''}{compacted})"

    @classmethod
    def of(cls, text: str) -> NewTopic:
        """Parses ``orders``, ``orders:8`` or ``orders:8:compact``."""
        from aioparallel.clients.producing.topic import is_topic_name  # noqa: PLC0415 - brings the Kafka clients

        name, *rest = text.split(":")
        is_compacted = rest[1:] == ["compact"]
        is_right = not rest or (rest[0].isdecimal() and int(rest[0]) > 0 and (is_compacted or not rest[1:]))
        if not is_topic_name(name) or not is_right:
            raise ConfigurationError("topic", text, "must be name or name:partitions, as in orders:8 or seen:8:compact")
        return cls(name, int(rest[0]) if rest else 1, is_compacted)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Options of the broker. Raises ConfigurationError."""

    topic: Annotated[tuple[str, ...], Parameter(metavar="NAME:PARTITIONS")] = ()
    """A topic to create: `name`, `name:partitions` or `name:partitions:compact`; one partition by default. Repeatable.
    The embedded broker does not compact."""
    kafka: bool = False
    """Apache Kafka as a local process, instead of the embedded broker; needs Java, and Maven the first time."""
    port: int | None = None
    """With --kafka: its port; a free one if not given. The embedded broker always uses a free one."""

    def __post_init__(self) -> None:
        if self.port is not None and not self.kafka:
            raise ConfigurationError("port", self.port, "the embedded broker takes a free port; add --kafka")
        self.topics()

    def topics(self) -> list[NewTopic]:
        """The parsed ``topic`` options."""
        return [NewTopic.of(text) for text in self.topic]


async def broker(*, options: BrokerOptions = BrokerOptions()) -> None:
    """Run a broker to try things out, until Ctrl-C: librdkafka's mock cluster, without Java and without Docker.

    It prints its address, and a line to copy into other terminals. Its topics and records are gone when it ends. Its
    limits are in docs/testing.md: a group has one member, for example.

    **Examples**

    - `aioparallel broker --topic orders:8 --topic orders.dlq`
    - `aioparallel broker --kafka --port 9092 --topic orders:8`
    """
    from aioparallel.event_loop.loop import stopping_signals  # noqa: PLC0415 - not for help

    console, stop = make_console(), asyncio.Event()
    async with new_broker(options, console) as started:
        for topic in options.topics():
            configs = {"cleanup.policy": "compact"} if topic.is_compacted and options.kafka else None
            await started.create_topic(topic.name, topic.partitions, configs)
        with stopping_signals(asyncio.get_running_loop(), stop.set):
            console.print(introduction(options, started.bootstrap_servers), highlight=False, soft_wrap=True)
            await stop.wait()


def new_broker(options: BrokerOptions, console: Console) -> Broker:
    """The broker, not started yet."""
    from aioparallel.testing import EmbeddedBroker, LocalKafka  # noqa: PLC0415 - not for help

    return LocalKafka(port=options.port, report=console.print) if options.kafka else EmbeddedBroker()


def introduction(options: BrokerOptions, servers: str) -> str:
    """The address, and a line to copy."""
    name = "Apache Kafka" if options.kafka else "The embedded broker"
    topics = ", ".join(map(str, options.topics()))
    # The mock cluster keeps a member that has left until its session times out.
    again = "" if options.kafka else " A consumer that is started again waits for its partitions up to 30 s."
    return (
        f"{name} runs at {servers}{f', with {topics}' if topics else ''}. "
        f"Ctrl-C ends it, and its records are gone then.{again}\n"
        "For other terminals:\n\n"
        f"    export AIOPARALLEL_BOOTSTRAP_SERVERS={servers}\n"
    )
