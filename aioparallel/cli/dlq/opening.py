"""A connection to a topic of dead letters: its partitions, where they begin and end, and its group."""

from __future__ import annotations

import inspect
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from aiokafka import AIOKafkaConsumer

from aioparallel.cli.dlq.holding import HEARTBEAT_INTERVAL, REBALANCE_TIMEOUT, SESSION_TIMEOUT, Claim, Hold, one_holder
from aioparallel.cli.dlq.marks import Marks
from aioparallel.cli.dlq.options import Access
from aioparallel.cli.security import Secure
from aioparallel.clients.aiokafka import AiokafkaClient
from aioparallel.errors import ConfigurationError, TopicNotFound
from aioparallel.group.client import Client, Fetched, Span
from aioparallel.records import TopicPartition
from aioparallel.security.secret import Hidden

__all__ = [
    "CONNECT_TIMEOUT",
    "REQUEST_TIMEOUT",
    "STOP_TIMEOUT",
    "OpenTopic",
    "connecting_options",
    "open_topic",
    "parse_client_options",
]

CONNECT_TIMEOUT: Final = 10.0
REQUEST_TIMEOUT: Final = 30.0
STOP_TIMEOUT: Final = 5.0
MARKS_RETENTION: Final = 10 * 365 * 86_400.0
# Seconds. The last: Kafka forgets the offsets of a group without members after a week unless a commit says otherwise.


@dataclass(frozen=True, slots=True)
class OpenTopic:
    """What is known of the topic when a command begins. ``marks`` are those of the group at that moment, ``hold`` is
    to be taken before they are changed.

    ``beginnings`` and ``ends`` are by partition: the first offset that is still there, and the offset behind the last
    one that is decided (no open transaction). What is written after that is left to the next command.
    ``options``: of aiokafka's consumer, as they were given.
    """

    name: str
    client: Client
    options: Mapping[str, object]
    marks: Marks
    hold: Hold
    beginnings: Mapping[int, int]
    ends: Mapping[int, int]

    def spans(self, *, settled_too: bool, within: Span | None = None) -> dict[int, Span]:
        """What to read of each partition: everything, or from the first letter on that may be open.

        ``within`` narrows it to some offsets.
        """
        spans = {}
        for number, end in self.ends.items():
            start = self.beginnings[number]
            if not settled_too:
                start = max(start, self.marks[number].base)
            narrowed = Span(start, end) if within is None else Span(max(start, within.start), min(end, within.end))
            spans[number] = Span(narrowed.start, max(narrowed))
        return spans

    def read(self, spans: Mapping[int, Span]) -> aclosing[AsyncGenerator[Fetched, None]]:
        """The records of these spans; ``async with`` closes the connection."""
        return aclosing(self.client.read({TopicPartition(self.name, number): span for number, span in spans.items()}))


@asynccontextmanager
async def open_topic(topic: str, partitions: Collection[int], access: Access) -> AsyncIterator[OpenTopic]:
    """Connect; ``partitions`` narrows it to these numbers, none means all.

    Raises BrokerUnreachable, AuthenticationFailed, NotAuthorized, TopicNotFound, ConfigurationError for a wrong option
    or a partition that does not exist, and TimeoutError.
    """
    options, claim = connecting_options(access), Claim()
    ours = {"isolation_level": "read_committed", "partition_assignment_strategy": [one_holder(claim)]}
    # A static member would take the place of another one of its name, instead of waiting for it.
    given = {name: value for name, value in options.items() if name != "group_instance_id"}
    client: Client = AiokafkaClient(
        access.bootstrap_servers,
        access.group,
        session_timeout=SESSION_TIMEOUT,
        heartbeat_interval=HEARTBEAT_INTERVAL,
        rebalance_timeout=REBALANCE_TIMEOUT,
        client_options={**given, **ours},
        offset_retention=MARKS_RETENTION,
    )
    hold = Hold(client, topic, access.group, claim)
    try:
        await client.start(CONNECT_TIMEOUT)
        found = await client.partitions([topic], REQUEST_TIMEOUT)
        if not found:
            raise TopicNotFound([topic], access.bootstrap_servers)
        wanted = sorted({TopicPartition(topic, number) for number in partitions} or found)
        if missing := set(wanted) - found:
            raise ConfigurationError(
                "partition", min(missing).partition, f"{topic} has the partitions 0 to {len(found) - 1}"
            )
        beginnings = await client.beginning_offsets(wanted, REQUEST_TIMEOUT)
        ends = await client.end_offsets(wanted, REQUEST_TIMEOUT)
        committed = await client.committed(wanted, REQUEST_TIMEOUT)
        marks = Marks(client, access.group, committed, beginnings, hold)
        by_number = ({tp.partition: offsets[tp] for tp in wanted} for offsets in (beginnings, ends))
        yield OpenTopic(topic, client, options, marks, hold, *by_number)
    finally:
        await hold.release()
        await client.stop(STOP_TIMEOUT)


class Reached(Protocol):
    """How a cluster is reached, as any command was told."""

    @property
    def client_options(self) -> tuple[str, ...]:
        """``name=value`` each."""

    @property
    def secure(self) -> Secure:
        """TLS and a login."""


def connecting_options(access: Reached) -> dict[str, object]:
    """``client_options``, with what is said of security. Raises ConfigurationError where both say something of that."""
    options, security = parse_client_options(access.client_options), access.secure.security()
    if security is None:
        return options
    for name in options:
        if name.startswith("sasl_") or name in ("security_protocol", "ssl_context"):
            raise ConfigurationError(
                f"client_options[{name!r}]", Hidden(options[name]), "cannot stand beside security_protocol"
            )
    return {**options, **security.client_options()}


def parse_client_options(texts: Sequence[str]) -> dict[str, object]:
    """``name=value`` each, the value in the type that aiokafka's own default has.

    With ``security_protocol`` SSL or SASL_SSL a default TLS context is added: certificates are verified against the
    system's authorities, or those that the environment variable SSL_CERT_FILE names. Raises ConfigurationError.
    """
    known = inspect.signature(AIOKafkaConsumer.__init__).parameters
    options: dict[str, object] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise ConfigurationError("client_options", text, "name=value, as in security_protocol=SASL_SSL")
        options[name] = _typed(name, value, known[name].default if name in known else None)
    if str(options.get("security_protocol", "")).endswith("SSL"):
        options["ssl_context"] = ssl.create_default_context()
    return options


def _typed(name: str, value: str, default: object) -> object:
    option = f"client_options[{name!r}]"
    if isinstance(default, bool):
        if value.lower() not in {"true", "false"}:
            raise ConfigurationError(option, value, "true or false")
        return value.lower() == "true"
    if isinstance(default, int):
        try:
            return int(value)
        except ValueError:
            raise ConfigurationError(option, value, "a whole number") from None
    return value
