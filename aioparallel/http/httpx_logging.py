"""httpx logs the full URL of each request, which may hold secrets. This filter drops those lines for our requests."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Final

__all__ = ["SENDING", "hide_our_requests"]

SENDING: Final[ContextVar[bool]] = ContextVar("aioparallel_sending", default=False)
"""Whether the current context sends a request of ours."""


class _NotOurs(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not SENDING.get()


_NOT_OURS: Final = _NotOurs()


def hide_our_requests(package: str) -> None:
    """Put the filter on httpx's logger. Repeated calls have no effect."""
    logging.getLogger(package).addFilter(_NOT_OURS)
