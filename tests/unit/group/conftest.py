"""The tests of a group member run as the engine's do: in virtual time, with a broker of one topic."""

from __future__ import annotations

from tests.unit.engine.conftest import broker, pytest_asyncio_loop_factories

__all__ = ["broker", "pytest_asyncio_loop_factories"]
