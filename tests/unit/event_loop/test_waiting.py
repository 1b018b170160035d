"""Waiting that something else cuts short."""

from __future__ import annotations

import asyncio

import pytest

from aioparallel.event_loop.waiting import OutOfTime, to_the_end, unless, within
from aioparallel.records.errors import WorkCancelled
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


async def test_only_the_event_is_the_event() -> None:
    """Work that awaits what somebody else cancels has failed: it is not told as if the event had come."""

    async def work(shared: asyncio.Future[None]) -> None:
        await shared

    shared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(unless(asyncio.Event(), work(shared)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    shared.cancel()
    with pytest.raises(WorkCancelled):
        await waiting
    assert not waiting.cancelled()


async def test_what_ends_by_itself_while_it_is_seen_to_the_end() -> None:
    """The same where nothing cuts it short."""

    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(WorkCancelled):
        await to_the_end(work())


async def test_a_limit_of_its_own_is_no_limit_of_the_work() -> None:
    """Whoever awaits the work would take the time-out within it for its own."""

    async def work() -> None:
        await within(0.01, asyncio.Event().wait())

    with pytest.raises(TimeoutError) as raised:
        await within(100, work())
    assert type(raised.value) is TimeoutError
    assert isinstance(raised.value.__cause__, OutOfTime)


async def test_a_limit_can_be_moved() -> None:
    limit = asyncio.timeout(100)
    asyncio.get_running_loop().call_soon(lambda: limit.reschedule(0))
    with pytest.raises(OutOfTime):
        await within(limit, asyncio.Event().wait())
