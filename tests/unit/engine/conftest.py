"""The engine's tests run in virtual time: what waits for what is the same on a quiet machine and on a busy one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest

from aioparallel.engine.flow.loop_thread import LoopThread
from aioparallel.testing.memory import InMemoryBroker
from tests.support.virtual_time import VirtualLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """All of them run on the virtual loop."""
    return {"virtual": VirtualLoop}


@pytest.fixture
def broker() -> InMemoryBroker:
    """A broker with topic "t" of one partition."""
    broker = InMemoryBroker()
    broker.create_topic("t", 1)
    return broker


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    """Of its own, so that it may die."""
    thread = LoopThread()
    yield thread
    thread.close()
