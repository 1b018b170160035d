"""The examples under their real servers: probes while the broker is away, SIGTERM under load, failures, signals."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
import uuid
from pathlib import Path

import httpx
import pytest

from aioparallel.event_loop.waiting import to_the_end
from aioparallel.testing import DeliveryChecker, LocalKafka
from aioparallel.testing.brokers.ports import free_ports
from aioparallel.testing.event_log import EventKind, EventTail, read_events
from aioparallel.testing.processes.child import Child
from tests.support.children.web import QUICK
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.reading import committed
from tests.support.waiting import DEADLINE, SLACK, until

pytestmark = pytest.mark.real

WITHIN = 10.0 + SLACK
"""Ten seconds, if nothing else runs beside it."""
"""Seconds for readiness to follow the broker."""
NAMES = ("fastapi", "aiohttp")
KINDS = pytest.mark.parametrize("kind", NAMES)
ORDERS = 40_000


class Server:
    """One application in a process of its own."""

    def __init__(self, servers: str, kind: str, directory: Path, suffix: str, number: int = 0, *rest: str) -> None:
        (self.port,) = free_ports(1)
        self.events = directory / f"{number}.events"
        self.child = Child.of_module(
            kind,
            "tests.support.children.web",
            *(kind, str(self.port), str(self.events), suffix, *rest),
            log=directory / f"{number}.log",
            environment={"AIOPARALLEL_BOOTSTRAP_SERVERS": servers},
        )

    async def status(self, path: str) -> int:
        """What it answers; 0: nothing."""
        try:
            async with httpx.AsyncClient(trust_env=False) as client:
                return (await client.get(f"http://127.0.0.1:{self.port}{path}")).status_code
        except httpx.TransportError:
            return 0

    async def until_ready(self, status: int = 200) -> float:
        """Wait for this answer; the seconds that took. It answers 200 at ``/health/live`` all the while."""
        started = bool(await self.status("/health/live"))

        async def holds() -> bool:
            assert self.child.running, self.child.log.read_text()
            if started:
                assert await self.status("/health/live") == 200
            return await self.status("/health/ready") == status

        return await until(holds, what=lambda: self.child.log.read_text()[-2_000:])

    async def ended(self) -> int | None:
        """Its exit code."""
        await until(lambda: not self.child.running, what="the server to end")
        return self.child.exit_code


async def topics(kafka: LocalKafka) -> str:
    """The suffix of topics that nobody else has."""
    suffix = f"-{uuid.uuid4().hex[:8]}"
    await kafka.create_topic(f"orders{suffix}", 4)
    await kafka.create_topic(f"refunds{suffix}", 1)
    return suffix


def orders(count: int) -> list[Message]:
    return [Message(b"c%d" % (n % 1_000), b'{"customer": "c%d", "amount": 1}' % (n % 1_000)) for n in range(count)]


@pytest.mark.slow
async def test_the_broker_goes_and_the_servers_are_stopped_under_load(mortal_kafka: LocalKafka, tmp_path: Path) -> None:
    """Not ready soon after the broker's stop, ready soon after its return, live all the while. After SIGTERM in the
    middle of 40,000 orders and a second start each was handled once."""
    lives = [Life(kind, mortal_kafka.bootstrap_servers, await topics(mortal_kafka), tmp_path / kind) for kind in NAMES]
    async with contextlib.AsyncExitStack() as stack:
        for life in lives:
            await stack.enter_async_context(life.first.child)
        await asyncio.gather(*(life.first.until_ready() for life in lives))
        began = time.monotonic()
        async with mortal_kafka.down(hang=True):
            await asyncio.gather(*(life.first.until_ready(503) for life in lives))
            gone = time.monotonic() - began
        back = max(await asyncio.gather(*(life.first.until_ready() for life in lives)))
        print(f"not ready after {gone:.1f} s, ready again after {back:.1f} s")
        assert gone < WITHIN
        assert back < WITHIN
        await asyncio.gather(*(life.is_stopped_under_load() for life in lives))
    await asyncio.gather(*(life.goes_on() for life in lives))


class Life:
    """One kind of server, with topics of its own: stopped under load, and started again."""

    def __init__(self, kind: str, servers: str, suffix: str, directory: Path) -> None:
        directory.mkdir()
        self.kind, self.servers, self.suffix = kind, servers, suffix
        self.first, self.second = (Server(servers, kind, directory, suffix, number) for number in range(2))
        self.done = 0

    async def is_stopped_under_load(self) -> None:
        """SIGTERM when 2,000 orders have ended, also while more come in; it ends by itself."""
        filling = asyncio.create_task(to_the_end(asyncio.to_thread(self._fill)))
        tail, count = EventTail(self.first.events), 0

        def enough() -> bool:
            nonlocal count
            count += sum(one.kind is EventKind.ENDED for one in tail.new())
            return count > 2_000

        await until(enough)
        self.first.child.terminate()
        await filling
        assert await self.first.ended() == (-signal.SIGTERM if self.kind == "fastapi" else 0)
        self.done = sum(one.kind is EventKind.ENDED for one in read_events(self.first.events))
        assert self.done < ORDERS

    def _fill(self) -> None:
        fill(self.servers, f"orders{self.suffix}", orders(ORDERS))

    async def goes_on(self) -> None:
        """The second one handles the rest, and nothing again."""
        tail, count = EventTail(self.second.events), 0

        def all_are_done() -> bool:
            nonlocal count
            count += sum(one.kind is EventKind.ENDED for one in tail.new())
            return count >= ORDERS - self.done

        async with self.second.child:
            await until(all_are_done)
            await self.second.until_ready()
            self.second.child.terminate()
            await self.second.ended()
        events = read_events(self.first.events) + read_events(self.second.events)
        began_twice = sum(one.kind is EventKind.BEGAN for one in events) - ORDERS
        delivery = DeliveryChecker[tuple[int, int]]()
        for one in events:
            if one.kind is EventKind.BEGAN:
                delivery.produced((one.partition, one.offset))
            elif one.kind is EventKind.ENDED:
                delivery.handled((one.partition, one.offset))
        print(f"{self.kind}: {self.done:,} before SIGTERM, {ORDERS - self.done:,} after; run again: {began_twice}")
        delivery.check(max_duplicates=0)
        assert began_twice == 0
        assert delivery.statistics().duplicates == 0


async def test_a_second_signal(mortal_kafka: LocalKafka, tmp_path: Path) -> None:
    """Only hurries the end of aiohttp: what was done is committed all the same."""
    suffix, servers = await topics(mortal_kafka), mortal_kafka.bootstrap_servers
    server = Server(servers, "aiohttp", tmp_path, suffix, 0, "slow")
    fill(servers, f"orders{suffix}", orders(ORDERS))
    async with server.child:
        await until(
            lambda: (
                server.events.exists()
                and sum(one.kind is EventKind.ENDED for one in read_events(server.events)) == 4 * QUICK
            )
        )
        server.child.terminate()

        async def is_ending() -> bool:
            return not await server.status("/health/live") and not await server.status("/health/live")

        await until(is_ending)
        began = time.monotonic()
        assert server.child.running  # it drains
        server.child.terminate()
        assert await server.ended() == 0
        print(f"ended {time.monotonic() - began:.1f} s after the second signal")
    assert "without an acknowledged commit" not in server.child.log.read_text()
    positions = await committed(servers, f"balances-orders{suffix}")
    assert [one.offset for one in positions.values()] == [QUICK] * 4


@pytest.mark.parametrize("kind", ["fastapi", pytest.param("aiohttp", marks=pytest.mark.slow)])
async def test_a_failure_ends_the_application(mortal_kafka: LocalKafka, kind: str, tmp_path: Path) -> None:
    """With ``on_failure="exit"``: one line at ERROR about it, a clean end, an exit code that tells."""
    suffix, servers = await topics(mortal_kafka), mortal_kafka.bootstrap_servers
    server = Server(servers, kind, tmp_path, suffix, 0, "exit")
    topic = "orders" if kind == "fastapi" else "refunds"
    async with server.child:
        await server.until_ready()
        fill(servers, f"{topic}{suffix}", [Message(b"k", b"no order")])
        assert await server.ended() == (-signal.SIGTERM if kind == "fastapi" else 1)
    said = server.child.log.read_text()
    assert said.count("ERROR aioparallel") == 1
    assert said.count(f"{suffix} has ended with RecordStopped") == 1


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("fastapi", signal.SIGTERM),
        ("aiohttp", signal.SIGINT),
        pytest.param("fastapi", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("aiohttp", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
async def test_a_start_without_a_broker_can_be_interrupted(kind: str, number: signal.Signals, tmp_path: Path) -> None:
    """It does not wait for ``connect_timeout``, which is 30 s."""
    server = Server(f"127.0.0.1:{free_ports(1)[0]}", kind, tmp_path, "-none")
    async with server.child:
        await until(lambda: "making orders" in server.child.log.read_text())
        began = time.monotonic()
        server.child.signal(number)
        await until(lambda: not server.child.running, DEADLINE)
        print(f"{kind}, {number.name}: ended after {time.monotonic() - began:.1f} s with {server.child.exit_code}")
        assert time.monotonic() - began < 15
