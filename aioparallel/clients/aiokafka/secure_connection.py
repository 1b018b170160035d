"""One connection: made with secrets as they are now, and with its failure told as what it is.

What aiokafka 0.14 does, and what is made of it (*run* on Apache Kafka 4.3.1):

* It takes a refused token for an accepted one: the broker answers ``{"status":"invalid_token"}`` without an error code
  (RFC 7628, 3.2.3) and waits for a last message; the first request after that then breaks the connection. Here it is a
  refused login.
* Passwords are read when a client is made. Here they are read at each connection, and so are certificates that changed.
* A token function may raise anything, and take for ever; out of ``_get_conn`` that would end aiokafka's own tasks.
* A connection that fails at the login is closed as politely as others, which TLS may take 30 s for. Here it is cut off.
* It computes as many iterations of SCRAM as it is told to, one or billions. Here there are bounds.
* It knows no KIP-368: a broker with ``connections.max.reauth.ms`` closes a connection whose login is that old, or whose
  token has ended, at the next request, which then has failed. The broker says at the login how long that is, so such a
  connection is replaced before that, see ``connector.py``.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final, Protocol, cast

import aiokafka.errors as kafka
from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import AIOKafkaConnection, OAuthAuthenticator, ScramAuthenticator
from aiokafka.protocol.admin import SaslAuthenticateRequest

from aioparallel.errors import ConfigurationError
from aioparallel.security.secret import NoToken, Password, TokenSource
from aioparallel.security.tls import RenewingContext

__all__ = ["PASSWORD", "LoggedIn", "LoginFailed", "causes_of", "open_connection", "renewed"]

AbstractTokenProvider.register(TokenSource)

PASSWORD: Final = "sasl_plain_password"
_TLS: Final = "ssl_context"
_ITERATIONS: Final = (4_096, 1_000_000)
"""Of SCRAM, that a broker may ask for. Kafka gives 4,096 to 16,384; its own client, too, takes no fewer (RFC 7677, 4):
whoever puts himself in the place of a broker could else try out passwords by the million. With very many he would hold
a thread for as long as he likes."""
_GONE: Final = 0.5
"""Seconds for the loop to close a socket that was cut off."""


class LoginFailed(kafka.KafkaError):  # type: ignore[misc]
    """What is needed to log in could not be had, or was refused; not retriable."""


class _Steps(Protocol):
    async def step(self, payload: bytes | None) -> tuple[bytes, bool] | None: ...


class _TokenLogin(OAuthAuthenticator):  # type: ignore[misc]
    """aiokafka's, which hears what the broker says."""

    def __init__(self, tokens: TokenSource) -> None:
        super().__init__(sasl_oauth_token_provider=tokens)
        self._tokens = tokens
        self._why = ""

    async def step(self, payload: bytes | None) -> tuple[bytes, bool] | None:
        if payload:
            if isinstance(self._tokens, TokenSource):
                self._tokens.refused()
            raise LoginFailed(f"the token is refused{self._why}: {payload.decode(errors='replace')}")
        try:
            answer = await cast("_Steps", super()).step(payload)
        except NoToken as error:
            raise LoginFailed(str(error)) from error
        if answer is not None:
            self._why = _ended(answer[0])
        return answer


def _ended(login: bytes) -> str:
    """What the token itself says of its end, if it says anything (RFC 7519), for people: brokers do not tell."""
    try:
        claims = login.split(b"Bearer ")[1].split(b"\x01")[0].split(b".")[1]
        ended = time.time() - float(json.loads(base64.urlsafe_b64decode(claims + b"=="))["exp"])
    except (IndexError, KeyError, TypeError, ValueError):
        return ""
    return f", it ended {ended:.0f} s ago" if ended > 0 else ""


class _ScramLogin(ScramAuthenticator):  # type: ignore[misc]
    """aiokafka's, which does not do all that it is told to, and hears why it is refused (RFC 5802, 7)."""

    def process_server_first_message(self, server_first: str) -> None:
        """See the module."""
        _check_accepted(server_first)
        iterations = int(dict(pair.split("=", 1) for pair in server_first.split(","))["i"])
        least, most = _ITERATIONS
        if not least <= iterations <= most:
            raise ValueError(f"it asks for {iterations} iterations of SCRAM; {least} to {most} are taken")
        super().process_server_first_message(server_first)

    def process_server_final_message(self, server_final: str) -> None:
        """See the module."""
        _check_accepted(server_final)
        super().process_server_final_message(server_final)


def _check_accepted(answer: str) -> None:
    if answer.startswith("e="):
        raise LoginFailed(f"the login is refused: {answer[2:]}")


class LoggedIn(AIOKafkaConnection):  # type: ignore[misc]
    """aiokafka's connection. ``ends``: on the loop's clock, when the broker takes the login for over; None: never."""

    is_up = False
    ends: float | None = None
    since = 0.0
    """When it was logged in."""

    def authenticator_oauth(self) -> _TokenLogin:
        """See the module."""
        return _TokenLogin(self._sasl_oauth_token_provider)

    def authenticator_scram(self) -> _ScramLogin:
        """See the module."""
        return _ScramLogin(
            loop=self._loop,
            sasl_plain_password=self._sasl_plain_password,
            sasl_plain_username=self._sasl_plain_username,
            sasl_mechanism=self._sasl_mechanism,
        )

    def send(self, request: object, expect_response: bool = True) -> Awaitable[object]:
        """See the module."""
        answer = cast("Awaitable[object]", super().send(request, expect_response))
        return self._noting_the_end(answer) if isinstance(request, SaslAuthenticateRequest) else answer

    def close(self, reason: object = None, exc: BaseException | None = None) -> asyncio.Future[None] | None:
        """See the module: what never came up is not taken leave of, for TLS waits half a minute for the answer."""
        writer = self._writer
        closed = cast("asyncio.Future[None] | None", super().close(reason, exc))
        if writer is not None and not self.is_up:
            writer.transport.abort()
        return closed

    async def gone(self) -> None:
        """After a failure: wait a moment until the socket is closed, which the loop does by and by."""
        await asyncio.sleep(0)
        if self._closed_fut is not None:
            await asyncio.wait([self._closed_fut], timeout=_GONE if self._protocol is not None else 0.0)

    async def _noting_the_end(self, answering: Awaitable[object]) -> object:
        answer = await answering
        if (lifetime := getattr(answer, "session_lifetime_ms", 0)) > 0:
            self.since = asyncio.get_running_loop().time()
            self.ends = self.since + lifetime / 1000
        return answer

    @property
    def was_there(self) -> bool:
        """Whether somebody has taken the connection, whatever became of it."""
        return self._protocol is not None

    @property
    def has_requests(self) -> bool:
        """Whether answers are awaited."""
        return bool(self._requests)


async def open_connection(
    host: str, port: int, options: Mapping[str, object], on_close: Callable[..., object] | None = None
) -> LoggedIn:
    """Connected, and logged in where that is wanted. ``options``: of a single connection, by aiokafka's names.

    Raises OSError, TimeoutError and aiokafka's errors, LoginFailed among them. Cancelled, it leaves nothing open.
    """
    connection = LoggedIn(host, port, on_close=on_close, **renewed(options))
    try:
        await connection.connect()
        connection.is_up = True
    except BaseException as error:
        # Without its traceback: in its frames stands what this logs in with, and error trackers collect such.
        error.__traceback__ = None
        if not isinstance(error, Exception):
            raise
        await connection.gone()
        if isinstance(error, OSError | kafka.KafkaError):
            raise  # certificates that do not verify are among them
        if not connection.was_there:
            raise kafka.KafkaConnectionError(f"{host}:{port}: {error}") from error  # no name for a host
        # The other side of SCRAM or PLAIN does not keep to its rules: it is no broker that knows this password.
        raise LoginFailed(f"the broker could not prove itself ({error})") from error
    return connection


def renewed(options: Mapping[str, object]) -> dict[str, object]:
    """The same with password and certificates as they are now. Raises LoginFailed."""
    now = dict(options)
    try:
        if isinstance(password := options.get(PASSWORD), Password):
            now[PASSWORD] = password.renewed()
        if isinstance(context := options.get(_TLS), RenewingContext):
            context.renew()
    except ConfigurationError as error:
        raise LoginFailed(str(error)) from error
    except Exception as error:  # of whoever wrote the function
        raise LoginFailed(f"no password: {type(error).__name__}: {error}") from error
    return now


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it came of. aiokafka hides the alert of the other side of TLS behind "closed"."""
    seen: BaseException | None = error
    for _ in range(10):
        if seen is None:
            return
        yield seen
        seen = seen.__cause__ or (seen.__context__ if not seen.__suppress_context__ else None)
