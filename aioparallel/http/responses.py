"""A response, and the delay that it requests."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from aioparallel.http.requests import Request, shown

__all__ = ["Response", "retry_after"]

_MOST: Final = 1e6  # seconds
_NUMBER: Final = re.compile(r"[0-9]{1,20}(\.[0-9]{1,9})?")


class Response:
    """A response, read to its end.

    ``status``: its code. ``headers``: case-insensitive names. ``content``: the body. ``request``: its request.
    """

    __slots__ = ("content", "headers", "request", "status")

    def __init__(self, request: Request, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.request = request
        self.status = status
        self.headers = headers
        self.content = content

    def json(self) -> Any:
        """The body parsed as JSON. Raises ValueError if it is not JSON."""
        return json.loads(self.content)

    @property
    def text(self) -> str:
        """The body decoded by the charset of Content-Type, or UTF-8. Invalid bytes are replaced."""
        charset = self.headers.get("Content-Type", "").lower().partition("charset=")[2].partition(";")[0].strip(' "')
        try:
            return self.content.decode(charset or "utf-8", errors="replace")
        except (LookupError, ValueError):  # an unknown charset, or one that cannot replace errors
            return self.content.decode(errors="replace")

    def __repr__(self) -> str:
        return f"<Response {self.status} to {self.request.method} {shown(self.request.url)}>"


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """The delay in seconds that a response requests, at most a million; None without a readable ``Retry-After``.

    ``Retry-After`` holds seconds or a date (RFC 9110, section 10.2.3); fractions are read as well. A date is compared
    with the response's ``Date``, as both come from the server's clock. ``headers``: names in any case. ``now``:
    replaces the local clock for a response without ``Date``.
    """
    text = _header(headers, "retry-after")
    if _NUMBER.fullmatch(text):
        return min(float(text), _MOST)
    date = _date(text)
    if date is None:
        return None
    sent = _date(_header(headers, "date")) or now or datetime.now(UTC)
    return min(max(0.0, (date - sent).total_seconds()), _MOST)


def _header(headers: Mapping[str, str], wanted: str) -> str:
    return next((value for name, value in headers.items() if name.lower() == wanted), "").strip()


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, IndexError, TypeError, OverflowError):
        return None
    return date.replace(tzinfo=UTC) if date.tzinfo is None else date  # HTTP dates are GMT
