"""Passwords and tokens: read anew whenever somebody logs in, and shown to nobody."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self

from aioparallel.errors import ConfigurationError
from aioparallel.steady_clock import steady_time
from aioparallel.user_errors import text_of

__all__ = [
    "Hidden",
    "NoToken",
    "Password",
    "Token",
    "TokenSource",
    "hidden",
    "is_sendable",
    "keep_logins_to_ourselves",
    "read_secret",
]

TOKEN_TIMEOUT: Final = 10.0
"""Seconds that a function may take for a token; a connection waits for it meanwhile."""
_EARLY: Final = 0.2
"""Part of its life before a token's end in which it is not used for a new connection any more."""


class Hidden:
    """Stands for a secret in a message: only its type is told."""

    def __init__(self, secret: object) -> None:
        self._type = "str" if isinstance(secret, str) else type(secret).__name__

    def __repr__(self) -> str:
        return f"<{self._type}>"


class Password(str):
    """A password as Kafka clients take it, a text; whoever prints it sees stars. ``renewed``: as it is by now."""

    _current: Callable[[], str] | None

    def __new__(cls, text: str, current: Callable[[], str] | None = None) -> Self:
        """``current``: gives the text as it is by now; None: it never changes."""
        made = super().__new__(cls, text)
        made._current = current
        return made

    def renewed(self) -> Password:
        """Raises what reading it raises."""
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
    """Options of a Kafka client, with a password among them that shows itself to nobody."""
    return {
        name: Password(value) if str(name).endswith("password") and type(value) is str else value
        for name, value in options.items()
    }


def is_sendable(value: object) -> bool:
    """Whether it is a text, with something in it, that UTF-8 can hold: what came out of a variable may not be one."""
    if not (isinstance(value, str) and value):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_secret(option: str, file: str | Path) -> str:
    """The text of a file, without the line end behind it. Raises ConfigurationError."""
    try:
        text = Path(file).read_text(encoding="utf-8-sig").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(option, str(file), f"cannot be read ({_cause(error)}); give a text file") from None
    if not text:
        raise ConfigurationError(option, str(file), "is empty; the file holds the secret and nothing else")
    return text


def _cause(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "no text in UTF-8"


class _NoLogins(logging.Filter):
    """Leaves out what aiokafka writes of requests that log in, and of their answers: passwords and tokens."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is about something else."""
        return not any(type(arg).__name__.startswith("SaslAuthenticate") for arg in record.args or ())


_NO_LOGINS: Final = _NoLogins()


def keep_logins_to_ourselves() -> None:
    """Put the filter on aiokafka's logger of connections. Once is enough; more often does no harm."""
    logging.getLogger("aiokafka.conn").addFilter(_NO_LOGINS)


class Token(NamedTuple):
    """A token and when it ends: what a token function may return instead of the bare text, so that it is asked for
    once, and not for each connection."""

    text: str
    expires: float
    """Seconds since the epoch."""

    def __repr__(self) -> str:
        return f"Token('***', expires={self.expires!r})"


class NoToken(OSError):
    """None could be had. An OSError, as Kafka clients expect of what fails while they connect."""


class TokenSource:
    """Asks for tokens. Looks to aiokafka like one of its token providers.

    With a :class:`Token` the same is given until a fifth of its life is left; a text is asked for at each connection.
    """

    def __init__(self, ask: Callable[[], Awaitable[str | Token]], extensions: dict[str, str] | None = None) -> None:
        self._ask = ask
        self._extensions = extensions or {}
        self._kept: Token | None = None
        self._good_until = self._good_until_steady = 0.0

    def __repr__(self) -> str:
        return "<TokenSource>"

    async def token(self) -> str:
        """A token for a new connection. Raises NoToken, whatever the function raises, and when it takes more than ten
        seconds."""
        if self._kept is not None and self._is_good():
            return self._kept.text
        # Connections that are made at the same moment each ask: that is rare, and none waits for another's failure.
        try:
            async with asyncio.timeout(TOKEN_TIMEOUT) as limit:
                found = await self._ask()
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            # Not us: something it waited for, as a task that several calls share. It would end aiokafka's own tasks.
            raise NoToken("no token: what the token function waited for was cancelled") from error
        except Exception as error:
            if limit.expired():
                raise NoToken(f"no token: the token function took more than {TOKEN_TIMEOUT:g} s") from error
            raise NoToken(f"no token: {type(error).__name__}: {text_of(error)}") from error
        text = found.text if isinstance(found, Token) else found
        if not is_sendable(text):
            raise NoToken(f"no token: the token function returned {type(text).__name__}, not a text or a Token")
        if isinstance(found, Token):
            self._keep(found)
        return text

    def _keep(self, token: Token) -> None:
        expires: object = token.expires
        if isinstance(expires, bool) or not isinstance(expires, int | float):
            raise NoToken(f"no token: its end is {type(expires).__name__}, not a number of seconds since the epoch")
        used_for = (expires - time.time()) * (1 - _EARLY)
        self._kept = token
        self._good_until, self._good_until_steady = time.time() + used_for, steady_time() + used_for

    def _is_good(self) -> bool:
        """By both clocks. Its end is a time of the wall clock, and a machine that sleeps counts by that alone; but one
        that was put back would make an ended token good again. One that was put forward costs a new token."""
        return time.time() < self._good_until and steady_time() < self._good_until_steady

    def refused(self) -> None:
        """The broker did not take it: ask for another one the next time."""
        self._kept = None

    def extensions(self) -> dict[str, str]:
        """SASL extensions (KIP-342), sent beside the token."""
        return self._extensions
