"""Spark's job and the consumers of the flights pipeline, as a test sees them: started, watched in mid-run, killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from aioparallel.clients.aiokafka import AiokafkaClient
from aioparallel.records.errors import AioparallelError
from aioparallel.testing.processes.child import Child
from examples.flights_pipeline.declared import run_declared
from examples.flights_pipeline.settings import Settings

__all__ = ["READ", "REMEMBERED", "SESSION", "Consumer", "Ends", "SparkJob", "silent", "until_growing"]

READ: Final = "flights-read"
"""Compacted: what readers of topic ``enriched`` have seen."""
REMEMBERED: Final = 5_000
"""Records or keys that readers remember of each partition. A killed enricher writes again what it had not committed, a
second's work; and there are 4,043 aircraft."""
SESSION: Final = 9.0
"""Seconds until the group notices that a consumer is dead: three heartbeats."""

_LOOKS: Final = 0.02
_ANSWER: Final = 30.0
_DEATH: Final = 30.0
"""Seconds in which a killed process is gone."""
_END: Final = 60.0
"""Seconds in which a consumer that is asked to has stopped."""
_DEADLINE: Final = 180.0
"""Seconds in which a program gets to the middle of its run, or to its end; Spark starts in 10 to 30."""


def silent(done: int, note: str) -> None:
    """Progress that nobody watches."""


class Ends:
    """How many records topics hold, asked again and again; an asynchronous context manager."""

    def __init__(self, servers: str) -> None:
        self._client = AiokafkaClient(servers, "ends")

    async def __aenter__(self) -> Self:
        await self._client.start(_ANSWER)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._client.stop(_ANSWER)

    async def records(self, topic: str) -> int:
        """In a topic that nobody has removed anything from."""
        partitions = await self._client.partitions([topic], _ANSWER)
        return sum((await self._client.end_offsets(partitions, _ANSWER)).values())


async def until_growing(ends: Ends, topic: str, by: int, check: Callable[[], None]) -> int:
    """Wait until the topic has grown by so many records, and grew between the last two looks; how many it has then.

    ``check()`` raises when whoever should write does not run any more. Raises AssertionError after three minutes.
    """
    deadline = time.monotonic() + _DEADLINE
    began = before = await ends.records(topic)
    while True:
        await asyncio.sleep(_LOOKS)
        now = await ends.records(topic)
        if now - began >= by and now > before:
            return now
        before = now
        check()
        assert time.monotonic() < deadline, f"topic {topic} went from {began} to {now} records in {_DEADLINE:g} s"


class SparkJob:
    """The example's declared pipeline with all its processes. It goes on where its checkpoint says."""

    def __init__(self, settings: Settings, servers: str) -> None:
        self._settings = settings
        self._servers = servers
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start, or start again."""
        self._running = asyncio.create_task(run_declared(self._settings, self._servers, silent))

    def check(self) -> None:
        """Raises when it has ended."""
        assert self._running is not None
        if self._running.done():
            self._running.result()
            raise AssertionError("Spark has ended before it could be killed: take more flights")

    async def kill(self) -> int:
        """SIGKILL to all of its process groups at once; how many processes these were. Returns when none is left."""
        assert self._running is not None
        processes = self._processes()
        groups = {os.getpgid(process.pid) for process in processes}
        assert os.getpgrp() not in groups
        for group in groups:
            os.killpg(group, signal.SIGKILL)
        await _until_gone(processes)
        with contextlib.suppress(AioparallelError):  # "failed (exit code -9)"
            await self._running
            raise AssertionError("Spark ended well, though it was killed")
        assert not self._processes()
        return len(processes)

    async def finish(self) -> None:
        """Wait until it has taken all of topic ``raw``."""
        assert self._running is not None
        async with asyncio.timeout(_DEADLINE):
            await self._running

    async def close(self) -> None:
        """Leave nothing of it behind."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def _processes(self) -> list[psutil.Process]:
        """Those that were told of the pipeline's directory, and all that they have started: shell, Java, Python."""
        directory = str(self._settings.project.absolute())
        found: set[psutil.Process] = set()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess):
                if any(directory in word for word in process.cmdline()):
                    found |= {process, *process.children(recursive=True)}
        return list(_living(found))


class Consumer(Child):
    """A child of :mod:`tests.load.flights_child`."""

    def __init__(self, log: Path, *arguments: str) -> None:
        super().__init__("consumer", [sys.executable, "-m", "tests.load.flights_child", *arguments], log=log)

    def check(self) -> None:
        """Raises when it has ended."""
        assert self.running, f"the consumer ended with code {self.exit_code}{self.last_words()}"

    async def finish(self) -> None:
        """Let it drain, commit and leave."""
        await self.stop(_END)
        assert self.exit_code == 0, f"the consumer ended with code {self.exit_code}{self.last_words()}"


async def _until_gone(processes: Iterable[psutil.Process]) -> None:
    deadline = time.monotonic() + _DEATH
    while left := list(_living(processes)):
        assert time.monotonic() < deadline, f"still there {_DEATH:g} s after SIGKILL: {left}"
        await asyncio.sleep(_LOOKS)


def _living(processes: Iterable[psutil.Process]) -> Iterable[psutil.Process]:
    """Without those that are dead and only wait for somebody to look."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process
