"""Passwords and tokens: read anew whenever somebody logs in, and shown to nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self

from aioparallel.errors import ConfigurationError

__all__ = ["Hidden", "NoToken", "Password", "Token", "TokenSource", "hidden", "read_secret"]

TOKEN_TIMEOUT: Final = 10.0
"""Seconds that a function may take for a token; a connection waits for it meanwhile."""
_EARLY: Final = 0.2
"""Part of its life before a token's end in which it is not used for a new connection any more."""


class Hidden:
    """Stands for a secret in a message: only its type is told."""

    def __init__(self, secret: object) -> None:
        self._type = type(secret).__name__

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


def read_secret(option: str, file: str | Path) -> str:
    """The text of a file, without the line end behind it. Raises ConfigurationError."""
    try:
        text = Path(file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(option, str(file), f"cannot be read ({_cause(error)}); give a text file") from None
    if not text:
        raise ConfigurationError(option, str(file), "is empty; the file holds the secret and nothing else")
    return text


def _cause(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "no text in UTF-8"


class Token(NamedTuple):
    """A token and when it ends: what a token function may return instead of the bare text, so that it is asked for
    once, and not for each connection."""

    text: str
    expires: float
    """Seconds since the epoch."""

    def __repr__(self) -> str:
        return f"Token('***', expires={self.expires:.0f})"


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
        self._good_until = 0.0

    def __repr__(self) -> str:
        return "<TokenSource>"

    async def token(self) -> str:
        """A token for a new connection. Raises NoToken, whatever the function raises, and when it takes more than ten
        seconds."""
        if self._kept is not None and time.time() < self._good_until:
            return self._kept.text
        # Connections that are made at the same moment each ask: that is rare, and none waits for another's failure.
        try:
            async with asyncio.timeout(TOKEN_TIMEOUT) as limit:
                found = await self._ask()
        except Exception as error:
            if limit.expired():
                raise NoToken(f"no token: the token function took more than {TOKEN_TIMEOUT:g} s") from error
            raise NoToken(f"no token: {type(error).__name__}: {error}") from error
        if isinstance(found, Token):
            now = time.time()
            self._kept, self._good_until = found, now + (found.expires - now) * (1 - _EARLY)
            found = found.text
        given: object = found
        if not (isinstance(given, str) and given):
            raise NoToken(f"no token: the token function returned {type(given).__name__}, not a text or a Token")
        return found

    def refused(self) -> None:
        """The broker did not take it: ask for another one the next time."""
        self._kept = None

    def extensions(self) -> dict[str, str]:
        """SASL extensions (KIP-342), sent beside the token."""
        return self._extensions
