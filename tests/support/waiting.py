"""Waiting for a condition: the one way of all tests."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Final

__all__ = ["DEADLINE", "SLACK", "until"]

DEADLINE: Final = 120.0
"""Seconds; a few on a quiet machine."""
SLACK: Final = 15.0
"""Seconds that a busy machine may take for what takes none: bounds on time are that much later."""
_LOOK: Final = 0.001
_OFTEN: Final = 0.1


async def until(
    condition: Callable[[], object], deadline: float = DEADLINE, what: str | Callable[[], str] = "the condition"
) -> float:
    """Wait until it is true; the seconds that took. ``condition`` may be a coroutine function.

    Raises AssertionError after ``deadline`` seconds, saying ``what`` was waited for.
    """
    time = asyncio.get_running_loop().time
    began = time()
    try:
        async with asyncio.timeout(deadline):
            while True:
                asked = time()
                if await _holds(condition):
                    return asked - began
                # Whoever waits takes a tenth of the time, or a third where a look takes long.
                took = time() - asked
                await asyncio.sleep(max(_LOOK, 2 * took, min(9 * took, _OFTEN)))
    except TimeoutError:
        waited_for = what if isinstance(what, str) else what()
        raise AssertionError(f"not within {deadline:g} s: {waited_for}") from None


async def _holds(condition: Callable[[], object]) -> bool:
    found = condition()
    return bool(await found if inspect.iscoroutine(found) else found)  # a future is as true as any object
