"""Asking several brokers what each of them can answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final, TypeVar

__all__ = ["NEXT", "first_answer", "given_up"]

N = TypeVar("N")
T = TypeVar("T")

NEXT: Final = 1.0
"""Seconds without an answer after which the next broker is asked the same."""
_GIVEN_UP: Final = 1.0
"""Seconds for a task to end that nobody needs any more."""


async def given_up(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel these and wait until they have ended, but not for one that goes on for long: a login may run code of the
    user's, which lets no cancellation pass."""
    for task in tasks:
        task.cancel()
    if tasks:
        ended, _ = await asyncio.wait(tasks, timeout=_GIVEN_UP)
        await asyncio.gather(*ended, return_exceptions=True)  # what they have raised is of no use


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
        await given_up(pending)
