"""Both event loops: they differ in what they wait for at a process's end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Each test runs once on each of them."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
