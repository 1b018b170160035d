"""``/metrics`` and probes over HTTP: the server for a plain worker, and the routes of web applications."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import pytest
from aiohttp import web
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from starlette.applications import Starlette

from aioparallel import ConfigurationError, Health, Problem, ProblemKind
from aioparallel.observe.metrics import PrometheusMetrics, serve_metrics
from aioparallel.web.aiohttp import metrics_routes as aiohttp_routes
from aioparallel.web.fastapi import metrics_router
from aioparallel.web.starlette import metrics_routes as starlette_routes
from tests.support.extensions import broker_of, consumer_of, nothing
from tests.support.waiting import until


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str


async def send(port: int, request: str) -> Answer:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.encode())
    answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    return Answer(int(first.split()[1]), dict(line.split(": ", 1) for line in lines), body)


async def get(port: int, path: str, more: str = "") -> Answer:
    return await send(port, f"GET {path} HTTP/1.1\r\nHost: here\r\n{more}\r\n")


class Asked:
    """Has the health that a test gives it."""

    def __init__(self, *problems: ProblemKind, joined: bool = True) -> None:
        self.found = Health(True, tuple(Problem(kind, "why") for kind in problems), joined)

    def health(self) -> Health:
        return self.found


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Gauge("temperature", "of the room", registry=registry).set(21)
    return registry


async def test_metrics_in_both_formats(registry: CollectorRegistry) -> None:
    """The format is the one that the scraper accepts."""
    async with serve_metrics(0, registry=registry) as server:
        plain = await get(server.port, "/metrics?name[]=x")
        assert plain.status == 200
        assert plain.headers["Content-Type"].startswith("text/plain; version=")
        assert "\ntemperature 21.0\n" in plain.body
        assert int(plain.headers["Content-Length"]) == len(plain.body)
        openmetrics = await get(server.port, "/metrics", "Accept: application/openmetrics-text; version=1.0.0\r\n")
        assert openmetrics.headers["Content-Type"].startswith("application/openmetrics-text")
        families = text_string_to_metric_families(openmetrics.body)  # type: ignore[no-untyped-call]
        assert [family.name for family in families] == ["temperature"]
        head = await send(server.port, "HEAD /metrics HTTP/1.1\r\n\r\n")
        assert (head.status, head.body) == (200, "")
        assert head.headers["Content-Length"] == plain.headers["Content-Length"]


async def test_probes(registry: CollectorRegistry) -> None:
    """200 if all consumers are live, or ready; else 503 with the reason."""
    good, lost, failed = Asked(), Asked(ProblemKind.BROKER_UNREACHABLE), Asked(ProblemKind.FAILED)
    async with serve_metrics(0, good, registry=registry) as one, serve_metrics(0, good, lost) as two:
        assert (await get(one.port, "/live")).status == (await get(one.port, "/ready")).status == 200
        assert (await get(two.port, "/live")).status == 200
        answer = await get(two.port, "/ready")
        assert answer.status == 503
        assert json.loads(answer.body) == {
            "ready": False,
            "reasons": ["it has problems: broker_unreachable"],
            "problems": [{"kind": "broker_unreachable", "message": "why"}],
        }  # fmt: skip
    async with serve_metrics(0, failed) as server:
        assert (await get(server.port, "/live")).status == 503


async def test_what_it_does_not_serve(registry: CollectorRegistry) -> None:
    """404, 405 and 431; a client that sends nothing useful does not disturb others."""
    async with serve_metrics(0, registry=registry) as server:
        assert (await get(server.port, "/other")).status == 404
        posted = await send(server.port, "POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        assert (posted.status, posted.headers["Allow"]) == (405, "GET, HEAD")
        _, idle = await asyncio.open_connection("127.0.0.1", server.port)
        assert (await get(server.port, "/metrics", f"X-Long: {'x' * 40_000}\r\n")).status == 431
        _, cut = await asyncio.open_connection("127.0.0.1", server.port)
        cut.write(b"GET /met")
        cut.close()
        assert (await get(server.port, "/metrics")).status == 200
        idle.close()


async def test_it_ends_with_its_block(registry: CollectorRegistry) -> None:
    """Nothing listens after it, although a client keeps a connection open."""
    async with serve_metrics(0, registry=registry) as server:
        port = server.port
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_client_that_reads_nothing_is_left(registry: CollectorRegistry) -> None:
    """It does not delay the end, and its connection is closed although its answer is not sent."""
    large = Gauge("large", "many", ["name"], registry=registry)
    for number in range(100_000):
        large.labels("x" * 200 + str(number))
    async with asyncio.timeout(15):
        async with serve_metrics(0, registry=registry) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            await until(lambda: server._server.connections)
            await asyncio.sleep(0.1)
        assert not server._server.connections
        with contextlib.suppress(ConnectionResetError):
            assert len(await reader.read()) < 20_000_000
        writer.close()


async def test_a_port_in_use_is_named() -> None:
    """The error has port and address."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port={port}.*is in use at 127.0.0.1"):
            async with serve_metrics(port):
                pass
        consumer = consumer_of(broker_of(), PrometheusMetrics(port=port, registry=CollectorRegistry()))
        with pytest.raises(ConfigurationError, match="is in use"):
            async with consumer:
                await consumer.run(nothing)


async def test_an_address_of_another_machine_is_refused() -> None:
    """The error says what the system says."""
    with pytest.raises(ConfigurationError, match=r"cannot be listened on at 192\.0\.2\.1"):
        async with serve_metrics(0, host="192.0.2.1"):
            pass


async def test_a_consumer_serves_its_own_metrics() -> None:
    """With ``port`` from the start of the run to the end of the block, metrics and probes."""
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(port=0, registry=registry)
    consumer = consumer_of(broker_of(), metrics)
    async with consumer:
        task = asyncio.create_task(consumer.run(nothing))
        await until(lambda: consumer.health().ready)
        assert metrics.server is not None
        port = metrics.server.port
        assert 'aioparallel_health_ready{consumer="1",group="g"} 1.0' in (await get(port, "/metrics")).body
        assert (await get(port, "/live")).status == (await get(port, "/ready")).status == 200
        consumer.stop()
        await task
        assert (await get(port, "/ready")).status == 503
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


@asynccontextmanager
async def _aiohttp(registry: CollectorRegistry) -> AsyncIterator[str]:
    app = web.Application()
    app.add_routes(aiohttp_routes(registry))
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_the_route_of_aiohttp(registry: CollectorRegistry) -> None:
    """``/metrics`` with prometheus_client's content type."""
    async with _aiohttp(registry) as url, httpx.AsyncClient() as client:
        _check(await client.get(f"{url}/metrics"))


def _fastapi(registry: CollectorRegistry) -> FastAPI:
    app = FastAPI()
    app.include_router(metrics_router(registry))
    return app


@pytest.mark.parametrize("make", [_fastapi, lambda registry: Starlette(routes=starlette_routes(registry))])
async def test_the_routes_of_fastapi_and_starlette(registry: CollectorRegistry, make: Any) -> None:
    """The same."""
    transport = httpx.ASGITransport(app=make(registry))
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        _check(await client.get("/metrics"))


def _check(answer: httpx.Response) -> None:
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    assert "temperature 21.0" in answer.text


class _Noting:
    """A collector that notes in which threads it is asked."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.threads: set[int] = set()
        registry.register(self)

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> list[Any]:
        self.threads.add(threading.get_ident())
        return []


async def test_the_text_is_not_made_on_the_event_loop(registry: CollectorRegistry) -> None:
    """With hundreds of partitions it takes a tenth of a second, in which no handler would run."""
    noting = _Noting(registry)
    async with serve_metrics(0, registry=registry) as server:
        assert (await get(server.port, "/metrics")).status == 200
    async with _aiohttp(registry) as address, httpx.AsyncClient() as client:
        assert (await client.get(f"{address}/metrics")).status_code == 200
    for app in (_fastapi(registry), Starlette(routes=starlette_routes(registry))):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            assert (await client.get("/metrics")).status_code == 200
    assert len(noting.threads) >= 1
    assert threading.get_ident() not in noting.threads
