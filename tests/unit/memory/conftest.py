"""Tests here run in virtual time: waiting costs nothing, and an hour passes in no time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Mapping

import pytest

from aioparallel.testing.memory import InMemoryBroker


class VirtualSelector(selectors.DefaultSelector):
    """Jumps over the time that the loop would have slept."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("deadlock: nothing is ready, and nothing ever will be")
        self.now += max(0.0, timeout)
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock starts at 0 and moves only when everybody waits."""

    def __init__(self) -> None:
        self._virtual = VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """All of them run on the virtual loop."""
    return {"virtual": VirtualLoop}


@pytest.fixture
def broker() -> InMemoryBroker:
    """With topic "t" of two partitions."""
    broker = InMemoryBroker()
    broker.create_topic("t", 2)
    return broker
