"""So many requests at each host, and none at one that has asked for patience."""

from __future__ import annotations

import asyncio

from aiohttp import web

from aioparallel import parallel_map
from aioparallel.http import Cache, Request, http_handler
from tests.support.http.asking import Kind, both, get
from tests.support.http.service import Answer, Service


@both
async def test_a_host_that_asks_for_patience_gets_it(client: Kind, served: Service) -> None:
    """Retry-After: nobody asks that host before its time, no attempt is counted, another host is asked all the time."""
    loop = asyncio.get_running_loop()
    times: dict[str, list[float]] = {"127.0.0.1": [], "localhost": []}

    def answer(request: web.BaseRequest) -> Answer:
        host = request.host.partition(":")[0]
        times[host].append(loop.time())
        if host == "127.0.0.1" and len(times[host]) == 1:
            return web.Response(status=429, headers={"Retry-After": "1"})
        return 0.05

    served.answer = answer
    other = served.url.replace("127.0.0.1", "localhost")

    def ask(number: int) -> Request:
        return Request("GET", f"{served.url if number % 2 else other}/{number}")

    handler = http_handler(ask, client=client, idempotency_key=None, max_per_host=1)
    outcomes = [o async for o in parallel_map(handler, range(20), max_concurrency=2)]
    assert {(o.attempts, o.result().status) for o in outcomes} == {(1, 200)}
    throttled, free = times["127.0.0.1"], times["localhost"]
    assert throttled[1] - throttled[0] >= 0.99
    assert len([one for one in free if one < throttled[1]]) > 5


@both
async def test_so_many_at_each_host(client: Kind, served: Service) -> None:
    """``max_per_host``."""
    served.answer = lambda _: 0.005
    handler = http_handler(get, client=client, base_url=served.url, idempotency_key=None, max_per_host=3)
    assert len([o async for o in parallel_map(handler, range(60), max_concurrency=20)]) == 60
    assert served.most == 3


@both
async def test_a_place_is_kept_for_a_slow_request_function_and_for_no_other(client: Kind, served: Service) -> None:
    """One host, one request at a time. Who is woken and takes more than a look (a second) to say what it asks finds its
    place; who finds its answer kept gives its place back."""
    served.answer = lambda _: 0.02

    async def slow(number: int) -> Request:
        await asyncio.sleep(1.2)
        return Request("GET", f"/{number}")

    loop = asyncio.get_running_loop()
    began = loop.time()
    handler = http_handler(slow, client=client, base_url=served.url, max_per_host=1, idempotency_key=None)
    assert len([o async for o in parallel_map(handler, range(4), max_concurrency=4)]) == 4
    assert loop.time() - began < 12
    began = loop.time()

    def few(number: int) -> Request:
        return Request("GET", f"/{number % 5}")

    cached = http_handler(
        few,
        client=client,
        base_url=served.url,
        max_per_host=1,
        cache=Cache(seconds=60),
        idempotency_key=None,
    )
    assert len([o async for o in parallel_map(cached, range(100), max_concurrency=20)]) == 100
    assert loop.time() - began < 5
