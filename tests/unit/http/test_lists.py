"""Several requests for one record."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import web

from aioparallel import parallel_map
from aioparallel.http import Cache, Request, http_handler
from aioparallel.http.hosts import Hosts
from aioparallel.records.errors import RetryLater
from tests.support.http.asking import Kind, both, same
from tests.support.http.service import Answer, Service, service
from tests.support.waiting import until


async def test_several_requests_for_one_record(served: Service) -> None:
    """One after the other, and their answers in a list; nothing is asked for None, nor for none."""
    asked: dict[str, list[Request] | None] = {
        "two": [Request("GET", "/1"), Request("POST", "/2", json={})],
        "none": [],
        "None": None,
    }
    handler = http_handler(
        asked.__getitem__,
        lambda _, answers: answers and [one.status for one in answers],
        base_url=served.url,
        idempotency_key=lambda item, index: f"{item}-{index}",
    )
    async with handler.alone() as handle:
        assert [await handle(item) for item in asked] == [[200, 200], None, None]
    assert [request.path for request in served.asked] == ["/1", "/2"]
    assert served.asked[1].headers["Idempotency-Key"] == "two-1"
    assert "Idempotency-Key" not in served.asked[0].headers


@both
async def test_lists_to_several_full_hosts_all_get_through(client: Kind) -> None:
    """Four hosts of one request each, all of them always full: none waits for ever, and never is one host asked for
    more at once than it may be."""
    async with AsyncExitStack() as stack:
        services = [await stack.enter_async_context(service()) for _ in range(4)]
        chance = random.Random(1)
        plans = [chance.sample(services, chance.randint(1, 4)) for _ in range(150)]
        for one in services:
            one.answer = lambda _: 0.001

        def ask(item: int) -> list[Request]:
            return [Request("GET", f"{one.url}/{item}") for one in plans[item]]

        handler = http_handler(ask, client=client, max_per_host=1, idempotency_key=None)
        async with asyncio.timeout(30):  # it takes one second
            found = {o.item: o.result() async for o in parallel_map(handler, range(150), max_concurrency=50)}
        assert [len(found[item]) for item in range(150)] == [len(plan) for plan in plans]
        assert [one.most for one in services] == [1] * 4
        assert sum(len(one.asked) for one in services) == sum(map(len, plans))


async def test_a_list_is_not_passed_by_single_requests(served: Service) -> None:
    """Two hosts that always have enough to do: a list that needs both is done before most that came later."""
    served.answer = lambda _: 0.002
    urls = [served.url, served.url.replace("127.0.0.1", "localhost")]

    def ask(item: int) -> Request | list[Request]:
        return [Request("GET", url) for url in urls] if item == 20 else Request("GET", urls[item % 2])

    handler = http_handler(ask, max_per_host=1, idempotency_key=None)
    order = [o.item async for o in parallel_map(handler, range(300), max_concurrency=20)]
    assert order.index(20) < 60


async def test_a_list_goes_to_one_host_twice(served: Service) -> None:
    """One request at a time, so one place is enough."""

    def ask(item: int) -> list[Request]:
        return [Request("GET", f"/{item}"), Request("GET", f"/{item}/more")]

    handler = http_handler(ask, base_url=served.url, max_per_host=1, idempotency_key=None)
    async with asyncio.timeout(30):
        assert len([o.result() async for o in parallel_map(handler, range(30), max_concurrency=10)]) == 30
    assert served.most == 1


async def test_a_list_leaves_a_host_alone_that_has_asked_for_patience(served: Service) -> None:
    """Also where it has begun with another before."""

    def answer(request: web.BaseRequest) -> Answer:
        return 0.1 if request.path == "/slow" else web.Response(status=429, headers={"Retry-After": "60"})

    served.answer = answer
    busy = served.url.replace("127.0.0.1", "localhost")

    def ask(item: int) -> list[Request]:
        return [Request("GET", "/slow"), Request("GET", f"{busy}/busy")] if item else [Request("GET", f"{busy}/busy")]

    async with http_handler(ask, base_url=served.url).alone() as handle:
        ends = await asyncio.gather(handle(1), handle(0), return_exceptions=True)
    assert [str(end) for end in ends] == [f"no room at {busy}"] * 2
    assert served.paths == {"/slow": 1, "/busy": 1}


async def test_a_cancelled_list_leaves_its_places(served: Service) -> None:
    """All of them, whichever it was asking."""
    served.answer = lambda _: 30.0
    urls = [served.url, served.url.replace("127.0.0.1", "localhost")]

    def ask(_: int) -> list[Request]:
        return [Request("GET", url) for url in urls]

    async with http_handler(ask, max_per_host=1).alone() as handle:
        for _ in range(3):
            task = asyncio.ensure_future(handle(1))
            await until(lambda: served.now)
            with pytest.raises(RetryLater, match="no room at"):
                await handle(2)
            task.cancel()
            await asyncio.wait([task])
            await until(lambda: not served.now)


async def test_more_hosts_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host of a list is not forgotten for the next one of it."""
    monkeypatch.setattr("aioparallel.http.hosts._IDLE", 2)
    hosts = Hosts(1)
    gates = hosts.enter([f"http://host{number}" for number in range(10)])
    assert [hosts.gate(gate.name) for gate in gates] == gates
    assert [gate.under_way for gate in gates] == [1] * 10


@pytest.mark.parametrize("options", [{"single_flight": True}, {"cache": Cache(seconds=60)}])
async def test_what_lists_ask_is_not_shared(options: dict[str, Any], served: Service) -> None:
    """Each of its requests is sent."""
    async with http_handler(lambda item: [same(item)] * 2, base_url=served.url, **options).alone() as handle:
        await asyncio.gather(handle(1), handle(2))
    assert len(served.asked) == 4
