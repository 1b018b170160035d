from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request

from aioparallel.cli.demo.events import EventLog, Kind, Place, read_events
from aioparallel.cli.demo.flights import Enrichments, data_directory
from aioparallel.cli.demo.service import LONGEST_DELAY, SHORTEST_DELAY, Service, delay_of

FLIGHT = "/flights/N14228/EWR/IAH/2013-01-01T10:00:00Z"


@pytest.fixture(scope="module")
def enrichments() -> Enrichments:
    """The service's tables, read once."""
    return Enrichments(data_directory())


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    """The service's log, at ``service.events``."""
    with EventLog(tmp_path / "service.events") as log:
        yield log


def test_delay_depends_on_seed_and_flight_only() -> None:
    """The same seed and flight wait equally long; another seed or flight does not."""
    assert delay_of(7, FLIGHT) == delay_of(7, FLIGHT)
    assert len({delay_of(7, FLIGHT), delay_of(-8, FLIGHT), delay_of(7, FLIGHT + "x")}) == 3


def test_delays_are_uniform_from_5_to_30_ms() -> None:
    """Every delay lies in the range, all tenths of it are taken about equally often."""
    delays = [delay_of(1, str(number)) for number in range(10_000)]
    tenths = [0] * 10
    for delay in delays:
        assert SHORTEST_DELAY <= delay < LONGEST_DELAY
        tenths[int((delay - SHORTEST_DELAY) / (LONGEST_DELAY - SHORTEST_DELAY) * 10)] += 1
    assert min(tenths) > 850
    assert max(tenths) < 1150


async def test_answer_is_written_down(enrichments: Enrichments, log: EventLog, tmp_path: Path) -> None:
    """A request is answered with the enrichment, and its coming and its answer are logged with its record."""
    service = Service(enrichments, log, seed=1)
    began = asyncio.get_running_loop().time()
    response = await service.answer(make_mocked_request("GET", f"{FLIGHT}?partition=3&offset=14&run=2"))
    assert asyncio.get_running_loop().time() - began >= SHORTEST_DELAY
    assert response.status == 200
    assert isinstance(response.body, bytes)
    assert json.loads(response.body)["plane"]["tailnum"] == "N14228"
    came, answered = read_events(tmp_path / "service.events")
    assert (came.kind, answered.kind) == (Kind.BEGAN, Kind.COMPLETED)
    assert came.place == answered.place == Place(3, 14)
    assert came.run == answered.run == 2


async def test_unknown_plane_is_404_with_an_answer(enrichments: Enrichments, log: EventLog) -> None:
    """A plane nobody knows is a 404 whose body still has the airports."""
    request = make_mocked_request("GET", "/flights/NA/EWR/IAH/2013-01-01T10:00:00Z?partition=0&offset=0&run=0")
    response = await Service(enrichments, log, seed=1).answer(request)
    assert response.status == 404
    assert isinstance(response.body, bytes)
    assert json.loads(response.body)["to"]["faa"] == "IAH"


@pytest.mark.parametrize("path", ["/", "/health", FLIGHT, f"{FLIGHT}?partition=x&offset=0&run=0", "/a/b/c/d/e?run=0"])
async def test_anything_else_is_refused(path: str, enrichments: Enrichments, log: EventLog, tmp_path: Path) -> None:
    """What is no request for a flight is a 400 and leaves no event."""
    response = await Service(enrichments, log, seed=1).answer(make_mocked_request("GET", path))
    assert response.status == 400
    assert read_events(tmp_path / "service.events") == []
