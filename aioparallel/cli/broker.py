"""``aioparallel broker``: a broker to try things out, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import Parameter
from cyclopts.validators import Number

from aioparallel.cli.cluster import Cluster
from aioparallel.cli.console import make_console
from aioparallel.jvm.sets import KAFKA_VERSION
from aioparallel.records.errors import BrokerStartError, ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

    from aioparallel.testing import Broker

__all__ = ["broker"]

Forward = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


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
    kafka_version: Annotated[str | None, Parameter(metavar="VERSION")] = None
    """With --kafka: its version, if not that of the package. Maven fetches it the first time."""
    port: Annotated[int, Parameter(validator=Number(gte=0, lt=65_536))] = 9092
    """The port at which clients connect; 0: a free one."""

    def __post_init__(self) -> None:
        self.topics()
        if self.kafka_version is not None and not self.kafka:
            raise ConfigurationError("kafka_version", self.kafka_version, "needs --kafka")

    def topics(self) -> list[NewTopic]:
        """The parsed ``topic`` options."""
        return [NewTopic.of(text) for text in self.topic]


async def broker(*, options: BrokerOptions = BrokerOptions()) -> None:
    """Run a broker to try things out, until Ctrl-C: librdkafka's mock cluster, without Java and without Docker.

    It prints its address, and commands to copy into other terminals. The variable AIOPARALLEL_BOOTSTRAP_SERVERS is for
    these commands only: a program passes the address as bootstrap_servers. Topics and records are gone when it ends.

    Workers with a session_timeout, a heartbeat_interval, a group_instance_id, an assignor of clients or a pattern of
    topics have the classic group protocol. The mock cluster cannot share partitions among several of these, and one
    that is started again waits up to 30 s. `--kafka` has no such limits. The documentation has the others (Testing).

    **Examples**

    - `aioparallel broker --topic orders:8 --topic orders.dlq`
    - `aioparallel broker --kafka --port 9092 --topic orders:8`
    """
    from aioparallel.event_loop.loop import stopping_signals  # noqa: PLC0415 - not for help

    console, stop = make_console(), asyncio.Event()
    async with new_broker(options, console) as started, AsyncExitStack() as stack:
        servers = started.bootstrap_servers
        if options.port and not options.kafka:
            servers = await stack.enter_async_context(forwarding(options.port, servers))
        for topic in options.topics():
            configs = {"cleanup.policy": "compact"} if topic.is_compacted and options.kafka else None
            await started.create_topic(topic.name, topic.partitions, configs)
        with stopping_signals(asyncio.get_running_loop(), stop.set):
            console.print(introduction(options, servers), highlight=False, soft_wrap=True, markup=False)
            await stop.wait()


def new_broker(options: BrokerOptions, console: Console) -> Broker:
    """The broker, not started yet. Raises BrokerStartError if the port of Apache Kafka is in use."""
    from aioparallel.testing import EmbeddedBroker, LocalKafka  # noqa: PLC0415 - not for help
    from aioparallel.testing.brokers.ports import is_free  # noqa: PLC0415 - not for help

    if not options.kafka:
        return EmbeddedBroker()
    if options.port and not is_free(options.port):
        raise _port_error(options.port, os.strerror(errno.EADDRINUSE).lower())
    version = options.kafka_version or KAFKA_VERSION
    return LocalKafka(version=version, port=options.port or None, report=console.print)


@asynccontextmanager
async def forwarding(port: int, servers: str) -> AsyncIterator[str]:
    """Forward connections at ``port`` of this machine to ``servers``, and yield the address.

    The mock cluster chooses its port itself. Clients need the fixed one for their first connection only: the mock
    cluster's metadata has its own port. Raises BrokerStartError if the port is in use.
    """
    host, _, target = servers.rpartition(":")

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            to_reader, to_writer = await asyncio.open_connection(host, int(target))
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_copy(reader, to_writer))
                    both.create_task(_copy(to_reader, writer))
            finally:
                to_writer.close()
        writer.close()

    async with AsyncExitStack() as stack:
        try:
            for server in await _listening(forward, port):
                stack.callback(server.close)
        except OSError as error:
            raise _port_error(port, error.strerror or str(error)) from error
        yield f"localhost:{port}"


def _port_error(port: int, reason: str) -> BrokerStartError:
    return BrokerStartError(f"port {port}: {reason}; --port chooses another one, --port 0 a free one")


async def _listening(forward: Forward, port: int) -> list[asyncio.Server]:
    """Servers at the addresses of localhost that this machine has. Containers without IPv6 often name ``::1`` too, and
    asyncio gives up at the first address that cannot be bound. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo("localhost", port, type=socket.SOCK_STREAM)
    servers: list[asyncio.Server] = []
    missing: OSError | None = None
    for address in dict.fromkeys(str(place[0]) for *_, place in found):
        try:
            servers.append(await asyncio.start_server(forward, address, port))
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                for server in servers:
                    server.close()
                raise
            missing = error
    if missing is not None and not servers:
        raise missing
    return servers


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


def introduction(options: BrokerOptions, servers: str) -> str:
    """The address, and lines to copy."""
    name = f"Apache Kafka {options.kafka_version or KAFKA_VERSION}" if options.kafka else "The embedded broker"
    topics = options.topics()
    listed = f", with {', '.join(map(str, topics))}" if topics else ""
    # The mock cluster keeps a member that has left until its session times out.
    limits = (
        ""
        if options.kafka
        else " A group whose workers have the classic group protocol (with a session_timeout, a heartbeat_interval, a "
        "group_instance_id, an assignor of clients or a pattern of topics) has one worker here, and one that is "
        "started again waits up to 30 s. --kafka, which is Apache Kafka, has no such limits."
    )
    is_default = servers == Cluster().bootstrap_servers
    export = "" if is_default else f"    export AIOPARALLEL_BOOTSTRAP_SERVERS={servers}\n"
    topic = topics[0].name if topics else "TOPIC"
    return (
        f"{name} runs at {servers}{listed}. Ctrl-C ends it, and its records are gone then.{limits}\n"
        f'Programs connect with bootstrap_servers="{servers}". The commands, in other terminals:\n\n{export}'
        f"    echo 'a key:a value' | aioparallel produce {topic} --key-separator :\n"
        f"    aioparallel consume {topic} --follow\n"
    )
