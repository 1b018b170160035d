"""Handlers and readers for the tests of parallel_map."""

from __future__ import annotations

import asyncio
from typing import Any

from aioparallel import ParallelMap


async def double(number: int) -> int:
    await asyncio.sleep(0.002 if number % 2 else 0)
    return 2 * number


async def picky(number: int) -> int:
    if number == 3:
        raise ValueError("no threes")
    return await double(number)


async def forever(number: int) -> None:
    await asyncio.Event().wait()


async def read(outcomes: ParallelMap[Any, Any], items: list[int]) -> None:
    """Note the items of all outcomes."""
    async for outcome in outcomes:
        items.append(outcome.item)  # noqa: PERF401 - it may raise


def tasks() -> int:
    return len(asyncio.all_tasks())
