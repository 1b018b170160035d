"""Sends the same request to several brokers, and uses the first answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final, TypeVar

__all__ = ["NEXT", "cancel_all", "first_answer"]

N = TypeVar("N")
T = TypeVar("T")

NEXT: Final = 1.0
"""Seconds without an answer before the next broker is asked."""
_CANCEL_TIMEOUT: Final = 1.0
"""Seconds to wait for cancelled tasks."""


async def cancel_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel these tasks and wait until they have ended, for a limited time: a login may run user code that suppresses
    the cancellation."""
    for task in tasks:
        task.cancel()
    if tasks:
        ended, _ = await asyncio.wait(tasks, timeout=_CANCEL_TIMEOUT)
        await asyncio.gather(*ended, return_exceptions=True)  # their exceptions do not matter


async def first_answer(nodes: Collection[N], ask: Callable[[N], Coroutine[None, None, T | None]]) -> T | None:
    """Call ``ask`` for one node after the other: for the next one when a call has failed (returned None), or when there
    was no answer for a second. Returns the first answer; None if all calls failed."""
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
        await cancel_all(pending)
