"""The state of keys is tested as the engine is: in virtual time."""

from __future__ import annotations

from tests.unit.engine.conftest import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
