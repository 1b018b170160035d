"""A member that stops itself, and the input it needs to come to that."""

from __future__ import annotations

import asyncio
import itertools

from aioparallel.testing.processes.child import Child
from tests.support.kafka.filling import fill, numbered

__all__ = ["feed_until_frozen"]

_PORTION = 500
_PAUSE = 0.3
_TIMEOUT = 60.0


async def feed_until_frozen(child: Child, servers: str, topic: str, keys: int) -> tuple[str, int]:
    """Write numbered records (see ``filling.py``), portion by portion, until the child says that it freezes. What it
    says, and how many were written.

    It must be the only member: one that joins before may do all there is, and leave it nothing to freeze in. However
    much a busy machine lets it do at once, more comes. Raises ChildFailed when it says nothing for a minute.
    """

    async def hears() -> str:
        while not (line := await child.line(_TIMEOUT)).startswith("frozen"):
            pass
        return line

    hearing = asyncio.create_task(hears())
    written = 0
    try:
        while not hearing.done():
            portion = itertools.islice(numbered(written + _PORTION, keys), written, None)
            written += await asyncio.to_thread(fill, servers, topic, portion)
            await asyncio.wait([hearing], timeout=_PAUSE)
        return await hearing, written
    finally:
        hearing.cancel()
