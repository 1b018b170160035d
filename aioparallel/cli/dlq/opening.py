"""A connection to a topic of dead letters: its partitions, where they begin and end, and its group."""

from __future__ import annotations

import inspect
import ssl
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from aiokafka import AIOKafkaConsumer

from aioparallel.cli.dlq.holding import HEARTBEAT_INTERVAL, REBALANCE_TIMEOUT, SESSION_TIMEOUT, Claim, Hold, one_holder
from aioparallel.cli.dlq.marks import Marks
from aioparallel.clients.aiokafka import AiokafkaClient
from aioparallel.errors import ConfigurationError, TopicNotFound
from aioparallel.group.client import Client, Span
from aioparallel.records import TopicPartition

__all__ = ["Access", "OpenTopic", "open_topic", "parse_client_options"]

CONNECT_TIMEOUT: Final = 10.0
REQUEST_TIMEOUT: Final = 30.0
STOP_TIMEOUT: Final = 5.0
MARKS_RETENTION: Final = 10 * 365 * 86_400.0
# Seconds. The last: Kafka forgets the offsets of a group without members after a week unless a commit says otherwise.


@dataclass(frozen=True, slots=True)
class Access:
    """How the cluster is reached, and the group that remembers what is settled.

    ``options``: options of ``aiokafka.AIOKafkaConsumer`` by their names there.
    """

    bootstrap_servers: str
    group: str
    options: Mapping[str, object]


class OpenTopic:
    """What is known of the topic when a command begins. ``marks`` are those of the group at that moment, ``hold`` is
    to be taken before they are changed.

    ``beginnings`` and ``ends`` are by partition: the first offset that is still there, and the offset behind the last
    one that is decided (no open transaction). What is written after that is left to the next command.
    """

    def __init__(
        self,
        topic: str,
        access: Access,
        marks: Marks,
        hold: Hold,
        beginnings: Mapping[int, int],
        ends: Mapping[int, int],
    ) -> None:
        self.topic = topic
        self.access = access
        self.marks = marks
        self.hold = hold
        self.beginnings = beginnings
        self.ends = ends

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


@asynccontextmanager
async def open_topic(topic: str, partitions: Collection[int], access: Access) -> AsyncIterator[OpenTopic]:
    """Connect; ``partitions`` narrows it to these numbers, none means all.

    Raises BrokerUnreachable, NotAuthorized, TopicNotFound, ConfigurationError for a partition that does not exist,
    and TimeoutError.
    """
    claim = Claim()
    ours = {"isolation_level": "read_committed", "partition_assignment_strategy": [one_holder(claim)]}
    # A static member would take the place of another one of its name, instead of waiting for it.
    given = {name: value for name, value in access.options.items() if name != "group_instance_id"}
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
        wanted = _wanted(found, topic, partitions)
        beginnings = await client.beginning_offsets(wanted, REQUEST_TIMEOUT)
        ends = await client.end_offsets(wanted, REQUEST_TIMEOUT)
        committed = await client.committed(wanted, REQUEST_TIMEOUT)
        marks = Marks(client, access.group, committed, beginnings, hold)
        yield OpenTopic(topic, access, marks, hold, _by_number(beginnings), _by_number(ends))
    finally:
        await hold.release()
        await client.stop(STOP_TIMEOUT)


def _wanted(found: set[TopicPartition], topic: str, numbers: Collection[int]) -> list[TopicPartition]:
    wanted = {TopicPartition(topic, number) for number in numbers} or found
    if missing := wanted - found:
        raise ConfigurationError(
            "--partition", min(missing).partition, f"{topic} has the partitions 0 to {len(found) - 1}"
        )
    return sorted(wanted)


def _by_number(offsets: Mapping[TopicPartition, int]) -> dict[int, int]:
    return {tp.partition: offset for tp, offset in sorted(offsets.items())}


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
            raise ConfigurationError("--client-option", text, "name=value, as in security_protocol=SASL_SSL")
        default = known[name].default if name in known else None
        options[name] = _typed(name, value, default)
    if str(options.get("security_protocol", "")).endswith("SSL"):
        options["ssl_context"] = ssl.create_default_context()
    return options


def _typed(name: str, value: str, default: object) -> object:
    if isinstance(default, bool):
        if value.lower() not in {"true", "false"}:
            raise ConfigurationError(f"--client-option {name}", value, "true or false")
        return value.lower() == "true"
    if isinstance(default, int):
        try:
            return int(value)
        except ValueError:
            raise ConfigurationError(f"--client-option {name}", value, "a whole number") from None
    return value
