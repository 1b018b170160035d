"""Values of aiokafka's options that would fail later, or never be noticed, are refused at construction."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import cast

import pytest
from aiokafka.abc import AbstractTokenProvider

from aioparallel import ParallelConsumer, Producing
from aioparallel.clients.aiokafka.producer_settings import ProducerSettings
from aioparallel.records.errors import ConfigurationError

TLS = ssl.create_default_context()
LOGIN: Mapping[str, object] = {"sasl_plain_username": "alice", "sasl_plain_password": "secret"}


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """A token provider for OAUTHBEARER."""

    async def token(self) -> str:
        return "token"


CONNECTION: list[tuple[Mapping[str, object], str, str]] = [
    ({"security_protocol": "SSL"}, "security_protocol", "needs ssl_context"),
    ({"security_protocol": "SASL_SSL", **LOGIN}, "security_protocol", "needs ssl_context"),
    ({"security_protocol": "BOGUS"}, "security_protocol", "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"),
    ({"security_protocol": ["SSL"]}, "security_protocol", "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"),
    ({"ssl_context": "ca.pem"}, "ssl_context", "an ssl.SSLContext"),
    ({"security_protocol": "SSL", "ssl_context": True}, "ssl_context", "an ssl.SSLContext"),
    ({"sasl_mechanism": "MD5"}, "sasl_mechanism", "PLAIN, GSSAPI, SCRAM-SHA-256"),
    ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": None}, "sasl_mechanism", "PLAIN, GSSAPI"),
    ({"security_protocol": "SASL_PLAINTEXT"}, "sasl_plain_username", "PLAIN needs sasl_plain_username"),
    (
        {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-512", "sasl_plain_username": "alice"},
        "sasl_plain_password",
        "SCRAM-SHA-512 needs sasl_plain_username and sasl_plain_password",
    ),
    ({"sasl_plain_username": b"alice"}, "sasl_plain_username", "a text"),
    ({"sasl_mechanism": "OAUTHBEARER"}, "sasl_oauth_token_provider", "aiokafka.abc.AbstractTokenProvider"),
    ({"sasl_oauth_token_provider": str}, "sasl_oauth_token_provider", "aiokafka.abc.AbstractTokenProvider"),
    ({"sasl_kerberos_service_name": None}, "sasl_kerberos_service_name", "a text"),
    ({"ssl_context": TLS}, "ssl_context", 'also needs security_protocol="SSL" or "SASL_SSL"'),
    ({"ssl_context": TLS, **LOGIN}, "ssl_context", 'also needs security_protocol="SSL" or "SASL_SSL"'),
    (LOGIN, "sasl_plain_username", 'also needs security_protocol="SASL_SSL" or "SASL_PLAINTEXT"'),
    ({"sasl_mechanism": "PLAIN"}, "sasl_mechanism", 'needs security_protocol="SASL_SSL" or "SASL_PLAINTEXT"'),
    ({"sasl_plain_password": "secret"}, "sasl_plain_password", "otherwise there is no login"),
    ({"sasl_oauth_token_provider": Tokens()}, "sasl_oauth_token_provider", "otherwise there is no login"),
    ({"client_id": 3}, "client_id", "a text"),
    ({"client_id": "x" * 32_768}, "client_id", "at most 32,767 bytes"),
    ({"metadata_max_age_ms": "abc"}, "metadata_max_age_ms", "milliseconds, 1 to 2,147,483,647"),
    ({"metadata_max_age_ms": 0}, "metadata_max_age_ms", "milliseconds, 1 to"),
    ({"metadata_max_age_ms": float("nan")}, "metadata_max_age_ms", "milliseconds, 1 to"),
    ({"request_timeout_ms": None}, "request_timeout_ms", "milliseconds, 1 to"),
    ({"request_timeout_ms": float("inf")}, "request_timeout_ms", "milliseconds, 1 to"),
    ({"retry_backoff_ms": -1}, "retry_backoff_ms", "milliseconds, 0 to"),
    ({"connections_max_idle_ms": -1}, "connections_max_idle_ms", "milliseconds, 1 to 2,147,483,647, or None"),
    ({"connections_max_idle_ms": True}, "connections_max_idle_ms", "milliseconds, 1 to"),
]
"""Options of connections; the one that is named; what is allowed."""

CONSUMER: list[tuple[str, object, str]] = [
    ("acks", 1, "option of Producing, and always all there"),
    ("fetch_max_wait_ms", 20.5, "whole milliseconds"),
    ("fetch_max_wait_ms", 2**31, "whole milliseconds"),
    ("fetch_max_bytes", "4 MiB", "whole bytes, 1 to 2,147,483,647"),
    ("fetch_min_bytes", -1, "whole bytes, 0 to"),
    ("max_partition_fetch_bytes", 0.5, "whole bytes, 1 to"),
    ("group_instance_id", 7, "a text"),
    ("client_rack", b"a", "a text"),
    ("check_crcs", "no", "True or False"),
    ("exclude_internal_topics", 0, "True or False"),
    ("isolation_level", ["read_committed"], '"read_committed"'),
]

PRODUCER: list[tuple[str, object, str]] = [
    ("linger_ms", float("nan"), "milliseconds, 0 to"),
    ("max_batch_size", float("inf"), "bytes, 1 to"),
    ("max_request_size", 2**31, "bytes, 1 to"),
    ("compression_type", ["gzip"], "gzip, snappy, lz4, zstd"),
]


def consumer(of_consumer: Mapping[str, object], of_producer: Mapping[str, object] | None = None) -> ParallelConsumer:
    """A consumer whose own and producer connections have these options."""
    return ParallelConsumer(
        "topic", group_id="group", client_options=of_consumer, producing=Producing(client_options=of_producer or {})
    )


@pytest.mark.parametrize(("options", "name", "allowed"), CONNECTION)
@pytest.mark.parametrize("whose", ["consumer", "producer"])
def test_wrong_values_of_connections(whose: str, options: Mapping[str, object], name: str, allowed: str) -> None:
    """They are refused without a running loop, by the name under which they were given. No password is shown."""
    given = "Producing client_options" if whose == "producer" else "client_options"
    with pytest.raises(ConfigurationError, match=rf"^{given}\['{name}'\]=.*{re.escape(allowed)}") as error:
        consumer({}, options) if whose == "producer" else consumer(options)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(("name", "value", "allowed"), CONSUMER)
def test_wrong_values_of_the_consumer(name: str, value: object, allowed: str) -> None:
    """As above."""
    with pytest.raises(ConfigurationError, match=rf"^client_options\['{name}'\]=.*{re.escape(allowed)}"):
        consumer({name: value})


@pytest.mark.parametrize(("name", "value", "allowed"), PRODUCER)
def test_wrong_values_of_the_producer(name: str, value: object, allowed: str) -> None:
    """As above."""
    with pytest.raises(ConfigurationError, match=rf"^Producing client_options\['{name}'\]=.*{re.escape(allowed)}"):
        consumer({}, {name: value})


@pytest.mark.parametrize("whose", ["consumer", "producer"])
def test_names_are_texts(whose: str) -> None:
    """Any other type of name is refused."""
    options = cast("Mapping[str, object]", {5: 1})
    given = "Producing client_options" if whose == "producer" else "client_options"
    with pytest.raises(ConfigurationError, match=rf"^name in {given}=5: names of options are strings"):
        consumer({}, options) if whose == "producer" else consumer(options)


def test_a_password_is_never_shown() -> None:
    """Not even one of the wrong type or under a misspelled name: only its type is shown."""
    with pytest.raises(ConfigurationError, match=r"client_options\['sasl_plain_pasword'\]=<str>"):
        consumer({"sasl_plain_pasword": "secret"})
    with pytest.raises(ConfigurationError, match=r"client_options\['sasl_plain_password'\]=<bytes>") as error:
        consumer({"sasl_plain_password": b"secret"})
    assert "secret" not in str(error.value)
    assert error.value.value != b"secret"


def test_wrong_options_of_the_consumer_are_not_blamed_on_the_producer() -> None:
    """Options that the producer takes from the consumer are reported as the consumer's, even if the producer has
    options of its own."""
    with pytest.raises(ConfigurationError, match=r"^client_options\['security_protocol'\]"):
        ProducerSettings(
            "host:9092",
            delivery_timeout=1.0,
            consumer_options={"security_protocol": "SSL"},
            producer_options={"client_id": "mine"},
        )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"security_protocol": "SSL", "ssl_context": TLS},
        {"security_protocol": "SASL_SSL", "ssl_context": TLS, "sasl_mechanism": "SCRAM-SHA-256", **LOGIN},
        {"security_protocol": "SASL_PLAINTEXT", **LOGIN},
        {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": Tokens(),
        },
        {"sasl_mechanism": None, "client_id": None, "connections_max_idle_ms": None},
        {"metadata_max_age_ms": 1, "request_timeout_ms": 1.5, "retry_backoff_ms": 0, "connections_max_idle_ms": 1},
    ],
)
def test_right_values_are_taken(options: dict[str, object]) -> None:
    """By the consumer and by the producer."""
    consumer(options)
    consumer({}, options)


def test_a_producer_may_need_less_than_its_consumer() -> None:
    """The options are checked after merging: the producer's own replace the consumer's."""
    consumer({"security_protocol": "SSL", "ssl_context": TLS}, {"security_protocol": "PLAINTEXT"})
    consumer({"security_protocol": "PLAINTEXT", "ssl_context": TLS}, {"security_protocol": "SSL"})
    consumer({"security_protocol": "SSL", "ssl_context": TLS}, {"ssl_context": ssl.create_default_context()})
    consumer({"security_protocol": "SASL_PLAINTEXT", **LOGIN}, {"sasl_plain_username": "bob"})
