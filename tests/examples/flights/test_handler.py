"""The demo's handler, against services that answer in every way."""

from __future__ import annotations

import json

import httpx
import pytest

from aioparallel import Record
from examples.flights.handler import enrich

FLIGHT = {"tailnum": None, "origin": "JFK", "dest": "SJU", "time_hour": "2013-01-01T10:00:00Z", "flight": "1"}
RECORD = Record("flights", 3, 14, None, json.dumps(FLIGHT).encode())


@pytest.mark.parametrize("status", [200, 404])
async def test_answer_becomes_a_line(status: int) -> None:
    """The flight, the answer and the record's place in one line; 404 is an answer like another."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(status, json={"plane": None, "weather": {"temp": 39.0}})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        line = await enrich(RECORD, "http://service/2", http)
    assert asked == ["http://service/2/flights/NA/JFK/SJU/2013-01-01T10:00:00Z?partition=3&offset=14"]
    assert json.loads(line) == {
        "partition": 3,
        "offset": 14,
        "flight": FLIGHT,
        "plane": None,
        "weather": {"temp": 39.0},
    }


@pytest.mark.parametrize("status", [302, 400, 429, 500, 503])
async def test_other_answers_fail(status: int) -> None:
    """Any other answer raises, so that the record is tried again."""
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(status))) as http:
        with pytest.raises(httpx.HTTPStatusError, match=str(status)):
            await enrich(RECORD, "http://service/0", http)
