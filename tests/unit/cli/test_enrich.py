from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from aioparallel import Record
from aioparallel.cli.demo.enrich import Enricher
from aioparallel.cli.demo.events import EventLog, Kind, Lines, read_events

FLIGHT = {"tailnum": None, "origin": "JFK", "dest": "SJU", "time_hour": "2013-01-01T10:00:00Z", "flight": "1"}
RECORD = Record("flights", 3, 14, None, json.dumps(FLIGHT).encode())

Answer = Callable[[httpx.Request], httpx.Response]


async def handle(answer: Answer, directory: Path) -> None:
    """Run the handler once on RECORD against a service that answers so."""
    with EventLog(directory / "events") as events, Lines(directory / "lines") as lines:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            await Enricher(client, "http://service", events, lines, run=2).handle(RECORD)


@pytest.mark.parametrize("status", [200, 404])
async def test_answer_is_written(status: int, tmp_path: Path) -> None:
    """The flight, the answer and the record's place become one line; 404 is an answer like another."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(status, json={"plane": None, "weather": {"temp": 39.0}})

    await handle(answer, tmp_path)
    assert asked == ["http://service/flights/NA/JFK/SJU/2013-01-01T10:00:00Z?partition=3&offset=14&run=2"]
    (line,) = map(json.loads, (tmp_path / "lines").read_text().splitlines())
    place = {"partition": 3, "offset": 14, "run": 2}
    assert line == {**place, "flight": FLIGHT, "plane": None, "weather": {"temp": 39.0}}
    events = read_events(tmp_path / "events")
    assert [(event.kind, event.run, event.offset) for event in events] == [
        (Kind.BEGAN, 2, 14),
        (Kind.COMPLETED, 2, 14),
    ]


@pytest.mark.parametrize("status", [204, 302, 400, 500, 503])
async def test_other_answers_fail(status: int, tmp_path: Path) -> None:
    """Any other answer raises, naming the record; nothing is written but that it failed."""
    with pytest.raises(httpx.HTTPStatusError, match=f"answered {status} for .*flights-3 offset 14"):
        await handle(lambda _: httpx.Response(status), tmp_path)
    assert (tmp_path / "lines").read_bytes() == b""
    assert [event.kind for event in read_events(tmp_path / "events")] == [Kind.BEGAN, Kind.FAILED]
