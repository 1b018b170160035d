"""httpx logs each request with its whole address: not those that are sent here."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Final

__all__ = ["SENDING", "keep_requests_to_ourselves"]

SENDING: Final[ContextVar[bool]] = ContextVar("aioparallel_sending", default=False)
"""Whether a request of ours is on its way."""


class _NoRequests(logging.Filter):
    """Leaves out the line of a request of ours."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is of another."""
        return not SENDING.get()


_NO_REQUESTS: Final = _NoRequests()


def keep_requests_to_ourselves(package: str) -> None:
    """Put the filter on the logger of httpx. Once is enough; more often does no harm."""
    logging.getLogger(package).addFilter(_NO_REQUESTS)
