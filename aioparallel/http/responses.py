"""What a service has answered."""

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
    """An answer, read to its end.

    ``status``: its code. ``headers``: their names in any case. ``content``: the body. ``request``: what was asked.
    """

    __slots__ = ("content", "headers", "request", "status")

    def __init__(self, request: Request, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.request = request
        self.status = status
        self.headers = headers
        self.content = content

    def json(self) -> Any:
        """The body, read as JSON. Raises ValueError where it is none."""
        return json.loads(self.content)

    @property
    def text(self) -> str:
        """The body as text, in the charset that its headers name, or UTF-8; what is none in it is replaced."""
        charset = self.headers.get("Content-Type", "").lower().partition("charset=")[2].partition(";")[0].strip(' "')
        try:
            return self.content.decode(charset or "utf-8", errors="replace")
        except (LookupError, ValueError):  # it is none, or none that replaces
            return self.content.decode(errors="replace")

    def __repr__(self) -> str:
        return f"<Response {self.status} to {self.request.method} {shown(self.request.url)}>"


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds that an answer asks to wait for: ``Retry-After`` is a number of them, or a date (RFC 9110, section
    10.2.3; some write fractions, which it does not know), a million at most. None where it asks for nothing that can be
    read. A date is compared with the answer's own ``Date``: both are of the server's clock, and ours may be another
    one. ``headers``: their names in any case. ``now``: in place of our clock, for an answer without a ``Date``."""
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
    return date.replace(tzinfo=UTC) if date.tzinfo is None else date  # always GMT
