"""Asking several brokers what each of them can answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Final, TypeVar

__all__ = ["NEXT", "first_answer"]

N = TypeVar("N")
T = TypeVar("T")

NEXT: Final = 1.0
"""Seconds without an answer after which the next broker is asked the same."""


async def first_answer(nodes: Collection[N], ask: Callable[[N], Coroutine[None, None, T | None]]) -> T | None:
    """Ask all of them the same, one after the other: the next one as soon as one before has failed (None), or has not
    answered for a second. The first answer counts; None when all have failed."""
    left = iter(nodes)
    pending: set[asyncio.Task[T | None]] = set()
    more = True
    try:
        while True:
            if more:
                if (node := next(left, None)) is None:
                    more = False
                else:
                    pending.add(asyncio.create_task(ask(node)))
            if not pending:
                return None
            done, pending = await asyncio.wait(
                pending, timeout=NEXT if more else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                if (answer := task.result()) is not None:
                    return answer
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
