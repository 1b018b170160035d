"""The tests of a service run as the engine's do: in virtual time, so that a back-off of an hour takes none."""

from __future__ import annotations

from tests.unit.engine.conftest import broker, pytest_asyncio_loop_factories

__all__ = ["broker", "pytest_asyncio_loop_factories"]
