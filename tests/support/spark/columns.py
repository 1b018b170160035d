"""A column in a module, with what cannot be sent beside it."""

from __future__ import annotations

import threading

from aioparallel.spark import async_udf

__all__ = ["counted"]

LOCK = threading.Lock()
SEEN: list[int] = []


@async_udf(returns="bigint")
async def counted(n: int) -> int:
    """How many have been seen in this process."""
    with LOCK:
        SEEN.append(n)
        return len(SEEN)
