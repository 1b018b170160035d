"""One connection, opened with current secrets, whose failures are reported as what they are.

How aiokafka 0.14 behaves (tested with Apache Kafka 4.3.1), and what this module does about it:

* It takes a refused token for an accepted one. The broker answers ``{"status":"invalid_token"}`` without an error code
  (RFC 7628, 3.2.3) and waits for a last message. The next request then breaks the connection. Here this is a failed
  login.
* It reads the password when a client is made. Here the password, and certificates that have changed, are read for each
  connection.
* A token function may raise anything and take for ever. An exception from ``_get_conn`` would end aiokafka's tasks.
  Here it has a time limit, and its exceptions become failed logins.
* It closes a connection after a failed login cleanly, which may take 30 s with TLS. Here it is aborted.
* It computes as many SCRAM iterations as it is told, even billions. Here their number is limited.
* It does not implement KIP-368. A broker with ``connections.max.reauth.ms`` closes a connection at the next request
  after the login, or its token, has expired, and the request fails. The broker states the lifetime at the login, so the
  connection is replaced before it ends, see ``connector.py``. A connection on which a broker has a session is kept: the
  client logs in again on it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

import aiokafka.errors as kafka
from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import AIOKafkaConnection, OAuthAuthenticator, ScramAuthenticator
from aiokafka.protocol.admin import SaslAuthenticateRequest

from aioparallel.config.security.secret import NoToken, Password, TokenSource
from aioparallel.config.security.tls import RenewingContext
from aioparallel.records.errors import ConfigurationError

__all__ = ["PASSWORD", "LoggedIn", "LoginFailed", "causes_of", "open_connection", "renewed"]

AbstractTokenProvider.register(TokenSource)

PASSWORD: Final = "sasl_plain_password"
_TLS: Final = "ssl_context"
_ITERATIONS: Final = (4_096, 1_000_000)
"""Least and most SCRAM iterations. Kafka uses 4,096 to 16,384, and its own client rejects fewer as well (RFC 7677, 4):
an impostor could otherwise test passwords quickly. With very many iterations it could occupy a thread for any time."""
_GONE: Final = 0.5
"""Seconds for the loop to close an aborted socket."""


class LoginFailed(kafka.KafkaError):  # type: ignore[misc]
    """The credentials could not be obtained, or were refused. Not retriable."""


class _TokenLogin(OAuthAuthenticator):  # type: ignore[misc]
    """aiokafka's authenticator, which also reads the broker's refusal."""

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
            answer: tuple[bytes, bool] | None = await super().step(payload)
        except NoToken as error:
            raise LoginFailed(str(error)) from error
        if answer is not None:
            self._why = _ended(answer[0])
        return answer


class _Obtained(TokenSource):
    """A token for one login, which is there before the login begins."""

    def __init__(self, source: TokenSource, token: str) -> None:
        async def ask() -> str:
            return token

        super().__init__(ask, source.extensions())
        self._source = source

    def refused(self) -> None:
        self._source.refused()


def _ended(login: bytes) -> str:
    """Say how long ago the token expired, according to the token itself (RFC 7519). Brokers do not report it."""
    try:
        claims = login.split(b"Bearer ")[1].split(b"\x01")[0].split(b".")[1]
        ended = time.time() - float(json.loads(base64.urlsafe_b64decode(claims + b"=="))["exp"])
    except (IndexError, KeyError, TypeError, ValueError):
        return ""
    return f", it ended {ended:.0f} s ago" if ended > 0 else ""


class _ScramLogin(ScramAuthenticator):  # type: ignore[misc]
    """aiokafka's authenticator, which also limits iterations and reads the reason of a refusal (RFC 5802, 7)."""

    def process_server_first_message(self, server_first: str) -> None:
        """Raises LoginFailed for a refusal, ValueError for a number of iterations out of bounds."""
        _check_accepted(server_first)
        iterations = int(dict(pair.split("=", 1) for pair in server_first.split(","))["i"])
        least, most = _ITERATIONS
        if not least <= iterations <= most:
            raise ValueError(f"it requires {iterations} SCRAM iterations; {least} to {most} are accepted")
        super().process_server_first_message(server_first)

    def process_server_final_message(self, server_final: str) -> None:
        _check_accepted(server_final)
        super().process_server_final_message(server_final)


def _check_accepted(answer: str) -> None:
    if answer.startswith("e="):
        raise LoginFailed(f"the login is refused: {answer[2:]}")


class LoggedIn(AIOKafkaConnection):  # type: ignore[misc]
    """aiokafka's connection. ``ends``: when the login expires, on the loop's clock; None: never."""

    is_up = False
    ends: float | None = None
    since = 0.0
    """Time of the login."""
    _obtained: _Obtained | None = None

    def authenticator_oauth(self) -> _TokenLogin:
        return _TokenLogin(self._obtained or self._sasl_oauth_token_provider)

    def authenticator_scram(self) -> _ScramLogin:
        return _ScramLogin(
            loop=self._loop,
            sasl_plain_password=self._sasl_plain_password,
            sasl_plain_username=self._sasl_plain_username,
            sasl_mechanism=self._sasl_mechanism,
        )

    def send(self, request: object, expect_response: bool = True) -> Awaitable[Any]:
        """Send a request. Notes the lifetime in the answer to a login."""
        answer: Awaitable[Any] = super().send(request, expect_response)
        return self._noting_lifetime(answer) if isinstance(request, SaslAuthenticateRequest) else answer

    async def obtain_secrets(self, options: Mapping[str, object]) -> None:
        """Get what :meth:`log_in_again` needs, from the same options as at first. Sends nothing. Raises OSError and
        LoginFailed."""
        self._sasl_plain_password = renewed(options)[PASSWORD]
        if isinstance(tokens := self._sasl_oauth_token_provider, TokenSource):
            self._obtained = _Obtained(tokens, await tokens.token())

    async def log_in_again(self) -> None:
        """Replace the login that ends (KIP-368), while no request is under way. If this fails, which may raise OSError,
        TimeoutError and aiokafka's errors, the connection is of no use any more."""
        before = self.ends
        await self._do_sasl_handshake()
        if self.ends == before:
            self.ends = None

    def close(self, reason: object = None, exc: BaseException | None = None) -> asyncio.Future[None] | None:
        """Close the connection; abort it if it was never up, because TLS waits half a minute for a clean end."""
        writer = self._writer
        closed: asyncio.Future[None] | None = super().close(reason, exc)
        if writer is not None and not self.is_up:
            writer.transport.abort()
        return closed

    async def gone(self) -> None:
        """After a failure, wait a moment until the loop has closed the socket."""
        await asyncio.sleep(0)
        if self._closed_fut is not None:
            await asyncio.wait([self._closed_fut], timeout=_GONE if self._protocol is not None else 0.0)

    async def _noting_lifetime(self, answering: Awaitable[Any]) -> Any:
        answer = await answering
        if (lifetime := getattr(answer, "session_lifetime_ms", 0)) > 0:
            self.since = asyncio.get_running_loop().time()
            self.ends = self.since + lifetime / 1000
        return answer

    @property
    def was_there(self) -> bool:
        """Whether the TCP connection was accepted."""
        return self._protocol is not None

    @property
    def has_requests(self) -> bool:
        return bool(self._requests)


async def open_connection(
    host: str, port: int, options: Mapping[str, object], on_close: Callable[..., object] | None = None
) -> LoggedIn:
    """Open a connection, and log in if configured. ``options``: of a single connection, by aiokafka's names.

    Raises OSError, TimeoutError and aiokafka's errors, including LoginFailed. Leaves nothing open when cancelled.
    """
    connection = LoggedIn(host, port, on_close=on_close, **renewed(options))
    try:
        await connection.connect()
        connection.is_up = True
    except BaseException as error:
        # Drop the traceback: its frames contain credentials, which error trackers would collect.
        error.__traceback__ = None
        if not isinstance(error, Exception):
            raise
        await connection.gone()
        if isinstance(error, OSError | kafka.KafkaError):
            raise  # includes certificates that do not verify
        if not connection.was_there:
            raise kafka.KafkaConnectionError(f"{host}:{port}: {error}") from error  # an invalid host name
        # A protocol violation in SCRAM or PLAIN: the other side does not know this password.
        raise LoginFailed(f"the broker could not prove its identity ({error})") from error
    return connection


def renewed(options: Mapping[str, object]) -> dict[str, object]:
    """The same options with the current password and certificates. Raises LoginFailed."""
    now = dict(options)
    try:
        if isinstance(password := options.get(PASSWORD), Password):
            now[PASSWORD] = password.renewed()
        if isinstance(context := options.get(_TLS), RenewingContext):
            context.renew()
    except ConfigurationError as error:
        raise LoginFailed(str(error)) from error
    except Exception as error:  # raised by the user's function
        raise LoginFailed(f"no password: {type(error).__name__}: {error}") from error
    return now


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes. aiokafka hides the TLS alert of the other side behind "closed"."""
    seen: BaseException | None = error
    for _ in range(10):
        if seen is None:
            return
        yield seen
        seen = seen.__cause__ or (seen.__context__ if not seen.__suppress_context__ else None)
