"""Members that are killed, restarted, join and leave."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from aioparallel.testing.processes.child import Child

__all__ = ["Restless"]

_TIMEOUT = 60.0
"""Seconds for what takes a few on a quiet machine."""


class Restless:
    """One member that is killed again and again and restarted under its name, and another one that joins and leaves,
    now and then killed too. An async context manager: entering starts the first, leaving kills what still runs.

    ``module``: a program that prints ``ready`` when it has begun and ends well at SIGTERM; it is given ``given``, and
    the first one ``instance=first``. ``logs``: a directory for what they write. ``kills``: how often the first is
    killed at most.
    """

    def __init__(self, module: str, given: Sequence[str], logs: Path, kills: int) -> None:
        self.killed = 0
        """How often the first was."""
        self.left = 0
        """How often the other one left by itself."""
        self._module = module
        self._given = given
        self._logs = logs
        self._kills = kills
        self._started = 0
        self._chance = random.Random(7)
        self._stack = AsyncExitStack()
        self._first: Child | None = None
        self._second: Child | None = None

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        try:
            self._first = await self._start("instance=first")
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def pause(self, seconds: float) -> float:
        """Somewhere around so many seconds."""
        return seconds * self._chance.uniform(0.5, 1.5)

    async def trouble(self) -> None:
        """Kill and restart the first; the other one joins, stays, leaves or is killed. Nothing after the last kill.

        Raises ChildFailed where one that was not killed has ended.
        """
        for child in self._running():
            if not child.running:
                await child.ended(0)
                raise AssertionError(f"the {child.name} ended by itself{child.last_words()}")
        if self.killed >= self._kills or self._first is None:
            return
        self.killed += 1
        await self._first.kill()
        self._first = await self._start("instance=first")
        if self._second is None:
            self._second = await self._start()
        elif self._chance.random() < 0.5:
            self._second.terminate()
            await self._second.ended(_TIMEOUT)
            self._second, self.left = None, self.left + 1
        elif self._chance.random() < 0.3:
            await self._second.kill()
            self._second = None

    async def end(self) -> None:
        """Ask all to end, and wait. Raises ChildFailed where one does not end well."""
        for child in self._running():
            child.terminate()
            await child.ended(_TIMEOUT)

    def _running(self) -> list[Child]:
        return [child for child in (self._first, self._second) if child is not None]

    async def _start(self, *options: str) -> Child:
        self._started += 1
        name = f"member {self._started}"
        child = Child.of_module(name, self._module, *self._given, *options, log=self._logs / f"{name}.log")
        await self._stack.enter_async_context(child)
        assert await child.line(_TIMEOUT) == "ready"
        return child
