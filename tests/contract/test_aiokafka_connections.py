"""What ``secure_connection.py`` and ``connector.py`` rely on in aiokafka, and the defects they work around."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import ssl
import struct
import traceback
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka.abc import AbstractTokenProvider
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection, OAuthAuthenticator, SaslPlainAuthenticator, ScramAuthenticator
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.admin import (
    ApiVersionRequest,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse_v1,
    SaslHandShakeRequest,
)

from aioparallel import Security
from aioparallel.clients.aiokafka.connecting import find_broker
from aioparallel.clients.aiokafka.connector import options_of
from aioparallel.clients.aiokafka.internals import Connections
from aioparallel.clients.aiokafka.secure_connection import LoggedIn, LoginFailed, _TokenLogin, open_connection
from aioparallel.config.security.secret import Password, TokenSource
from aioparallel.testing.brokers.embedded import EmbeddedBroker
from tests.support.waiting import DEADLINE


async def test_a_connection_takes_what_a_client_has() -> None:
    """Each option that aiokafka's client passes to a connection is passed on here, under the same name."""
    client: Any = AIOKafkaClient(bootstrap_servers="localhost:1")
    wanted = set(inspect.signature(AIOKafkaConnection.__init__).parameters) - {"self", "host", "port", "on_close"}
    assert set(options_of(client)) == wanted
    assert inspect.signature(AIOKafkaConnection.close).parameters.keys() == {"self", "reason", "exc"}
    assert inspect.signature(AIOKafkaConnection.send).parameters.keys() == {"self", "request", "expect_response"}
    assert callable(client._on_connection_closed)
    made = LoggedIn("localhost", 1, **options_of(client))
    assert (made._writer, made._closed_fut, made._protocol, made.has_requests) == (None, None, None, False)


async def test_a_hidden_password_reaches_the_broker() -> None:
    """Both login methods with a password use its text, not the stars that are shown."""
    password = Password("secret")
    plain = SaslPlainAuthenticator(loop=None, sasl_plain_password=password, sasl_plain_username="me")
    assert plain._step(None) == (b"me\0me\0secret", True)
    given = {"sasl_plain_username": "me", "sasl_mechanism": "SCRAM-SHA-256"}
    scram = ScramAuthenticator(loop=None, sasl_plain_password=password, **given)
    assert scram._sasl_plain_password == b"secret"


class Impostor:
    """A server that claims to be a broker with one login method. It answers a login with ``answers``, and then
    nothing."""

    def __init__(self, mechanism: str, *answers: bytes) -> None:
        self.mechanism = mechanism
        self.answers = answers

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        """Yields the port. Waits at the end until the one connection is closed."""
        over = asyncio.Event()

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await self._talk(reader, writer)
            writer.close()
            over.set()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        async with server, asyncio.timeout(DEADLINE):
            yield server.sockets[0].getsockname()[1]
            await over.wait()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonce, answers = b"", list(self.answers)
        while True:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            request = await reader.readexactly(size)
            kind, _, number = struct.unpack(">hhi", request[:8])
            if kind == ApiVersionRequest.API_KEY:
                answer = struct.pack(">hi", 0, 3) + b"".join(struct.pack(">hhh", key, 0, 1) for key in (3, 17, 36))
            elif kind == SaslHandShakeRequest.API_KEY:
                answer = struct.pack(">hih", 0, 1, len(self.mechanism)) + self.mechanism.encode()
            elif answers:
                nonce = nonce or request.partition(b",r=")[2]
                said = answers.pop(0).replace(b"NONCE", nonce)
                answer = struct.pack(">hhi", 0, -1, len(said)) + said + bytes(8)
            else:
                continue
            writer.write(struct.pack(">ii", len(answer) + 4, number) + answer)


IMPOSTORS = [
    (Impostor("PLAIN", b"surprise"), "could not prove its identity"),
    (Impostor("SCRAM-SHA-256", b"r=NONCEme,s=c2FsdA==,i=1"), "it requires 1 SCRAM iterations"),
    (Impostor("SCRAM-SHA-256", b"r=NONCEme,s=c2FsdA==,i=2000000000"), "it requires 2000000000 SCRAM iterations"),
    (Impostor("SCRAM-SHA-256", b"r=NONCEme,s=c2FsdA==,i=4096", b"v=AAAA"), "Server sent wrong signature"),
    (Impostor("SCRAM-SHA-256", b"r=NONCEme,s=c2FsdA==,i=4096", b""), "could not prove its identity"),
    (Impostor("SCRAM-SHA-256", b"e=unknown-user"), "the login is refused: unknown-user"),
    (Impostor("SCRAM-SHA-256", b"r=NONCEme,s=c2FsdA==,i=4096", b"e=invalid-proof"), "refused: invalid-proof"),
    (Impostor("OAUTHBEARER", b'{"status":"invalid_token"}'), "the token is refused"),
    (Impostor("PLAIN"), None),
    (Impostor("OAUTHBEARER"), None),
]


@pytest.mark.parametrize(("impostor", "said"), IMPOSTORS)
async def test_an_impostor_learns_little(impostor: Impostor, said: str | None) -> None:
    """Its demands are limited. The error, for a failure or a timeout, contains no credentials; nor do the locals of the
    traceback, which error trackers collect."""

    async def token() -> str:
        return "".join(["secret", "-6"])

    login: dict[str, Any] = {"token": token}
    if impostor.mechanism != "OAUTHBEARER":
        login = {"username": "me", "password": "".join(["secret", "-6"])}
    security = Security("SASL_PLAINTEXT", mechanism=impostor.mechanism, **login)  # type: ignore[arg-type]
    del login
    async with impostor.listening() as port:
        with pytest.raises(LoginFailed if said else TimeoutError, match=said) as failure:
            async with asyncio.timeout(DEADLINE if said else 0.2):
                await open_connection("127.0.0.1", port, security.client_options())
    shown = "".join(traceback.TracebackException.from_exception(failure.value, capture_locals=True).format())
    assert ("open_connection" in shown, "secret-6" in shown) == (True, False), shown


async def test_an_address_that_is_none_is_no_failed_login() -> None:
    """A broker that advertises an invalid address counts as unreachable."""
    with pytest.raises(KafkaConnectionError, match=r"kafka\.\.example"):
        await open_connection("kafka..example", 9092, {})


async def test_a_refused_token_is_no_login() -> None:
    """aiokafka takes any answer for an accepted login. The refusal of RFC 7628 is a failure here."""

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


def test_the_answer_to_a_login_has_its_lifetime() -> None:
    """From version 1 on, which aiokafka requests if the broker supports it."""
    request = SaslAuthenticateRequest(b"").prepare({SaslAuthenticateRequest.API_KEY: (0, 2)})
    assert request.RESPONSE_TYPE is SaslAuthenticateResponse_v1
    assert "session_lifetime_ms" in SaslAuthenticateResponse_v1.SCHEMA.names


async def test_an_open_broker_is_found_with_context_or_without(embedded_broker: EmbeddedBroker) -> None:
    """An unused context does no harm. Closing the client closes what it left open."""
    options = {"security_protocol": "PLAINTEXT", "ssl_context": ssl.create_default_context()}
    found = await find_broker(embedded_broker.bootstrap_servers, options, 20.0, 0.1)
    assert found == embedded_broker.bootstrap_servers
    client: Connections = AIOKafkaClient(bootstrap_servers=found)
    await client.close()
