"""Batches in parallel_map: what they are made of, and what becomes of their items."""

from __future__ import annotations

import asyncio
import functools
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from aioparallel import (
    Batch,
    ConfigurationError,
    ConsumerStateError,
    HandlerTimeout,
    InvalidOutput,
    InvalidValues,
    Outcome,
    Reject,
    RetryPolicy,
    batches,
    parallel_map,
)
from aioparallel.handlers.batches import BatchHandler
from tests.support.virtual_time import VirtualLoop

AT_ONCE = RetryPolicy(first_delay=0, max_attempts=3)


class Called:
    """A batch handler that notes what it gets, and doubles it."""

    def __init__(self, work: Callable[[Batch[int]], Awaitable[None]] | None = None) -> None:
        self.calls: list[list[int]] = []
        self.running = self.most = 0
        self._work = work

    async def __call__(self, batch: Batch[int]) -> list[int]:
        self.calls.append(list(batch))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self._work is not None:
                await self._work(batch)
        finally:
            self.running -= 1
        return [2 * item for item in batch]

    @property
    def sizes(self) -> list[int]:
        return [len(call) for call in self.calls]


def all_of(handler: BatchHandler[Any, Any], items: Sequence[Any], **options: Any) -> list[Outcome[Any, Any]]:
    """The outcomes, in virtual time: who waits for what never comes, ends the test."""

    async def run() -> list[Outcome[Any, Any]]:
        return [one async for one in parallel_map(handler, items, **options)]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


def seconds_of(handler: BatchHandler[Any, Any], items: Sequence[Any], **options: Any) -> float:
    """How long it takes, in virtual time."""

    async def run() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        async for _ in parallel_map(handler, items, **options):
            pass
        return loop.time() - began

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


# -- what is in them ------------------------------------------------------------------------------------


def test_each_item_is_in_one_batch_and_has_its_value() -> None:
    """Batches are full, but for the last; each value goes to its item."""
    called = Called()
    outcomes = all_of(batches(called, size=100), range(1_050))
    assert sorted(called.sizes) == [50, *[100] * 10]
    assert [(one.item, one.result()) for one in sorted(outcomes)] == [(n, 2 * n) for n in range(1_050)]


def test_concurrency_counts_calls() -> None:
    """max_concurrency=3: three calls at once, of any size."""
    called = Called(lambda batch: asyncio.sleep(1))
    all_of(batches(called, size=10), range(200), max_concurrency=3)
    assert called.most == 3


def test_what_is_full_does_not_linger_and_what_ends_does_not_either() -> None:
    """Neither full batches nor the last one wait for the hour that they could."""
    assert seconds_of(batches(Called(), size=10, linger=3600), range(25)) < 1


def test_a_batch_without_room_for_more_starts() -> None:
    """Where the buffer holds fewer than a batch, nothing more can come while it lingers."""
    called = Called()
    seconds = seconds_of(batches(called, size=1_000, linger=3600), range(300), max_buffered=10, max_concurrency=1)
    assert seconds < 1
    assert sum(called.sizes) == 300


def test_items_that_come_one_by_one_wait_for_each_other() -> None:
    """A slow source: what comes within linger of the first is one batch, and holds no worker meanwhile."""

    async def source() -> Any:
        for number in range(30):
            yield number
            await asyncio.sleep(0.1)

    called = Called()

    async def run() -> None:
        async for _ in parallel_map(batches(called, size=100, linger=1.05), source(), max_concurrency=1):
            pass

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())
    assert called.sizes == [11, 11, 8]


def test_without_linger_nothing_waits() -> None:
    """linger=0: each batch has what is there."""

    async def source() -> Any:
        for number in range(5):
            yield number
            await asyncio.sleep(1)

    called = Called()

    async def run() -> None:
        async for _ in parallel_map(batches(called, size=100, linger=0), source()):
            pass

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())
    assert called.sizes == [1] * 5


@pytest.mark.parametrize("by", ["any", "partition", "lane"])
def test_items_of_one_key_are_in_order_and_never_in_two_calls(by: Any) -> None:
    """One hot key and many others, handlers of unequal length."""
    running: set[int] = set()
    last: dict[int, int] = {}

    async def work(batch: Batch[int]) -> None:
        keys = {item % 50 if item % 3 else 0 for item in batch}
        assert by != "lane" or len(keys) == 1
        assert not keys & running
        running.update(keys)
        for item in batch:
            key = item % 50 if item % 3 else 0
            assert last.get(key, -1) < item
            last[key] = item
        await asyncio.sleep(0.01 * (batch[0] % 7))
        running.difference_update(keys)

    called = Called(work)
    outcomes = all_of(
        batches(called, size=20, by=by, linger=0.05),
        range(2_000),
        key=lambda item: item % 50 if item % 3 else 0,
        max_concurrency=8,
        max_buffered=500,
    )
    assert sorted(one.item for one in outcomes) == list(range(2_000))
    assert max(called.sizes) == 20


# -- single failures ------------------------------------------------------------------------------------


def test_a_failed_item_fails_alone() -> None:
    """The others of its batch have their values, and are not called again."""
    attempts: Counter[int] = Counter()

    async def handle(batch: Batch[int]) -> list[int]:
        for item in batch:
            attempts[item] += 1
            if item == 7:
                batch.fail(item, ValueError("seven"))
        return [item + 1 for item in batch]

    items = list(range(1_000, 1_020))
    items[3] = 7
    outcomes = all_of(batches(handle, size=20), items, retry=AT_ONCE, on_error="emit")
    assert {one.item: one.attempts for one in outcomes} == {item: 3 if item == 7 else 1 for item in items}
    assert [type(one.error) for one in outcomes if one.item == 7] == [ValueError]
    assert attempts == {item: 3 if item == 7 else 1 for item in items}


def test_what_is_behind_a_failed_item_of_its_key_goes_back() -> None:
    """Of six of one key the third fails twice: those behind it end after it, in order, with their first attempt."""
    ended: list[int] = []
    left = 2

    async def handle(batch: Batch[int]) -> list[int]:
        nonlocal left
        for place, item in enumerate(batch):
            if item == 2 and left:
                left -= 1
                batch.fail_at(place, ValueError("not yet"))
                break
            ended.append(item)
        return list(batch)

    outcomes = all_of(batches(handle, size=10), range(6), key=lambda item: "k", retry=AT_ONCE)
    assert ended == [0, 1, 2, 3, 4, 5]
    assert [(one.item, one.attempts) for one in outcomes] == [(0, 1), (1, 1), (2, 3), (3, 1), (4, 1), (5, 1)]


def test_the_same_object_twice_is_failed_by_its_place() -> None:
    """fail() cannot tell which is meant, and says so."""

    async def handle(batch: Batch[str]) -> list[str]:
        with pytest.raises(ValueError, match=r"is there 2 times: use fail_at\(index, error\)"):
            batch.fail(batch[0], ValueError())
        batch.fail_at(1, KeyError("second"))
        return list(batch)

    outcomes = all_of(batches(handle, size=2), ["same", "same"], on_error="emit")
    assert [(one.index, type(one.error)) for one in sorted(outcomes, key=lambda one: one.index)] == [
        (0, type(None)),
        (1, KeyError),
    ]


def test_wrong_words_about_an_item_are_refused() -> None:
    """What is not in the batch, what is no exception, a place that there is not, and a word that comes too late."""
    kept: list[Batch[int]] = []

    async def handle(batch: Batch[int]) -> list[int]:
        kept.append(batch)
        with pytest.raises(ValueError, match="99 is not in this batch"):
            batch.fail(99, ValueError())
        with pytest.raises(TypeError, match="not with a str"):
            batch.fail(batch[0], "broken")  # type: ignore[arg-type]
        with pytest.raises(IndexError, match="a batch of 2 has no index 2"):
            batch.fail_at(2, ValueError())
        return list(batch)

    assert [one.result() for one in all_of(batches(handle, size=2), [1, 2])] == [1, 2]
    with pytest.raises(ConsumerStateError, match="can no longer fail records"):
        kept[0].fail_at(0, ValueError())


async def test_a_batch_by_itself_serves_tests_of_handlers() -> None:
    """Batch.of() makes one, whose failures can be looked at."""

    async def handle(batch: Batch[int]) -> None:
        batch.fail(batch[1], ValueError("one"))

    batch = Batch.of([0, 1, 2])
    await batches(handle)(batch)  # type: ignore[arg-type]
    assert {place: str(error) for place, error in batch.failures.items()} == {1: "one"}
    assert (len(batch), batch[-1], batch[:2], list(batch), repr(batch)) == (3, 2, [0, 1], [0, 1, 2], "<Batch of 3>")


# -- failures of all ------------------------------------------------------------------------------------


def test_one_poisoned_item_is_found_one_by_one() -> None:
    """The batch fails as a whole, then each runs by itself: the others succeed, at their second attempt."""

    async def work(batch: Batch[int]) -> None:
        if 13 in batch:
            raise ValueError("poison")

    called = Called(work)
    outcomes = all_of(batches(called, size=20), range(20), retry=AT_ONCE, on_error="emit")
    assert {one.item: one.error is None for one in outcomes} == {n: n != 13 for n in range(20)}
    assert {one.attempts for one in outcomes if one.item != 13} == {2}
    assert called.sizes == [20, *[1] * 21]


@pytest.mark.parametrize("on_error", ["one_by_one", "together"])
@pytest.mark.parametrize("keys", [1, 20])
@pytest.mark.parametrize("error", [ValueError, lambda: Reject("never")])
def test_nothing_is_given_up_for_what_another_failed_with(
    keys: int, on_error: Any, error: Callable[[], Exception]
) -> None:
    """With a single attempt, and with Reject, each runs by itself before its patience ends: only one is bad."""

    async def work(batch: Batch[int]) -> None:
        if 13 in batch:
            raise error()

    outcomes = all_of(
        batches(Called(work), size=20, on_error=on_error), range(20), key=lambda n: n % keys, on_error="emit"
    )
    assert {one.item: one.error is None for one in outcomes} == {n: n != 13 for n in range(20)}


def test_together_it_goes_on_as_one_batch() -> None:
    """on_error="together": the same twenty come again, at one time."""
    failures = 2

    async def work(batch: Batch[int]) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError("no connection")

    called = Called(work)
    retry = RetryPolicy(first_delay=1, jitter=0.5, max_attempts=5)
    outcomes = all_of(batches(called, size=20, on_error="together"), range(20), retry=retry)
    assert called.sizes == [20, 20, 20]
    assert {one.attempts for one in outcomes} == {3}


def test_the_deadline_is_that_of_the_batch() -> None:
    """A call that takes too long fails all of it, once for each attempt."""

    async def work(batch: Batch[int]) -> None:
        if 3 in batch:
            await asyncio.sleep(60)

    outcomes = all_of(batches(Called(work), size=5), range(5), timeout=1, retry=AT_ONCE, on_error="emit")
    assert {one.item: type(one.error) for one in outcomes} == {
        n: HandlerTimeout if n == 3 else type(None) for n in range(5)
    }


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (None, "it returned None"),
        ([1, 2], "it returned 2"),
        ("abc", "it returned a str"),
        ({1: 2}, "it returned a dict"),
        (5, "it returned an int"),
    ],
)
def test_another_number_of_values_fails_the_batch(returned: object, told: str) -> None:
    """Both numbers are told, and none of the items is tried by itself: its value might be another's."""
    sizes: list[int] = []

    async def handle(batch: Batch[int]) -> Any:
        sizes.append(len(batch))
        return returned

    outcomes = all_of(batches(handle, size=3), range(3), retry=AT_ONCE, on_error="emit")
    assert {type(one.error) for one in outcomes} == {InvalidValues}
    assert f"of a batch of 3 must return one value for each, a list of 3; {told}" in str(outcomes[0].error)
    assert sum(sizes) == 9
    with pytest.raises(InvalidOutput, match="must return one value for each"):
        all_of(batches(handle, size=3), range(3))


# -- what is refused ------------------------------------------------------------------------------------


async def good(batch: Batch[int]) -> list[int]:
    return list(batch)


def plain(batch: Batch[int]) -> list[int]:
    return list(batch)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"size": 0}, "batches size: must be a whole number of at least 1"),
        ({"linger": -1}, "batches linger: must be seconds"),
        ({"by": "key"}, "batches by: must be one of any, partition, lane"),
        ({"max_bytes": 0}, "batches max_bytes: must be a whole number"),
        ({"on_error": "skip"}, "batches on_error: must be one of one_by_one, together"),
        ({"handler": plain}, "batches handler: must be an `async def` function"),
        ({"handler": {"t": good}}, "batches handler: must be one function"),
        ({"handler": batches(good)}, r"batches handler: is batches\(...\) already"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], told: str) -> None:
    """At once, with what was found and what is allowed."""
    with pytest.raises(ConfigurationError) as raised:
        batches(**{"handler": good, **options})
    assert re.search(told.split(": ", maxsplit=1)[0], str(raised.value))
    assert re.search(told.split(": ", 1)[1], str(raised.value))


def test_bytes_are_for_records() -> None:
    """Items have no size that anybody knows."""
    with pytest.raises(ConfigurationError, match="items have no size"):
        parallel_map(batches(good, max_bytes=10), [1])


def test_a_wrapper_around_it_is_told() -> None:
    """It would hide the batches, and the handler would get single items."""
    inner = batches(good)

    @functools.wraps(inner)
    async def wrapper(item: int) -> Any:
        return await inner(item)

    with pytest.raises(ConsumerStateError, match=r"got a single int: .* batches\(...\) must be the outermost"):
        all_of(wrapper, [1])  # type: ignore[arg-type]


def test_it_is_a_decorator_too() -> None:
    """With options, or without."""

    @batches(size=7)
    async def seven(batch: Batch[int]) -> list[int]:
        """What it says."""
        return [len(batch)] * len(batch)

    assert [one.result() for one in all_of(seven, range(7))] == [7] * 7
    assert repr(seven).endswith("seven, 7 at most, linger 0.05 s, by any>")
    assert (seven.__name__, seven.__doc__) == ("seven", "What it says.")  # type: ignore[attr-defined]
