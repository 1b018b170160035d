"""What ``secure_connection.py`` and ``dialing.py`` rely on in aiokafka, and the traps that they are there for."""

from __future__ import annotations

import inspect
import ssl
from typing import Any

import pytest
from aiokafka.abc import AbstractTokenProvider
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection, OAuthAuthenticator, SaslPlainAuthenticator, ScramAuthenticator
from aiokafka.protocol.admin import SaslAuthenticateRequest, SaslAuthenticateResponse_v1

from aioparallel.clients.aiokafka.connecting import find_broker
from aioparallel.clients.aiokafka.dialing import _options_of
from aioparallel.clients.aiokafka.internals import Connections
from aioparallel.clients.aiokafka.secure_connection import LoggedIn, LoginFailed, _TokenLogin
from aioparallel.security.secret import Password, TokenSource
from aioparallel.testing.brokers.embedded import EmbeddedBroker


async def test_a_connection_takes_what_a_client_has() -> None:
    """Each option of a connection that aiokafka's client passes on is passed on here, under the same name."""
    client: Any = AIOKafkaClient(bootstrap_servers="localhost:1")
    wanted = set(inspect.signature(AIOKafkaConnection.__init__).parameters) - {"self", "host", "port", "on_close"}
    assert set(_options_of(client)) == wanted
    assert inspect.signature(AIOKafkaConnection.close).parameters.keys() == {"self", "reason", "exc"}
    assert inspect.signature(AIOKafkaConnection.send).parameters.keys() == {"self", "request", "expect_response"}
    assert callable(client._on_connection_closed)
    made = LoggedIn("localhost", 1, **_options_of(client))
    assert (made._writer, made._closed_fut, made._protocol, made.has_requests) == (None, None, None, False)


async def test_a_hidden_password_reaches_the_broker() -> None:
    """Both ways of logging in with one use the text, not what is shown of it."""
    password = Password("secret")
    plain = SaslPlainAuthenticator(loop=None, sasl_plain_password=password, sasl_plain_username="me")
    assert plain._step(None) == (b"me\0me\0secret", True)
    given = {"sasl_plain_username": "me", "sasl_mechanism": "SCRAM-SHA-256"}
    scram = ScramAuthenticator(loop=None, sasl_plain_password=password, **given)
    assert scram._sasl_plain_password == b"secret"


async def test_a_refused_token_is_no_login() -> None:
    """aiokafka takes any answer for a yes; the one of RFC 7628 is a no here."""

    async def token() -> str:
        return "token"

    source = TokenSource(token)
    assert isinstance(source, AbstractTokenProvider)
    theirs, ours = OAuthAuthenticator(sasl_oauth_token_provider=source), _TokenLogin(source)
    assert await theirs.step(None) == await ours.step(None) == (b"n,,\x01auth=Bearer token\x01\x01", True)
    assert await theirs.step(b'{"status":"invalid_token"}') is None
    with pytest.raises(LoginFailed, match="invalid_token"):
        await ours.step(b'{"status":"invalid_token"}')
    accepted = _TokenLogin(source)
    await accepted.step(None)
    assert await accepted.step(b"") is None
    assert isinstance(LoggedIn("localhost", 1, sasl_oauth_token_provider=source).authenticator_oauth(), _TokenLogin)


def test_the_answer_to_a_login_tells_its_end() -> None:
    """From version 1 on, which aiokafka asks for where the broker has it."""
    request = SaslAuthenticateRequest(b"").prepare({SaslAuthenticateRequest.API_KEY: (0, 2)})
    assert request.RESPONSE_TYPE is SaslAuthenticateResponse_v1
    assert "session_lifetime_ms" in SaslAuthenticateResponse_v1.SCHEMA.names


async def test_an_open_broker_is_found_with_context_or_without(embedded_broker: EmbeddedBroker) -> None:
    """A context that is there for nothing does no harm; who closes the client closes what it left."""
    options = {"security_protocol": "PLAINTEXT", "ssl_context": ssl.create_default_context()}
    found = await find_broker(embedded_broker.bootstrap_servers, options, 20.0, 0.1)
    assert found == embedded_broker.bootstrap_servers
    client: Connections = AIOKafkaClient(bootstrap_servers=found)
    await client.close()
