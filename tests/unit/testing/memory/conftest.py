"""Tests here run in virtual time: waiting costs nothing, and an hour passes in no time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from aioparallel.testing.memory import InMemoryBroker
from tests.support.virtual_time import VirtualLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """All of them run on the virtual loop."""
    return {"virtual": VirtualLoop}


@pytest.fixture
def broker() -> InMemoryBroker:
    """With topic "t" of two partitions."""
    broker = InMemoryBroker()
    broker.create_topic("t", 2)
    return broker
