"""How many calls it takes to find a bad item among good ones, and to get over an outage or a limit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aioparallel import Batch, RetryLater, RetryPolicy, batches
from tests.unit.batches.test_batches_of_items import Called, all_of, seconds_of


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("bad", [0, 7, 8, 250, 499])
def test_a_bad_item_is_found_soon(bad: int) -> None:
    """Among 500, wherever it stands: hardly more calls than items, and the good ones wait for one delay, not many."""
    done: dict[int, float] = {}

    async def work(batch: Batch[int]) -> None:
        if bad in batch:
            raise ValueError("bad")
        done.update(dict.fromkeys(batch, now()))

    called = Called(work)
    retry = RetryPolicy(first_delay=1, jitter=0, max_attempts=10)
    outcomes = all_of(batches(called, size=500), range(500), retry=retry, on_error="emit", max_buffered=500)
    assert [one.item for one in outcomes if one.error is not None] == [bad]
    assert len(called.sizes) < 520
    assert len(done) == 499
    assert max(done.values()) < 1.2


def test_two_bad_items_are_found() -> None:
    """The others are done, and each is given up after attempts of its own."""

    async def work(batch: Batch[int]) -> None:
        if {100, 300} & set(batch):
            raise ValueError("bad")

    called = Called(work)
    retry = RetryPolicy(first_delay=1, jitter=0, max_attempts=10)
    outcomes = all_of(batches(called, size=500), range(500), retry=retry, on_error="emit", max_buffered=500)
    assert [one.item for one in sorted(outcomes) if one.error is not None] == [100, 300]
    assert len(called.sizes) < 530


def test_after_an_outage_batches_are_batches_again() -> None:
    """Ten calls of 100 fail for a minute: of all 2,000 items few run by themselves then."""
    later: list[int] = []

    async def work(batch: Batch[int]) -> None:
        if now() >= 60:
            later.append(len(batch))
        await asyncio.sleep(0.01)
        if now() < 60:
            raise OSError("down")

    called = Called(work)
    retry = RetryPolicy(first_delay=1, max_delay=10)
    outcomes = all_of(batches(called, size=100), range(2_000), retry=retry, max_concurrency=10, max_buffered=2_000)
    assert all(one.error is None for one in outcomes)
    assert len(called.sizes) < 4_000  # each by itself at each attempt they were more than 10,000
    assert len(later) < 800


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
