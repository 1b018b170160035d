"""Consumers in trouble inside real servers: what cannot be started, what does not end, and who hears of signals."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import httpx
import pytest

from aioparallel.testing.brokers.ports import free_ports
from aioparallel.testing.processes.child import Child
from tests.support.waiting import SLACK, until

KINDS = pytest.mark.parametrize("kind", ["uvicorn", "aiohttp"])


class Server:
    """One of ``tests/support/children/service.py``."""

    def __init__(self, kind: str, trouble: str, directory: Path) -> None:
        (self.port,) = free_ports(1)
        self.child = Child.of_module(
            kind,
            "tests.support.children.service",
            *(kind, str(self.port), trouble),
            log=directory / "server.log",
        )

    @property
    def log(self) -> str:
        return self.child.log.read_text() if self.child.log.exists() else ""

    async def get(self, path: str) -> tuple[int, str]:
        """0 while nobody answers."""
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
                answer = await client.get(f"http://127.0.0.1:{self.port}{path}")
                return answer.status_code, answer.text
        except httpx.TransportError:
            return 0, ""

    async def until_answered(self, path: str, status: int) -> None:
        async def holds() -> bool:
            assert self.child.running, self.log
            return (await self.get(path))[0] == status

        await until(holds, 60, what=lambda: self.log[-2_000:])

    async def ends_within(self, seconds: float) -> int | None:
        began = time.monotonic()
        await until(lambda: not self.child.running, seconds, what=lambda: f"its end: {self.log[-2_000:]}")
        print(f"ended after {time.monotonic() - began:.1f} s with {self.child.exit_code}")
        return self.child.exit_code


@KINDS
@pytest.mark.parametrize("trouble", ["group", pytest.param("mute", marks=pytest.mark.slow)])
async def test_what_could_not_start_is_started_again(kind: str, trouble: str, tmp_path: Path) -> None:
    """A group of errors that is no Exception, and an error without a text."""
    server = Server(kind, trouble, tmp_path)
    async with server.child:
        await server.until_answered("/health/ready", 200)
        assert (await server.get("/health/live"))[0] == 200
        assert server.log.count("opening raises") == 1
        assert server.log.count("is started again in") == 1
        server.child.terminate()
        await server.ends_within(SLACK)


@KINDS
@pytest.mark.parametrize("trouble", ["mute_always", pytest.param("group_always", marks=pytest.mark.slow)])
async def test_what_never_starts_is_not_live(kind: str, trouble: str, tmp_path: Path) -> None:
    """After its last restart; the body of the answer names the error."""
    server = Server(kind, trouble, tmp_path)
    async with server.child:
        await server.until_answered("/health/live", 503)
        assert server.log.count("opening raises") == 3
        body = (await server.get("/health/live"))[1]
        assert ("BaseExceptionGroup: a task group" if "group" in trouble else "MuteError: (its text") in body
        server.child.terminate()
        await server.ends_within(SLACK)


@KINDS
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
async def test_a_handler_that_does_not_end_does_not_keep_the_server(
    kind: str, number: signal.Signals, tmp_path: Path
) -> None:
    """The signal ends it as ever, once the drain and two graces are over; the log says where the handler stands.
    (uvicorn dies of its SIGTERM before its loop has ended; after Ctrl-C the loop ends first.)"""
    server = Server(kind, "deaf", tmp_path)
    async with server.child:
        await until(lambda: "handling" in server.log, what=lambda: server.log)
        await server.until_answered("/health/ready", 200)
        server.child.signal(number)
        code = await server.ends_within(5 + SLACK)
    assert code == (-number if kind == "uvicorn" and number == signal.SIGTERM else 0), server.log
    assert "still runs although it was cancelled twice" in server.log
    assert "in handle\n" in server.log


@KINDS
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
async def test_services_leave_in_another_order_than_they_came(
    kind: str, number: signal.Signals, tmp_path: Path
) -> None:
    """The handlers of the server are there afterwards, and the signal ends it without a complaint."""
    server = Server(kind, "two", tmp_path)
    async with server.child:
        await server.until_answered("/none", 404)
        before = await server.get("/a/enter")
        for step in ("/b/enter", "/a/open", "/b/open", "/a/leave", "/b/leave", "/a/close"):
            assert (await server.get(step))[0] == 200, server.log
        after = await server.get("/b/close")
        print(before, after)
        assert "aioparallel" not in after[1]
        server.child.signal(number)
        code = await server.ends_within(SLACK)
    assert code == (-number if kind == "uvicorn" and number == signal.SIGTERM else 0), server.log
    assert "closed" not in server.log
    assert "Traceback" not in server.log


async def test_an_applications_own_handler_is_still_there(tmp_path: Path) -> None:
    """In aiohttp ``running()`` hears signals in place of the loop while the consumers leave: before and afterwards the
    application's handler is called."""
    server = Server("aiohttp", "own_handler", tmp_path)
    async with server.child:
        await server.until_answered("/health/ready", 200)
        server.child.terminate()
        await server.ends_within(5 + SLACK)
    lines = server.log.splitlines()
    heard = [number for number, line in enumerate(lines) if line == "the application has heard"]
    assert len(heard) == 2, server.log
    assert heard[0] < lines.index("the consumers have left") < heard[1]


async def test_two_signals_at_once_are_heard(tmp_path: Path) -> None:
    """A second one, while the consumers leave, hurries them; the server ends."""
    server = Server("aiohttp", "deaf", tmp_path)
    async with server.child:
        await until(lambda: "handling" in server.log, what=lambda: server.log)
        await server.until_answered("/health/ready", 200)
        server.child.terminate()
        await asyncio.sleep(0)
        server.child.terminate()
        assert await server.ends_within(5 + SLACK) == 0
