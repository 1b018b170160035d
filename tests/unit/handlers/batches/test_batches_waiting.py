"""Batches whose service asks for patience, and delays of batches that fail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aioparallel import Batch, RetryLater, RetryPolicy, batches
from tests.unit.handlers.batches.test_batches_of_items import Called, all_of, seconds_of


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("on_error", ["one_by_one", "together"])
def test_who_asks_for_patience_keeps_the_batch(on_error: Any) -> None:
    """20 calls a second and no more: RetryLater of a batch is no failure of any of its records, so it stays whole."""
    left, since = 20, 0.0

    async def limited(batch: Batch[int]) -> None:
        nonlocal left, since
        if now() - since >= 1:
            left, since = 20, now()
        if not left:
            raise RetryLater(0.5)
        left -= 1

    called = Called(limited)
    handler = batches(called, size=100, on_error=on_error)
    assert seconds_of(handler, range(5_000), max_concurrency=10, max_buffered=2_000) < 10
    assert len(called.sizes) < 250
    assert min(called.sizes) > 1


def test_without_patience_for_more_each_is_asked_alone() -> None:
    """RetryLater beyond what the policy allows is a failure: no item is given up for that of another."""

    async def work(batch: Batch[int]) -> None:
        if 3 in batch:
            raise RetryLater(1)

    outcomes = all_of(
        batches(Called(work), size=10), range(10), retry=RetryPolicy(max_wait=2, max_attempts=1), on_error="emit"
    )
    assert [one.item for one in outcomes if one.error is not None] == [3]
