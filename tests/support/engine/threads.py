"""Loop threads and their flows, for tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from aioparallel.engine.flow.flow import Outcome
from aioparallel.engine.flow.loop_thread import ThreadedFlow


async def same(item: int) -> int:
    return item


async def forever(item: int) -> None:
    await asyncio.Event().wait()


def read(flow: ThreadedFlow[Any, Any]) -> list[Outcome[Any, Any]]:
    outcomes: list[Outcome[Any, Any]] = []
    while taken := flow.take():
        outcomes += taken
    return outcomes


def in_background(function: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """What it has returned, or raised."""
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(function())
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, ended
