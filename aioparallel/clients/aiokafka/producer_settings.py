"""Turns options into connections for a producer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.client import AIOKafkaClient

from aioparallel.clients.aiokafka.checking import (
    REBOOTSTRAP_AFTER,
    GivenOptions,
    check_connection,
    rebootstrap_after,
)
from aioparallel.clients.aiokafka.internals import Connections
from aioparallel.clients.aiokafka.settings import built, check_servers, option_names
from aioparallel.clients.producing.topic import Partitioner
from aioparallel.records.errors import ConfigurationError

__all__ = ["MAX_BATCH_SIZE", "ProducerSettings", "check_producers_connection"]

MAX_BATCH_SIZE: Final = 64 * 1024
"""Largest batch in bytes; aiokafka's default is 16 KiB."""
MAX_REQUEST_SIZE: Final = 1024 * 1024
_REQUEST_TIMEOUT_MS: Final = 30_000

_OURS: Final[Mapping[str, str]] = {
    "acks": "leave it out, it is always all",
    "api_version": "leave it out, aiokafka ignores it and asks each broker",
    "bootstrap_servers": "use bootstrap_servers of the consumer",
    "delivery_timeout_ms": "use delivery_timeout of Producing (seconds)",
    "enable_idempotence": "leave it out, it is always on",
    "key_serializer": "leave it out, give the bytes to Outgoing",
    "loop": "leave it out, the producer runs on the loop that uses it first",
    "transaction_timeout_ms": "use commits=Transactions(transaction_timeout=...) of the consumer (seconds)",
    "transactional_id": "use commits=Transactions(id_prefix=...) of the consumer; the rest is given to each member",
    "value_serializer": "leave it out, give the bytes to Outgoing",
}
"""aiokafka's options that users cannot set, and what to use instead."""

_OWN: Final = "Producing client_options"
"""The place of the producer's own options in messages."""

_PRODUCING: Final = frozenset({"compression_type", "linger_ms", "max_batch_size", "max_request_size", "partitioner"})
"""Options for the producer rather than its connections."""

_CODECS: Final = (None, "gzip", "snappy", "lz4", "zstd")


def check_producers_connection(client_options: Mapping[str, object]) -> None:
    """Raise ConfigurationError for the name of an option that a producer's connections do not have. How it produces is
    said in ``Producing``."""
    elsewhere = dict.fromkeys(_PRODUCING, "use producing=Producing(client_options=...)")
    known = option_names(AIOKafkaProducer) | {REBOOTSTRAP_AFTER}
    GivenOptions(client_options, lambda _name: "client_options").names(known, {**_OURS, **elsewhere})


class ProducerSettings:
    """Everything that a producer is made with, checked before anything connects. Times in seconds, sizes in bytes.

    ``consumer_options``: the options about connections (TLS, SASL, ``client_id``, timeouts) are used.
    ``producer_options``: aiokafka's producer options by their names, which take precedence.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        delivery_timeout: float,
        consumer_options: Mapping[str, object],
        producer_options: Mapping[str, object],
    ) -> None:
        check_servers(bootstrap_servers)
        if not 0 < delivery_timeout <= 86_400 * 24:
            raise ConfigurationError("delivery_timeout", delivery_timeout, "seconds, more than 0 and at most 24 days")
        known = option_names(AIOKafkaProducer) | {REBOOTSTRAP_AFTER}
        given = GivenOptions(producer_options, lambda _name: _OWN)
        given.names(known, _OURS)
        self.bootstrap_servers = bootstrap_servers
        self.delivery_timeout = delivery_timeout
        given.one_of("compression_type", _CODECS, "gzip, snappy, lz4, zstd, or None")
        self.compression = cast("str | None", producer_options.get("compression_type"))
        self.partitioner = _partitioner(producer_options)
        self.linger = given.number("linger_ms", 0) / 1000
        self.batch_bytes = int(given.number("max_batch_size", MAX_BATCH_SIZE, least=1))
        self.request_bytes = int(given.number("max_request_size", MAX_REQUEST_SIZE, least=1))
        of_consumer = {
            name: value
            for name, value in consumer_options.items()
            if name in known & (option_names(AIOKafkaConsumer) | {REBOOTSTRAP_AFTER}) and name not in _OURS
        }
        own = {name: value for name, value in producer_options.items() if name not in _PRODUCING}
        self._options: dict[str, object] = {"client_id": "aioparallel", **of_consumer, **own}
        merged = GivenOptions(self._options, lambda name: _OWN if name in producer_options else "client_options")
        check_connection(merged)
        self.rebootstrap_after = rebootstrap_after(merged)
        self.retry_backoff = merged.number("retry_backoff_ms", 100) / 1000
        timeout = merged.number("request_timeout_ms", _REQUEST_TIMEOUT_MS, least=1) / 1000
        self.request_timeout = self._request_timeout(timeout, producer_options)
        self._options.pop(REBOOTSTRAP_AFTER, None)
        self._options["bootstrap_servers"] = bootstrap_servers
        self._options["request_timeout_ms"] = round(self.request_timeout * 1000)

    def build(self) -> Connections:
        """Connections that are not connected yet, and must be closed. Needs a running loop."""
        return cast("Connections", built(AIOKafkaClient, self._options, _OWN))

    def _request_timeout(self, timeout: float, producer_options: Mapping[str, object]) -> float:
        """The request timeout. The producer's own option must not exceed ``delivery_timeout``; others are reduced."""
        if "request_timeout_ms" in producer_options and timeout > self.delivery_timeout:
            raise ConfigurationError(
                f"{_OWN}['request_timeout_ms']",
                producer_options["request_timeout_ms"],
                f"at most delivery_timeout={self.delivery_timeout:g} s, after which no answer is waited for",
            )
        return max(0.001, min(timeout, self.delivery_timeout))


def _partitioner(options: Mapping[str, object]) -> Partitioner | None:
    value = options.get("partitioner")
    if value is not None and not callable(value):
        raise ConfigurationError(
            f"{_OWN}['partitioner']",
            value,
            "a function of the key, all partitions and those with a leader",
        )
    return cast("Partitioner | None", value)
