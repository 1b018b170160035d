"""ResponseCache that several records share, of requests under way and of those before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from aioparallel import parallel_map
from aioparallel.http import Cache, Request, RequestTimeout, Response, http_handler
from aioparallel.http.sharing import ResponseCache
from tests.support.http.asking import Kind, both, get, same
from tests.support.http.service import Answer, Service
from tests.support.waiting import SLACK, until


async def test_equal_requests_are_shared(served: Service) -> None:
    """One is sent for equal ones under way, and none while its answer is kept; a POST is its own."""
    served.answer = lambda _: 0.05

    def ask(number: int) -> Request:
        return Request("GET", f"/{number % 3}") if number < 90 else Request("POST", "/post")

    async def count(**options: Any) -> dict[str, int]:
        served.asked.clear()
        handler = http_handler(ask, base_url=served.url, idempotency_key=None, **options)
        outcomes = [o async for o in parallel_map(handler, [*range(100)], max_concurrency=10)]
        assert all(o.item >= 90 or o.result().json() == {"path": f"/{o.item % 3}"} for o in outcomes)
        return dict(served.paths)

    shared = await count(single_flight=True)
    assert shared["/post"] == 10
    assert sum(shared.values()) < 70
    kept = await count(single_flight=True, cache=Cache(seconds=60))
    assert kept == {"/0": 1, "/1": 1, "/2": 1, "/post": 10}
    served.answer = lambda _: web.json_response({"path": _.path}, headers={"Cache-Control": "no-store"})
    assert sum((await count(cache=Cache(seconds=60))).values()) == 100


async def test_who_waits_for_a_shared_answer_may_go(served: Service) -> None:
    """The first is cancelled: the others get their answer; when all are, the request ends, and its place is free."""
    served.answer = lambda _: 0.2
    handler = http_handler(get, base_url=served.url, single_flight=True, max_per_host=1)
    async with handler.alone() as handle:
        first, second = asyncio.ensure_future(handle(1)), asyncio.ensure_future(handle(1))
        await until(lambda: served.now)
        first.cancel()
        await second
        assert len(served.asked) == 1
        third = asyncio.ensure_future(handle(1))
        await until(lambda: served.now)
        third.cancel()
        await asyncio.wait([third])
        await until(lambda: not served.now)
        await handle(2)


@both
async def test_all_that_is_said_of_keeping_counts(client: Kind, served: Service) -> None:
    """In several headers too."""

    def answer(_: web.BaseRequest) -> Answer:
        response = web.Response()
        response.headers.add("Cache-Control", "public")
        response.headers.add("Cache-Control", "no-store")
        return response

    served.answer = answer
    handler = http_handler(same, client=client, base_url=served.url, cache=Cache(seconds=60))
    async with handler.alone() as handle:
        await handle(1)
        await handle(2)
    assert len(served.asked) == 2


async def test_who_shares_a_request_has_a_time_of_its_own(served: Service) -> None:
    """Whoever sent it may have more."""
    served.answer = lambda _: 5.0
    times = iter([5.0, 0.1])

    def ask(_: int) -> Request:
        return Request("GET", "/same", timeout=next(times))

    handler = http_handler(ask, base_url=served.url, single_flight=True)
    loop = asyncio.get_running_loop()
    async with handler.alone() as handle:
        first = asyncio.ensure_future(handle(1))
        await until(lambda: served.now)
        began = loop.time()
        with pytest.raises(RequestTimeout, match=r"no answer within 0\.1 s"):
            await handle(2)
        assert loop.time() - began < SLACK
        first.cancel()
        await asyncio.wait([first])


def answer_of(size: int, headers: dict[str, str] | None = None) -> Response:
    """So large."""
    return Response(Request("GET", "http://x/"), 200, headers or {}, bytes(size))


def test_answers_that_are_kept_are_bounded_by_bytes() -> None:
    """The one that was not used for longest goes first; one that is larger by itself is not kept."""
    answers = ResponseCache(Cache(seconds=60, max_bytes=1_000_000), lambda: 0.0)
    for name in range(20):
        answers.put(name, answer_of(200_000))
        answers.get(0)
    assert [name for name in range(20) if answers.get(name) is not None] == [0, 17, 18, 19]
    answers.put(18, answer_of(990_000))  # in place of the one that was kept
    assert [name for name in range(20) if answers.get(name) is not None] == [18]
    answers.put(1, answer_of(1_000_000))
    answers.put(18, answer_of(1_000_000))
    assert [name for name in range(20) if answers.get(name) is not None] == []
    for name in range(2_000):  # small ones, whose headers are what is large
        answers.put(name, answer_of(0, {"X": "x" * 10_000}))
    assert len([name for name in range(2_000) if answers.get(name) is not None]) < 100


def test_answers_that_are_changed_are_counted_as_they_came() -> None:
    """Who gets one may let its content go, or decode it."""
    answers = ResponseCache(Cache(seconds=60, max_bytes=1_000_000), lambda: 0.0)
    for name in range(200):
        answers.put(name, answer := answer_of(200_000))
        answer.content = b""
    assert [name for name in range(200) if answers.get(name) is not None] == [196, 197, 198, 199]


def test_old_answers_make_room() -> None:
    """What has grown too old is not counted any more."""
    now = 0.0
    answers = ResponseCache(Cache(seconds=60, max_bytes=1_000_000), lambda: now)
    answers.put("old", answer_of(900_000))
    now = 61.0
    assert answers.get("old") is None
    answers.put("a", answer_of(450_000))
    answers.put("b", answer_of(450_000))
    assert answers.get("a") is not None
    assert answers.get("b") is not None
