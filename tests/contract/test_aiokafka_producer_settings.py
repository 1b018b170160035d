"""The options of AiokafkaProducer: which are refused, and which are taken from the consumer."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from aioparallel.clients.aiokafka.connector import options_of
from aioparallel.clients.aiokafka.producer_settings import ProducerSettings
from aioparallel.records.errors import ConfigurationError


def settings(
    producer_options: Mapping[str, object] | None = None,
    consumer_options: Mapping[str, object] | None = None,
    delivery_timeout: float = 120.0,
) -> ProducerSettings:
    return ProducerSettings(
        "host:9092",
        delivery_timeout=delivery_timeout,
        consumer_options=consumer_options or {},
        producer_options=producer_options or {},
    )


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("acks", 1, "it is always all"),
        ("delivery_timeout_ms", 1000, "use delivery_timeout of Producing (seconds)"),
        ("enable_idempotence", False, "it is always on"),
        ("transactional_id", "me", "id_prefix"),
        ("bootstrap_servers", "other:9092", "use bootstrap_servers of the consumer"),
        ("value_serializer", str, "give the bytes"),
        ("loop", None, "leave it out"),
        ("api_version", "auto", "leave it out"),
        ("compresion_type", "gzip", "no such option; did you mean 'compression_type'?"),
        ("compression_type", "rar", "gzip, snappy, lz4, zstd"),
        ("max_batch_size", 0, "bytes, 1 to 2,147,483,647"),
        ("max_request_size", "1", "bytes, 1 to 2,147,483,647"),
        ("linger_ms", -1, "milliseconds, 0 to"),
        ("partitioner", 3, "a function of the key"),
        ("request_timeout_ms", 200_000, "at most delivery_timeout=120 s"),
    ],
)
def test_wrong_options_are_named(name: str, value: object, advice: str) -> None:
    """With the value, and what to do."""
    with pytest.raises(ConfigurationError, match=re.escape(f"Producing client_options[{name!r}]={value!r}")) as error:
        settings({name: value})
    assert advice in str(error.value)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_the_delivery_timeout_is_a_time(timeout: float) -> None:
    """Above 0, and finite."""
    with pytest.raises(ConfigurationError, match="delivery_timeout"):
        settings(delivery_timeout=timeout)


async def test_connections_are_made_as_the_consumers() -> None:
    """Login, client_id and timeouts are taken from the consumer unless the producer has its own; the rest is
    ignored."""
    built = settings(
        {"client_id": "mine"},
        {
            "client_id": "theirs",
            "sasl_plain_password": "secret",
            "sasl_plain_username": "alice",
            "security_protocol": "SASL_PLAINTEXT",
            "fetch_max_bytes": 5,
            "isolation_level": "read_committed",
        },
    ).build()
    expected = {
        "client_id": "mine",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_password": "secret",
        "sasl_plain_username": "alice",
        "security_protocol": "SASL_PLAINTEXT",
    }
    assert expected.items() <= options_of(built).items()


def test_a_request_waits_no_longer_than_a_delivery() -> None:
    """The consumer's request timeout, and the default, are limited to the delivery timeout."""
    assert settings(delivery_timeout=2.0).request_timeout == 2.0
    assert settings({}, {"request_timeout_ms": 40_000}, 5.0).request_timeout == 5.0
    assert settings({"request_timeout_ms": 1000}).request_timeout == 1.0
