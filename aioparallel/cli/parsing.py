"""Parses values of options that several commands have."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from cyclopts import Parameter, Token

from aioparallel.records.errors import ConfigurationError

__all__ = ["name_and_value", "parse_duration", "parse_time", "understood"]

SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def name_and_value(option: str, text: str, allowed: str) -> tuple[str, str]:
    """Parses ``NAME=VALUE``. Raises ConfigurationError, which says what is ``allowed``."""
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise ConfigurationError(option, text, allowed)
    return name, value


def parse_time(text: str, now: float | None = None) -> float:
    """Parses ISO 8601 (local time without a zone), or a duration before ``now``: 90s, 30m, 2h, 3d, 1w.

    ``now`` and the result are seconds since the epoch. Raises ConfigurationError.
    """
    if ago := DURATION.fullmatch(text):
        return (time.time() if now is None else now) - float(ago[1]) * SECONDS[ago[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise ConfigurationError(
            "time", text, "must be a duration ago (90s, 30m, 2h, 3d, 1w) or an ISO time like 2026-03-01T14:30"
        ) from None


def parse_duration(option: str, text: str) -> float:
    """Parses a duration: 90s, 30m, 2h, 3d, 1w. Returns seconds. Raises ConfigurationError."""
    if found := DURATION.fullmatch(text):
        return float(found[1]) * SECONDS[found[2]]
    raise ConfigurationError(option, text, "must be a duration: 90s, 30m, 2h, 3d, 1w")


def understood(parse: Callable[[str], object], metavar: str) -> Parameter:
    """An option parsed by a function."""

    def converter(_type: object, tokens: Sequence[Token]) -> object:
        return parse(tokens[0].value)

    return Parameter(converter=converter, n_tokens=1, accepts_keys=False, metavar=metavar)
