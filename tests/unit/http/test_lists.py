"""``http_handler``: several requests for one record."""

from __future__ import annotations

import asyncio

from aiohttp import web

from aioparallel.http import Request, http_handler
from tests.support.http.service import Answer, Service


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


async def test_a_list_leaves_a_host_alone_that_has_asked_for_patience(served: Service) -> None:
    """Also where it has begun before with another."""

    def answer(request: web.BaseRequest) -> Answer:
        return 0.1 if request.path == "/slow" else web.Response(status=429, headers={"Retry-After": "60"})

    served.answer = answer
    busy = served.url.replace("127.0.0.1", "localhost") + "/busy"

    def ask(item: int) -> list[Request]:
        return [Request("GET", "/slow"), Request("GET", busy)] if item else [Request("GET", busy)]

    async with http_handler(ask, base_url=served.url).alone() as handle:
        ends = await asyncio.gather(handle(1), handle(0), return_exceptions=True)
    assert [str(end) for end in ends] == [f"no room at {busy.removesuffix('/busy')}"] * 2
    assert served.paths == {"/slow": 1, "/busy": 1}
