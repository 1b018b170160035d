"""Passwords and tokens: read again at each login, and never shown."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self

from aioparallel.event_loop.steady_clock import steady_time
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.user_errors import text_of

__all__ = [
    "Hidden",
    "NoToken",
    "Password",
    "Token",
    "TokenSource",
    "hidden",
    "is_sendable",
    "read_secret",
    "suppress_login_logs",
]

TOKEN_TIMEOUT: Final = 10.0
"""Seconds that a token function may take, while a connection waits for it."""
_EARLY: Final = 0.2
"""Last part of a token's lifetime in which it is not used for new connections."""


class Hidden:
    """Replaces a secret in a message: shows only its type."""

    def __init__(self, secret: object) -> None:
        self._type = "str" if isinstance(secret, str) else type(secret).__name__

    def __repr__(self) -> str:
        return f"<{self._type}>"


class Password(str):
    """A password as a str for Kafka clients, which prints as stars."""

    _current: Callable[[], str] | None

    def __new__(cls, text: str, current: Callable[[], str] | None = None) -> Self:
        """``current`` returns the current password; None: it never changes."""
        made = super().__new__(cls, text)
        made._current = current
        return made

    def renewed(self) -> Password:
        """The current password. Raises what reading it raises."""
        return self if self._current is None else Password(self._current(), self._current)

    def __repr__(self) -> str:
        return "'***'"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return format("***", spec)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str.__str__(self), self._current)


def hidden(options: Mapping[str, object]) -> dict[str, object]:
    """Options of a Kafka client, in which a password never shows itself."""
    return {
        name: Password(value) if str(name).endswith("password") and type(value) is str else value
        for name, value in options.items()
    }


def is_sendable(value: object) -> bool:
    """Whether it is a non-empty str that can be encoded as UTF-8, which an environment variable may not be."""
    if not (isinstance(value, str) and value):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_secret(option: str, file: str | Path) -> str:
    """The text of a file without trailing line ends. Raises ConfigurationError."""
    try:
        text = Path(file).read_text(encoding="utf-8-sig").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(option, str(file), f"cannot be read ({_cause(error)}); give a text file") from None
    if not text:
        raise ConfigurationError(option, str(file), "is empty; the file must contain the secret and nothing else")
    return text


def _cause(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "not UTF-8 text"


class _NoLogins(logging.Filter):
    """Drops aiokafka's log lines about login requests and their answers, which contain passwords and tokens."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log the record."""
        return not any(type(arg).__name__.startswith("SaslAuthenticate") for arg in record.args or ())


_NO_LOGINS: Final = _NoLogins()


def suppress_login_logs() -> None:
    """Add the filter to aiokafka's logger of connections. May be called again."""
    logging.getLogger("aiokafka.conn").addFilter(_NO_LOGINS)


class Token(NamedTuple):
    """A token with its expiry time. If a token function returns this instead of a str, it is called once, and not for
    each connection."""

    text: str
    expires: float
    """Seconds since the epoch."""

    def __repr__(self) -> str:
        return f"Token('***', expires={self.expires!r})"


class NoToken(OSError):
    """No token was available. An OSError, as Kafka clients expect for a failed connection."""


class TokenSource:
    """Provides tokens, as one of aiokafka's token providers.

    A :class:`Token` is reused until a fifth of its lifetime is left. Otherwise ``ask`` is called for each connection.
    """

    def __init__(self, ask: Callable[[], Awaitable[str | Token]], extensions: dict[str, str] | None = None) -> None:
        self._ask = ask
        self._extensions = extensions or {}
        self._kept: Token | None = None
        self._good_until = self._good_until_steady = 0.0

    def __repr__(self) -> str:
        return "<TokenSource>"

    async def token(self) -> str:
        """A token for a new connection. Raises NoToken for whatever the function raises, and after ten seconds."""
        if self._kept is not None and self._is_good():
            return self._kept.text
        # Concurrent connections each ask. That is rare, and a failure then affects only one.
        try:
            async with asyncio.timeout(TOKEN_TIMEOUT) as limit:
                found = await self._ask()
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            # Not this task was cancelled, but one that the function awaits. CancelledError would end aiokafka's tasks.
            raise NoToken("no token: what the token function waited for was cancelled") from error
        except Exception as error:
            if limit.expired():
                raise NoToken(f"no token: the token function took more than {TOKEN_TIMEOUT:g} s") from error
            raise NoToken(f"no token: {type(error).__name__}: {text_of(error)}") from error
        text = found.text if isinstance(found, Token) else found
        if not is_sendable(text):
            raise NoToken(f"no token: the token function returned {type(text).__name__}, not a str or a Token")
        if isinstance(found, Token):
            self._keep(found)
        return text

    def _keep(self, token: Token) -> None:
        expires: object = token.expires
        if isinstance(expires, bool) or not isinstance(expires, int | float):
            raise NoToken(f"no token: its expiry is {type(expires).__name__}, not a number of seconds since the epoch")
        used_for = (expires - time.time()) * (1 - _EARLY)
        self._kept = token
        self._good_until, self._good_until_steady = time.time() + used_for, steady_time() + used_for

    def _is_good(self) -> bool:
        """Whether the token is valid by both clocks. The expiry is in wall-clock time, and only the wall clock advances
        while a machine sleeps. But if it is set back, an expired token would seem valid. Setting it forward costs a new
        token."""
        return time.time() < self._good_until and steady_time() < self._good_until_steady

    def refused(self) -> None:
        """The broker refused the token: ask for another one the next time."""
        self._kept = None

    def extensions(self) -> dict[str, str]:
        """SASL extensions (KIP-342) to send with the token."""
        return self._extensions
