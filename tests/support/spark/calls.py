"""Calls of handlers in Spark's workers, seen from the driver: one file for each worker, a line for each call."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["Calls", "noting"]


async def noting(directory: str, seconds: float, begun: str = "begun") -> None:
    """A call of so many seconds, noted when it begins and when it is cancelled. ``begun``: the word for the first."""
    descriptor = os.open(f"{directory}/{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{begun} {time.time()}\n".encode())
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            os.write(descriptor, f"cancelled {time.time()}\n".encode())
            raise
    finally:
        os.close(descriptor)


class Calls:
    """Those that are noted in a directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = str(directory)

    def times(self, what: str = "begun") -> list[float]:
        """When they began, or were cancelled."""
        lines = [line.split() for path in Path(self.directory).iterdir() for line in path.read_text().splitlines()]
        return sorted(float(line[1]) for line in lines if len(line) == 2 and line[0] == what)

    def wait_for(self, count: int, deadline: float = 60.0) -> None:
        """Until so many have begun. Raises AssertionError after the deadline."""
        self._wait(lambda: len(self.times()) >= count, deadline, f"{count} calls")

    def wait_for_the_last(self, rest: float = 1.0, deadline: float = 60.0) -> None:
        """Until none has begun for so many seconds."""
        self._wait(lambda: time.time() - max(self.times(), default=0.0) > rest, deadline, "the last call")

    @staticmethod
    def _wait(condition: Callable[[], bool], deadline: float, what: str) -> None:
        until = time.monotonic() + deadline
        while not condition():
            assert time.monotonic() < until, f"waited {deadline:g} s for {what}"
            time.sleep(0.01)
