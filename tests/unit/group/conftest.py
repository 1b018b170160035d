"""The tests of a group member run in virtual time: the same on a quiet machine and on a busy one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from aioparallel.testing.memory import InMemoryBroker
from tests.unit.virtual_time import VirtualLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """All of them run on the virtual loop."""
    return {"virtual": VirtualLoop}


@pytest.fixture
def broker() -> InMemoryBroker:
    """A broker with topic "t" of one partition."""
    broker = InMemoryBroker()
    broker.create_topic("t", 1)
    return broker
