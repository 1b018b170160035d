"""Loops and a broker for the tests of consumers."""

from __future__ import annotations

from tests.unit.engine.conftest import broker, pytest_asyncio_loop_factories

__all__ = ["broker", "pytest_asyncio_loop_factories"]
