"""``http_handler`` compared with the client it uses: ``python -m benchmarks.http_clients``.

A service in another process answers after 20 ms. In turn, with equal concurrency and timeouts: coroutines that only
call the client, and ``parallel_map`` with ``http_handler``. Then cancelled requests; and a consumer of Kafka whose
records go to a host that answers a third of its requests with 429 and to one that does not.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import aiohttp
import httpx
import uvloop
from httpx_aiohttp import AiohttpTransport

from aioparallel import FailurePolicy, ParallelConsumer, Record, RetryPolicy, parallel_map
from aioparallel.http import Request, http_handler
from aioparallel.testing import LocalKafka
from benchmarks import standalone
from benchmarks.kept import Row, Tables

__all__ = ["main"]

Client = Literal["httpx", "aiohttp"]

LATENCY: Final = 0.02
TIMEOUT: Final = 10.0
_ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{"name":"anna"}'
_BUSY = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


# The service does as little as possible, so that the client is measured.
_asked: Final = itertools.count(1)


class _Connection(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport: Any = transport
        self._read = b""

    def data_received(self, data: bytes) -> None:
        """Parse requests without a body."""
        self._read += data
        while b"\r\n\r\n" in self._read:
            head, _, self._read = self._read.partition(b"\r\n\r\n")
            is_busy = b" /throttled" in head and next(_asked) % 3 == 0
            asyncio.get_running_loop().call_later(LATENCY, self._answer, _BUSY if is_busy else _ANSWER)

    def _answer(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@asynccontextmanager
async def _service() -> AsyncIterator[str]:
    process = subprocess.Popen(  # noqa: ASYNC220 - once
        [sys.executable, "-m", "benchmarks.http_clients", "--serve"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


async def _together(ask: Callable[[int], Awaitable[object]], numbers: Iterator[int], at_once: int) -> None:
    async def some() -> None:
        for number in numbers:
            await ask(number)

    await asyncio.gather(*(some() for _ in range(at_once)))


async def _bare(client: Client, url: str, count: int, at_once: int) -> None:
    if client == "httpx":
        limits = httpx.Limits(max_connections=at_once, max_keepalive_connections=at_once)
        async with httpx.AsyncClient(transport=AiohttpTransport(limits=limits), timeout=TIMEOUT) as http:

            async def ask(number: int) -> object:
                return (await http.get(f"{url}/items/{number}")).content

            await _together(ask, iter(range(count)), at_once)
        return
    limit = aiohttp.ClientTimeout(total=TIMEOUT)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=at_once), timeout=limit) as session:

        async def ask_there(number: int) -> object:
            async with session.get(f"{url}/items/{number}") as response:
                return await response.read()

        await _together(ask_there, iter(range(count)), at_once)


async def _handled(client: Client, url: str, count: int, at_once: int) -> None:
    def ask(number: int) -> Request:
        return Request("GET", f"{url}/items/{number}")

    handler = http_handler(ask, client=client, timeout=TIMEOUT, idempotency_key=None)
    done = 0
    async for outcome in parallel_map(handler, range(count), max_concurrency=at_once):
        done += outcome.result().status == 200
    assert done == count, f"{done} of {count}"


async def _rate(run: Callable[[Client, str, int, int], Awaitable[None]], *given: Any) -> float:
    gc.collect()
    began = time.perf_counter()
    await run(*given)
    return float(given[2] / (time.perf_counter() - began))


async def compare(url: str, client: Client, count: int, at_once: int, rounds: int) -> Row:
    """Rates in turn; a first round does not count."""
    bare, ours = list[float](), list[float]()
    for number in range(rounds + 1):
        turns = [(_bare, bare), (_handled, ours)]
        for run, rates in turns if number % 2 else reversed(turns):
            rate = await _rate(run, client, url, count, at_once)
            if number:
                rates.append(rate)
    ratio = statistics.median(one / other for one, other in zip(ours, bare, strict=True))
    print(f"{client}: {ratio:.2f} of the bare client", flush=True)
    return {
        "client": client,
        "bare, requests/s": statistics.median(bare),
        "http_handler, requests/s": statistics.median(ours),
        "median of the ratios": ratio,
    }


async def cancel(url: str, client: Client, times: int) -> Row:
    """Cancel requests in flight; afterwards the client must still be able to use all its connections."""

    def ask(number: int) -> Request:
        return Request("GET", f"{url}/items/{number}")

    handler = http_handler(ask, client=client, timeout=TIMEOUT, idempotency_key=None)
    async with handler.alone(max_concurrency=100) as handle:
        for _ in range(times // 100):
            tasks = [asyncio.ensure_future(handle(number)) for number in range(100)]
            await asyncio.sleep(LATENCY / 2)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        began = time.perf_counter()
        answers = [
            answer for _ in range(10) for answer in await asyncio.gather(*(handle(number) for number in range(100)))
        ]
        seconds = time.perf_counter() - began
    return {"client": client, "cancelled": times, "then answered, of 1,000": len(answers), "in seconds": seconds}


async def _consumed(kafka: LocalKafka, topics: list[str], url: str, count: int, **options: Any) -> dict[str, float]:
    """Records per second of each host, until all records of the free host are done."""
    other = url.replace("127.0.0.1", "localhost")
    ended: Counter[str] = Counter()
    times: dict[str, float] = {}
    over = asyncio.Event()

    def ask(record: Record[Any, Any]) -> Request:
        host = url if record.key.startswith(b"throttled") else other
        return Request("GET", f"{host}/{record.key.decode()}")

    def answered(record: Record[Any, Any], _response: object) -> None:
        name = record.key.decode().partition("-")[0]
        ended[name] += 1
        times[name] = time.perf_counter()
        if ended["free"] == count:
            over.set()

    consumer = ParallelConsumer(
        topics,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=f"g{time.monotonic_ns()}",
        max_concurrency=200,
        failures=FailurePolicy(retry=RetryPolicy(max_attempts=3), give_up="skip"),
        **options,
    )
    async with consumer:
        running = asyncio.create_task(consumer.run(http_handler(ask, answered, client="aiohttp", max_per_host=50)))
        while not ended["free"]:
            await asyncio.sleep(0.001)
        began, first = time.perf_counter(), ended["free"]
        await over.wait()
        seconds = times["free"] - began
        found = {"free": (count - first) / seconds, "throttled": ended["throttled"] / seconds}
        stats, problems = consumer.stats(), "; ".join(problem.message for problem in consumer.health().problems)
        print(f"  parked {stats.parked:,}, in flight {stats.in_flight}, given up {stats.skipped}; {problems}")
        consumer.stop(drain=False)
        await running
    return found


async def throttled(url: str, count: int) -> list[Row]:
    """The free host alone; with a throttled host on a topic of its own; and in the same partitions."""
    rows: list[Row] = []
    async with LocalKafka() as kafka:
        from aiokafka import AIOKafkaProducer  # noqa: PLC0415

        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            for topic, names in {"free": ["free"], "slow": ["throttled"], "both": ["free", "throttled"]}.items():
                await kafka.create_topic(topic, 4)
                for number in range(count):
                    for name in names:
                        await producer.send(topic, b"", f"{name}-{number}".encode())
        for title, topics, options in (
            ("alone", ["free"], {}),
            ("beside a throttled host, a topic each", ["free", "slow"], {"max_parked": 1_000}),
            ("beside it, in the same partitions, max_parked for all", ["both"], {"max_parked": 2 * count}),
            ("beside it, in the same partitions, max_parked of 1,000", ["both"], {"max_parked": 1_000}),
        ):
            found = await _consumed(kafka, topics, url, count, **options)
            rows.append({
                "a host that does not throttle": title,
                "records/s": found["free"],
                "records/s of the throttled one": found["throttled"],
            })  # fmt: skip
    return rows


async def _all(options: argparse.Namespace) -> Tables:
    compared: list[Row] = []
    cancelled: list[Row] = []
    clients: tuple[Client, ...] = ("aiohttp", "httpx")
    async with _service() as url:
        for client in clients:
            compared.append(await compare(url, client, options.requests, options.at_once, options.rounds))
            cancelled.append(await cancel(url, client, 10_000))
        return {
            f"{options.at_once} requests under way, each answered after {LATENCY * 1e3:g} ms": compared,
            "Cancelled under way": cancelled,
            "A third of the other host's answers is 429": await throttled(url, options.records),
        }


def main() -> int:
    """Returns the exit code."""
    parser = standalone.parser_of("http_clients", __doc__)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--requests", type=int, default=10_000, help="in each round")
    parser.add_argument("--at-once", type=int, default=500, help="requests in flight")
    parser.add_argument("--rounds", type=int, default=5, help="that count")
    parser.add_argument("--records", type=int, default=10_000, help="for each host")
    options = parser.parse_args()
    gc.set_threshold(50_000, 20, 100)
    if options.serve:
        uvloop.run(_serve())
        return 0
    return standalone.run(
        "http_clients", parser, options, lambda options: uvloop.run(_all(options)), beside=standalone.KAFKA
    )


if __name__ == "__main__":
    sys.exit(main())
