"""The request that is on its way: what its connection is, and that httpx writes no line of it."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Final

__all__ = ["SENDING", "Sending", "keep_requests_to_ourselves"]


class Sending:
    """One request that is on its way. ``found_open``: whether its last attempt got a connection that was open already;
    None where a client does not say."""

    __slots__ = ("found_open",)

    def __init__(self) -> None:
        self.found_open: bool | None = None


SENDING: Final[ContextVar[Sending | None]] = ContextVar("aioparallel_sending", default=None)


class _NoRequests(logging.Filter):
    """Leaves out the line that httpx writes of each request, with its whole address: of those that are sent here."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is of another."""
        return SENDING.get() is None


_NO_REQUESTS: Final = _NoRequests()


def keep_requests_to_ourselves(package: str) -> None:
    """Put the filter on the logger of httpx. Once is enough; more often does no harm."""
    logging.getLogger(package).addFilter(_NO_REQUESTS)
