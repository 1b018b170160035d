"""What tests of ``http_handler`` ask, and with what."""

from __future__ import annotations

from typing import Literal

import pytest

from aioparallel.http import Request, Response

__all__ = ["Kind", "both", "get", "same", "status_of"]

Kind = Literal["httpx", "aiohttp"]
both = pytest.mark.parametrize("client", ["httpx", "aiohttp"])
"""With each of the clients."""


def get(number: int) -> Request:
    """Of an item."""
    return Request("GET", f"/items/{number}")


def status_of(_item: object, response: Response) -> int:
    """Of its answer."""
    return response.status


def same(_: object) -> Request:
    """Whatever it is asked about."""
    return Request("GET", "/same")
