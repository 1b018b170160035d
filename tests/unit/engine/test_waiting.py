"""Waiting that something else cuts short."""

from __future__ import annotations

import asyncio

import pytest

from aioparallel.engine.waiting import unless
from tests.support.virtual_time import VirtualLoop


def test_a_cancellation_counts_also_while_what_was_cut_short_ends() -> None:
    """Who is cancelled while the work takes its leave raises, as at any other moment; the work has ended then."""
    ended: list[float] = []

    async def work() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)
            ended.append(asyncio.get_running_loop().time())

    async def main() -> None:
        event = asyncio.Event()
        waiting = asyncio.create_task(unless(event, work()))
        await asyncio.sleep(0.1)
        event.set()
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert len(ended) == 1

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
