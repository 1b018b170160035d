"""Tests here run in virtual time."""

from __future__ import annotations

from tests.unit.testing.memory.conftest import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
