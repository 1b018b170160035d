"""What users of other clients have reported, tried on ``http_handler``. ``docs/testing.md`` names the threads."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from aioparallel import RetryPolicy, parallel_map
from aioparallel.http import Request, http_handler
from aioparallel.records.errors import RequestTimeout
from tests.support.http.asking import Kind, both, get, status_of
from tests.support.http.service import Service
from tests.support.waiting import DEADLINE, SLACK, until


class Trickling(web.StreamResponse):
    """An answer whose body does not end."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Not before its connection is gone."""
        while True:
            await self.write(b"x")
            await asyncio.sleep(0.01)


@both
async def test_answers_cut_short_within_their_body_keep_no_connection(client: Kind, served: Service) -> None:
    """Deadlines, and cancellations from outside, strike while bodies are read: the service sees each connection go,
    and the next requests have all of them."""
    slow, timeout = True, 0.1
    release = asyncio.Event()
    served.answer = lambda _: Trickling() if slow else release

    def ask(number: int) -> Request:
        return Request("GET", f"/items/{number}", timeout=timeout)

    async with http_handler(ask, client=client, base_url=served.url).alone(max_concurrency=5) as handle:
        found = await asyncio.gather(*(handle(number) for number in range(5)), return_exceptions=True)
        assert [type(one) for one in found] == [RequestTimeout] * 5
        timeout = DEADLINE
        tasks = [asyncio.ensure_future(handle(number)) for number in range(5)]
        await until(lambda: len(served.asked) == 10)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        await until(lambda: all(one.transport is None or one.transport.is_closing() for one in served.asked))
        slow = False
        served.now = 0
        tasks = [asyncio.ensure_future(handle(number)) for number in range(5)]
        await until(lambda: served.now == 5)
        release.set()
        await asyncio.gather(*tasks)


@both
@pytest.mark.parametrize("text", ["-1", "Wed, 21 Oct 2015 07:28:00 GMT", "0", "soon"])
async def test_a_host_that_names_no_time_to_come_is_not_asked_without_a_pause(
    client: Kind, served: Service, text: str
) -> None:
    """Retry-After negative, past, now or unreadable: each request has a pause before it, and the record ends well."""
    times: list[float] = []
    loop = asyncio.get_running_loop()

    def answer(_: web.BaseRequest) -> web.Response:
        times.append(loop.time())
        status = 429 if len(times) < 2 else 200
        return web.Response(status=status, headers={"Retry-After": text})

    served.answer = answer
    handler = http_handler(get, status_of, client=client, base_url=served.url, idempotency_key=None)
    (outcome,) = [one async for one in parallel_map(handler, range(1), retry=RetryPolicy(max_attempts=1))]
    assert outcome.result() == 200
    assert len(times) == 2
    assert times[1] - times[0] > 0.09


@both
async def test_a_host_cannot_ask_for_a_pause_of_days(client: Kind, served: Service) -> None:
    """``longest_wait`` is the most that it gets; the record counts no attempt."""
    served.answer = lambda _: (
        web.Response(status=503, headers={"Retry-After": "999999"}) if len(served.asked) < 2 else web.Response()
    )
    handler = http_handler(get, status_of, client=client, base_url=served.url, idempotency_key=None, longest_wait=0.3)
    began = asyncio.get_running_loop().time()
    (outcome,) = [one async for one in parallel_map(handler, range(1), retry=RetryPolicy(max_attempts=1))]
    assert outcome.result() == 200
    assert 0.29 < asyncio.get_running_loop().time() - began < SLACK


@both
async def test_who_waits_for_a_place_has_not_begun_its_time(client: Kind, served: Service) -> None:
    """Forty requests of 0.05 s each through two places, with a time-out of 0.5 s for each of them: none runs out."""
    served.answer = lambda _: 0.05
    handler = http_handler(
        get, status_of, client=client, base_url=served.url, idempotency_key=None, max_per_host=2, timeout=0.5
    )
    outcomes = [one async for one in parallel_map(handler, range(40), retry=RetryPolicy(max_attempts=1))]
    assert {one.result() for one in outcomes} == {200}
    assert served.most == 2
