"""What a response status means for the record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from aioparallel.config.handling import check_choice
from aioparallel.records.errors import ConfigurationError

__all__ = ["IF_TOLD", "IF_TOLD_ELSE_REJECT", "Known", "Meaning", "Statuses", "check_statuses", "table_of"]

Meaning = Literal["done", "wait", "retry", "reject"]
"""``"done"``: success. ``"wait"``: the service requests a delay, and no attempt is counted. ``"retry"``: a failed
attempt, handled by the failure policy. ``"reject"``: a final failure."""
IF_TOLD: Final = "wait if told"
"""``"wait"`` with a ``Retry-After``, else ``"retry"``."""
IF_TOLD_ELSE_REJECT: Final = "wait if told, else reject"
"""``"wait"`` with a ``Retry-After``, else ``"reject"``."""
Known = Meaning | Literal["wait if told", "wait if told, else reject"]
Statuses = Mapping[int | range, Meaning]
"""Meanings by code or range of codes."""

_CODES: Final = range(100, 600)


def check_statuses(statuses: Statuses) -> None:
    """Raises ConfigurationError."""
    if not isinstance(statuses, Mapping):
        raise ConfigurationError("http_handler statuses", statuses, 'must be a mapping like {404: "done"}')
    for codes, meaning in statuses.items():
        name = f"http_handler statuses[{codes!r}]"
        given = codes if isinstance(codes, range) else (codes,)
        if not given or not all(type(code) is int and code in _CODES for code in given):
            raise ConfigurationError(name, codes, "must be a code from 100 to 599, or a range of them")
        check_choice(name, meaning, ("done", "wait", "retry", "reject"))


def table_of(statuses: Statuses) -> dict[int, Known]:
    """The meaning of each code: the given ones, else the defaults."""
    table: dict[int, Known] = {}
    for code in _CODES:
        table[code] = "done" if code // 100 == 2 else "retry" if code // 100 == 5 else "reject"
    # Requests that a second attempt may help (RFC 9110, RFC 8470): incomplete, also reported by proxies for idle
    # connections (408), on the wrong connection (421), too early (425), too large for now (413).
    table[408] = table[421] = table[425] = "retry"
    table[413], table[429], table[503] = IF_TOLD_ELSE_REJECT, "wait", IF_TOLD
    for codes, meaning in statuses.items():  # single codes override ranges
        if isinstance(codes, range):
            table.update(dict.fromkeys(codes, meaning))
    table.update({codes: meaning for codes, meaning in statuses.items() if isinstance(codes, int)})
    return table
