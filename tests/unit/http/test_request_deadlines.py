"""Deadlines of requests: one timer for all of the same length, and none for lengths of which there is nothing open."""

from __future__ import annotations

import asyncio

import pytest

from aioparallel.http import Request, http_handler
from aioparallel.http.request_deadlines import Deadlines
from aioparallel.records.errors import RequestTimeout
from tests.support.http.service import Service


async def test_many_lengths_leave_no_timers() -> None:
    """A timer for each length was kept until it ran out."""
    deadlines = Deadlines()
    for number in range(10_000):
        deadlines.end(deadlines.begin(1_000 + number / 7))
    assert len(deadlines._timers) == len(deadlines._open) < 20
    under_way = [deadlines.begin(500 + number) for number in range(1_000)]
    assert len(deadlines._timers) > 1_000
    for one in under_way:
        deadlines.end(one)
    assert len(deadlines._timers) == len(deadlines._open) < 20
    deadlines.close()


async def test_each_of_many_lengths_passes(served: Service) -> None:
    """Each at its time, whichever ended before."""
    served.answer = lambda request: 30.0 if request.path == "/late" else None

    def ask(item: int) -> Request:
        return Request("GET", "/late" if item % 2 else "/", timeout=0.2 + item / 1_000)

    async with http_handler(ask, base_url=served.url, client="aiohttp").alone() as handle:
        for _ in range(2):
            found = await asyncio.gather(*(handle(item) for item in range(60)), return_exceptions=True)
            assert [isinstance(one, RequestTimeout) for one in found] == [bool(item % 2) for item in range(60)]
        with pytest.raises(RequestTimeout):
            await handle(1)
