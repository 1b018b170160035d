"""Each test runs on both event loops: their timers differ (uvloop gives no time for what is due at once)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """See the module."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
