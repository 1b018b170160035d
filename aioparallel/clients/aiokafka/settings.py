"""Turns options into a configured consumer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Final, cast

from aiokafka import AIOKafkaConsumer
from aiokafka.conn import collect_hosts
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from aioparallel.clients.aiokafka.checking import (
    MOST,
    REBOOTSTRAP_AFTER,
    GivenOptions,
    check_connection,
    rebootstrap_after,
)
from aioparallel.clients.aiokafka.internals import Consumer
from aioparallel.records.errors import ConfigurationError

__all__ = ["ConsumerSettings", "built", "check_servers", "connection_options", "option_names"]

_PRODUCERS: Final = "it is an option of the producer: use producing=Producing(client_options=...)"
_OURS: Final[Mapping[str, str]] = {
    "acks": "leave it out, it is an option of Producing, and always all there",
    "api_version": "leave it out, aiokafka ignores it and asks each broker",
    "auto_commit_interval_ms": "leave it out, offsets are committed as records are completed",
    "auto_offset_reset": "use auto_offset_reset of the consumer",
    "compression_type": _PRODUCERS,
    "bootstrap_servers": "use bootstrap_servers of the consumer",
    "consumer_timeout_ms": "leave it out, nothing polls",
    "enable_auto_commit": "leave it out, offsets are committed as records are completed",
    "group_id": "use group_id of the consumer",
    "group_protocol": "use group_protocol of the consumer",
    "group_remote_assignor": "use group_remote_assignor of the consumer",
    "heartbeat_interval_ms": "use heartbeat_interval (seconds)",
    "key_deserializer": "leave it out, decode record.key in the handler",
    "linger_ms": _PRODUCERS,
    "loop": "leave it out, the consumer runs on the loop that starts it",
    "max_batch_size": _PRODUCERS,
    "max_poll_interval_ms": "leave it out, a slow handler does not cost the membership; use a handler timeout",
    "max_poll_records": "leave it out, use max_buffered",
    "max_request_size": _PRODUCERS,
    "partitioner": _PRODUCERS,
    "rebalance_timeout_ms": "use rebalance_timeout (seconds)",
    "session_timeout_ms": "use session_timeout (seconds)",
    "value_deserializer": "leave it out, decode record.value in the handler",
}
"""aiokafka's options that users cannot set, and what to use instead."""

_NEVER_MS: Final = MOST
"""24.8 days: the longest poll interval of the protocol. ``client.py`` prevents that it ever expires."""

FETCH_MAX_WAIT_MS: Final = 20
FETCH_MAX_BYTES: Final = 4 * 1024 * 1024
"""Largest response in bytes. aiokafka reads a response at once: with 500 partitions and its default of 50 MiB, a
response of 20 MB held the loop for 30 ms; with this limit it is 8 to 10 ms."""
PREFETCH_BACKOFF: Final = 0.005
"""The default of ``fetch_max_wait_ms``: milliseconds that the broker holds a fetch without data. And seconds for which
a partition with unread data delays the fetches of others.

Only one fetch per broker is in flight, so the others wait for it. Measured with 8 partitions of which one was busy, at
40,000 records/s: 39,003 records/s with these two, 14,554 with aiokafka's 500 ms and 0.1 s."""


class ConsumerSettings:
    """Everything that the consumer is made with, checked before anything connects. Times in seconds.

    ``client_options`` are passed to aiokafka unchanged: TLS, SASL, ``isolation_level``, fetch sizes and so on. Options
    that would contradict this package's raise ConfigurationError.

    The default assignor is ``range``, which the Java, librdkafka and kafka-python clients offer by default. So members
    of both kinds can share a group while one replaces the other. ``partition_assignment_strategy`` sets another one. It
    must be exactly one, because aiokafka joins the group once for each.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        group_id: str,
        *,
        session_timeout: float,
        heartbeat_interval: float,
        rebalance_timeout: float,
        client_options: Mapping[str, object],
        group_protocol: str = "classic",
        remote_assignor: str | None = None,
    ) -> None:
        check_servers(bootstrap_servers)
        given = GivenOptions(client_options, lambda _name: "client_options")
        given.names(option_names(AIOKafkaConsumer) | {REBOOTSTRAP_AFTER}, _OURS)
        check_connection(given)
        _check_fetching(given)
        _check_durations(session_timeout, heartbeat_interval, rebalance_timeout)
        self.bootstrap_servers = bootstrap_servers
        self.group_id = group_id
        self.group_protocol = group_protocol
        self.remote_assignor = remote_assignor
        self.instance_id = cast("str | None", client_options.get("group_instance_id"))
        self.rack = cast("str | None", client_options.get("client_rack"))
        self.session_timeout = session_timeout
        self.rebalance_timeout = rebalance_timeout
        self.retry_backoff = given.number("retry_backoff_ms", 100) / 1000
        self.fetch_wait = given.number("fetch_max_wait_ms", FETCH_MAX_WAIT_MS) / 1000
        self.rebootstrap_after = rebootstrap_after(given)
        self.prefetch_backoff = None if "fetch_max_wait_ms" in client_options else PREFETCH_BACKOFF
        self.options: dict[str, object] = {
            "client_id": "aioparallel",
            "fetch_max_bytes": FETCH_MAX_BYTES,
            "fetch_max_wait_ms": FETCH_MAX_WAIT_MS,
            **{name: value for name, value in client_options.items() if name != REBOOTSTRAP_AFTER},
            "auto_offset_reset": "none",
            "bootstrap_servers": bootstrap_servers,
            "enable_auto_commit": False,
            "group_id": group_id,
            "heartbeat_interval_ms": round(heartbeat_interval * 1000),
            "max_poll_interval_ms": _NEVER_MS,
            "partition_assignment_strategy": (_assignor(client_options),),
            "rebalance_timeout_ms": round(rebalance_timeout * 1000),
            "session_timeout_ms": round(session_timeout * 1000),
        }

    def build(self) -> Consumer:
        """A consumer that has not connected yet and must be closed. Needs a running loop."""
        options = self.options
        if self.group_protocol != "classic":
            # Otherwise aiokafka would join the group itself.
            options = {**options, "group_id": None, "group_instance_id": None}
        return cast("Consumer", built(AIOKafkaConsumer, options, "client_options"))


def built(kind: Callable[..., object], options: Mapping[str, object], place: str) -> object:
    """An object of aiokafka with these options. ``place``: where they were given.

    Raises ConfigurationError if aiokafka refuses a value of them."""
    try:
        return kind(**options)
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigurationError(place, sorted(options), f"aiokafka refused a value of them: {error}") from error


def connection_options(options: Mapping[str, object]) -> dict[str, object]:
    """The options of a single connection: client id, TLS and SASL."""
    given = {
        name: value
        for name, value in options.items()
        if name.startswith("sasl_") or name in {"client_id", "security_protocol", "ssl_context"}
    }
    # The default of aiokafka's clients, which its connections lack.
    return {"sasl_mechanism": "PLAIN", **given}


def check_servers(bootstrap_servers: str) -> None:
    """Raise ConfigurationError unless it is comma-separated ``host:port``."""
    if "://" in bootstrap_servers:
        raise ConfigurationError(
            "bootstrap_servers",
            bootstrap_servers,
            '"host:port" without a scheme such as http://: brokers speak Kafka\'s own protocol; TLS is an option of '
            "security",
        )
    try:
        valid = all(host.encode("idna") and 0 < port < 65_536 for host, port, _ in collect_hosts(bootstrap_servers))
    except ValueError:
        valid = False
    if not valid:
        raise ConfigurationError(
            "bootstrap_servers", bootstrap_servers, '"host:port", or several of them separated by commas'
        )


def option_names(kind: type) -> frozenset[str]:
    """The names of the options of a class of aiokafka."""
    return frozenset(inspect.signature(kind.__init__).parameters) - {"self", "topics"}  # type: ignore[misc]


def _check_fetching(given: GivenOptions) -> None:
    given.one_of(
        "isolation_level", ("read_uncommitted", "read_committed"), 'use "read_uncommitted" or "read_committed"'
    )
    given.number("fetch_max_wait_ms", FETCH_MAX_WAIT_MS, whole=True)
    given.number("fetch_max_bytes", FETCH_MAX_BYTES, least=1, whole=True)
    given.number("fetch_min_bytes", 1, whole=True)
    given.number("max_partition_fetch_bytes", 1, least=1, whole=True)
    for name in ("group_instance_id", "client_rack"):
        given.text(name, may_be_empty=False)
    for name in ("check_crcs", "exclude_internal_topics"):
        given.truth(name)


def _check_durations(session_timeout: float, heartbeat_interval: float, rebalance_timeout: float) -> None:
    for name, value in (
        ("session_timeout", session_timeout),
        ("heartbeat_interval", heartbeat_interval),
        ("rebalance_timeout", rebalance_timeout),
    ):
        if not 0 < value * 1000 <= _NEVER_MS:
            raise ConfigurationError(name, value, "seconds, more than 0 and at most 24 days")
    if heartbeat_interval >= session_timeout:
        raise ConfigurationError(
            "heartbeat_interval",
            heartbeat_interval,
            f"less than session_timeout={session_timeout:g} s, a third of it at most to be safe",
        )


def _assignor(options: Mapping[str, object]) -> object:
    name = "partition_assignment_strategy"
    given = options.get(name, (RangePartitionAssignor,))
    if not isinstance(given, list | tuple) or len(given) != 1:
        raise ConfigurationError(
            f"client_options[{name!r}]", given, "a sequence of exactly one assignor of aiokafka: it joins once for each"
        )
    assignor = given[0]
    if isinstance(assignor, type) and issubclass(assignor, StickyPartitionAssignor):
        # The assignor stores this member's partitions on its class, so two consumers in a process need two classes.
        return type(assignor.__name__, (assignor,), {"member_assignment": None, "generation": -1})
    return assignor
