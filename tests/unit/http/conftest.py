"""A service for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.support.http.raw import Raw, raw_service
from tests.support.http.service import Service, service


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Service]:
    """One that answers."""
    async with service() as found:
        yield found


@pytest_asyncio.fixture
async def raw() -> AsyncIterator[Raw]:
    """One that writes bytes."""
    async with raw_service() as found:
        yield found
