"""Fixtures of the engine's tests."""

from __future__ import annotations

import pytest

from aioparallel.testing.memory import InMemoryBroker


@pytest.fixture
def broker() -> InMemoryBroker:
    """A broker with topic "t" of one partition."""
    broker = InMemoryBroker()
    broker.create_topic("t", 1)
    return broker
