"""The cost of ``in_threads`` and ``in_processes``: ``python -m benchmarks.blocking``. Takes less than 90 seconds.

Threads: calls over sockets to a server in another process, which answers each after 50 ms; 100 at once, through
parallel_map with in_threads and through a plain pool of 100 threads, in turn. Processes: a function that computes for
about 5 ms, in this process and in one or two others, item by item and in chunks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

from aioparallel import in_processes, in_threads, parallel_map
from aioparallel.handlers.blocking.threads import InThreads
from benchmarks import standalone
from benchmarks.kept import Row, Tables

THREADS = 100
CALLS = 3_000
ROUNDS = 5
ANSWER = 0.05
"""Seconds until the server answers."""
ITEMS = 400
CHUNK = 20
TURNS = 60_000
"""Steps of a loop that take about 5 ms."""
LONGEST = 80.0
"""Seconds; rounds that would begin later are skipped."""

_own = threading.local()
_port = 0


def main() -> int:
    """Returns the exit code."""
    parser = standalone.parser_of("blocking", __doc__)
    return standalone.run("blocking", parser, parser.parse_args(), measure, beside="none")


def measure(_: argparse.Namespace) -> Tables:
    """Measure threads, then processes, then calls that do nothing."""
    began = time.perf_counter()
    with _server():
        threads = _threads(began)
    at_most = THREADS / ANSWER
    return {
        f"{THREADS} threads, a server that answers after {ANSWER * 1e3:g} ms: at most {at_most:,.0f} calls/s": threads,
        f"{ITEMS} items that compute for some milliseconds each": _processes(began),
        "A call that does nothing, one at a time": _nothing(),
    }


def _threads(began: float) -> list[Row]:
    rates: dict[str, list[float]] = {"bare pool": [], "in_threads": []}
    handler = in_threads(call, threads=THREADS)
    with ThreadPoolExecutor(THREADS) as pool:

        def bare() -> None:
            assert sum(1 for _ in pool.map(call, range(CALLS))) == CALLS

        def ours() -> None:
            assert asyncio.run(_count(handler, THREADS)) == CALLS

        ways: list[tuple[str, Callable[[], None]]] = [("bare pool", bare), ("in_threads", ours)]
        for _, run in ways:  # threads start and connect
            run()
        for turn in range(ROUNDS):
            for name, run in ways if turn % 2 else ways[::-1]:
                if time.perf_counter() - began < LONGEST / 2:
                    rates[name].append(CALLS / _seconds(run))
    bare_rate = statistics.median(rates["bare pool"])
    return [
        {"": name, **standalone.median("calls/s", found), "of the bare pool": statistics.median(found) / bare_rate}
        for name, found in rates.items()
    ]


async def _count(handler: InThreads[int, int], at_once: int) -> int:
    return len([o async for o in parallel_map(handler, range(CALLS), max_concurrency=at_once)])


def call(number: int) -> int:
    """Call the server over this thread's connection."""
    connection: socket.socket | None = getattr(_own, "connection", None)
    if connection is None:
        connection = _own.connection = socket.create_connection(("127.0.0.1", _port))
    connection.sendall(b"%8d" % number)
    return int(connection.recv(8, socket.MSG_WAITALL))


@contextlib.contextmanager
def _server() -> Iterator[None]:
    global _port  # noqa: PLW0603
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    _port = ours.recv()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _serve(tell: Connection) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                question = await reader.readexactly(8)
                await asyncio.sleep(ANSWER)
                writer.write(question)

    async def serve() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=THREADS * 2)
        tell.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


def compute(number: int) -> int:
    """Pure Python, about 5 ms."""
    for turn in range(TURNS):
        number = (number * 31 + turn) % 1_000_003
    return number


def compute_all(numbers: list[int]) -> list[int]:
    return [compute(number) for number in numbers]


def _processes(began: float) -> list[Row]:
    chunks = [list(range(first, first + CHUNK)) for first in range(0, ITEMS, CHUNK)]
    rates: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        ways: list[tuple[str, Callable[[], object]]] = [
            ("one loop, no process", lambda: compute_all(list(range(ITEMS))))
        ]
        for count in (1, 2):
            one = stack.enter_context(in_processes(compute, processes=count))
            many = stack.enter_context(in_processes(compute_all, processes=count))
            plural = "es" if count > 1 else ""
            ways.append((f"{count} process{plural}, items", lambda one=one: _run(one, range(ITEMS))))  # type: ignore[misc]
            ways.append((f"{count} process{plural}, chunks of {CHUNK}", lambda many=many: _run(many, chunks)))  # type: ignore[misc]
        with asyncio.Runner() as runner:
            _run.runner = runner  # type: ignore[attr-defined]
            for name, run in ways:
                rates[name] = []
                if name != ways[0][0]:
                    run()  # processes start
            for turn in range(ROUNDS):
                for name, run in ways if turn % 2 else ways[::-1]:
                    if time.perf_counter() - began < LONGEST or not rates[name]:
                        rates[name].append(ITEMS / _seconds(run))
    base = statistics.median(rates[ways[0][0]])
    return [
        {"": name, **standalone.median("items/s", found), "of one loop": statistics.median(found) / base}
        for name, found in rates.items()
    ]


def nothing(number: int) -> int:
    return number


def _nothing() -> list[Row]:
    """The cost of a call alone."""

    async def calls(handler: Callable[[int], object], count: int) -> None:
        async for outcome in parallel_map(handler, range(count), max_concurrency=1):  # type: ignore[arg-type, var-annotated]
            outcome.result()

    rows: list[Row] = []
    with in_processes(nothing, processes=1) as process, asyncio.Runner() as runner:
        for name, handler in (("in_threads", in_threads(nothing, threads=1)), ("in_processes", process)):
            runner.run(calls(handler, 10))  # they start
            took = _seconds(lambda handler=handler: runner.run(calls(handler, CALLS)))  # type: ignore[misc]
            rows.append({"": name, "ms": took / CALLS * 1e3})
    return rows


def _run(handler: Callable[[object], object], items: object) -> None:
    async def all_of_them() -> None:
        async for outcome in parallel_map(handler, items):  # type: ignore[arg-type, var-annotated]
            outcome.result()

    _run.runner.run(all_of_them())  # type: ignore[attr-defined]


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
