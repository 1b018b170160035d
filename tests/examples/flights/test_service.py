"""The demo's HTTP service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request

from aioparallel.testing.event_log import Event, EventKind, read_events
from examples.flights.flights import Enrichments, data_directory
from examples.flights.service import LONGEST_DELAY, SHORTEST_DELAY, Service, delay_of

FLIGHT = "/2/flights/N14228/EWR/IAH/2013-01-01T10:00:00Z"


@pytest.fixture(scope="module")
def enrichments() -> Enrichments:
    """The service's tables, read once."""
    return Enrichments(data_directory())


@pytest.fixture
def service(enrichments: Enrichments, tmp_path: Path) -> Iterator[Service]:
    """The service, with its logs at ``service-*.events``."""
    service = Service(enrichments, tmp_path / "service", seed=1)
    yield service
    service.close()


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


async def test_answer_is_written_down(service: Service, tmp_path: Path) -> None:
    """A request is answered with the enrichment; its coming and its answer are in the log of the process that asked."""
    began = asyncio.get_running_loop().time()
    response = await service.answer(make_mocked_request("GET", f"{FLIGHT}?partition=3&offset=14"))
    assert asyncio.get_running_loop().time() - began >= SHORTEST_DELAY
    assert response.status == 200
    assert isinstance(response.body, bytes)
    assert json.loads(response.body)["plane"]["tailnum"] == "N14228"
    assert read_events(tmp_path / "service-2.events") == [
        Event(EventKind.BEGAN, 3, 14),
        Event(EventKind.ENDED, 3, 14),
    ]


async def test_unknown_plane_is_404_with_an_answer(service: Service) -> None:
    """A plane nobody knows is a 404 whose body still has the airports."""
    request = make_mocked_request("GET", "/0/flights/NA/EWR/IAH/2013-01-01T10:00:00Z?partition=0&offset=0")
    response = await service.answer(request)
    assert response.status == 404
    assert isinstance(response.body, bytes)
    assert json.loads(response.body)["to"]["faa"] == "IAH"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        FLIGHT,
        "/2/flights/N14228?partition=0&offset=0",
        f"{FLIGHT[2:]}?partition=0&offset=0",
        f"{FLIGHT}/more?partition=0&offset=0",
        f"{FLIGHT}?partition=x&offset=0",
    ],
)
async def test_anything_else_is_refused(path: str, service: Service, tmp_path: Path) -> None:
    """What is no request for a flight is a 400, and there is no log for it."""
    response = await service.answer(make_mocked_request("GET", path))
    assert response.status == 400
    assert read_events(tmp_path / "service-2.events") == []
