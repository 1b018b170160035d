"""A service for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.support.http.service import Service, service


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Service]:
    """One that answers."""
    async with service() as found:
        yield found
