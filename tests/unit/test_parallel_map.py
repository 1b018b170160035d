"""parallel_map: what it gives, what it says of mistakes, and what it leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from aioparallel import ConfigurationError, ConsumerStateError, ParallelMap, RetryPolicy, parallel_map, resource
from aioparallel.errors import HandlerTimeout, Reject


async def double(number: int) -> int:
    await asyncio.sleep(0.002 if number % 2 else 0)
    return 2 * number


async def picky(number: int) -> int:
    if number == 3:
        raise ValueError("no threes")
    return await double(number)


async def forever(number: int) -> None:
    await asyncio.Event().wait()


async def read(outcomes: ParallelMap[Any, Any], items: list[int]) -> None:
    """Note the items of all outcomes."""
    async for outcome in outcomes:
        items.append(outcome.item)  # noqa: PERF401 - it may raise


def tasks() -> int:
    return len(asyncio.all_tasks())


async def test_values_come_as_they_end_or_in_order() -> None:
    """Each item once, with what its handler returned."""
    given = [outcome async for outcome in parallel_map(double, range(100))]
    assert sorted((o.index, o.item, o.result(), o.attempts) for o in given) == [(n, n, 2 * n, 1) for n in range(100)]
    assert [o.item for o in given] != list(range(100))
    assert [o.value async for o in parallel_map(double, range(100), in_order=True)] == [2 * n for n in range(100)]


async def test_nothing_in_nothing_out() -> None:
    """An empty source."""
    assert [o.value async for o in parallel_map(double, list[int]())] == []


async def test_items_of_a_key_run_one_after_the_other() -> None:
    """And those of others at once; None is no order."""
    running: dict[object, int] = {}
    most: dict[object, int] = {}

    async def handle(item: tuple[str | None, int]) -> int:
        running[item[0]] = running.get(item[0], 0) + 1
        most[item[0]] = max(most.get(item[0], 0), running[item[0]])
        await asyncio.sleep(0.001)
        running[item[0]] -= 1
        return item[1]

    items = [(name, number) for number in range(20) for name in ("a", "b", None)]
    given = [outcome.item async for outcome in parallel_map(handle, items, key=lambda item: item[0])]
    assert most["a"] == most["b"] == 1
    assert most[None] > 5
    for name in ("a", "b"):
        assert [item[1] for item in given if item[0] == name] == list(range(20))


async def test_the_first_failure_is_raised() -> None:
    """With what the item is called, and nothing goes on."""
    with pytest.raises(ValueError, match="no threes") as raised:
        [o async for o in parallel_map(picky, range(100), label=lambda item, index: f"number {item}")]
    assert raised.value.__notes__ == [
        'number 3 failed for good after 1 attempt; on_error="emit" or "skip" goes on without it'
    ]
    assert tasks() == 1


async def test_failures_as_outcomes() -> None:
    """``result()`` raises them."""
    given = {o.index: o async for o in parallel_map(picky, range(5), on_error="emit")}
    assert given[3].value is None
    assert isinstance(given[3].error, ValueError)
    with pytest.raises(ValueError, match="no threes"):
        given[3].result()
    assert given[4].result() == 8


async def test_failures_left_out_are_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A few lines, however many fail."""
    assert [o.item async for o in parallel_map(picky, range(5), on_error="skip", in_order=True)] == [0, 1, 2, 4]
    assert "item 3 failed (attempt 1): ValueError('no threes'); no more attempts: it is left out" in caplog.text
    caplog.clear()

    async def fail(number: int) -> None:
        raise ValueError(number)

    assert [o async for o in parallel_map(fail, range(5_000), on_error="skip")] == []
    assert len(caplog.records) <= 15
    caplog.clear()
    assert len([o async for o in parallel_map(fail, range(5_000), on_error="emit")]) == 5_000
    assert not caplog.records


async def test_retries() -> None:
    """They count, their delays are in ``seconds``, and Reject ends them."""
    calls: list[int] = []

    async def handle(number: int) -> int:
        calls.append(number)
        if number == 1:
            raise Reject("never")
        if calls.count(number) < 3:
            raise OSError
        return number

    policy = RetryPolicy(max_attempts=3, first_delay=0.01, jitter=0, multiplier=1)
    given = [o async for o in parallel_map(handle, range(2), retry=policy, on_error="emit", in_order=True)]
    assert [(o.value, o.attempts, type(o.error)) for o in given] == [(0, 3, type(None)), (None, 1, Reject)]
    assert 0.02 <= given[0].seconds < 10
    assert given[1].seconds < 0.02


async def test_the_time_of_an_attempt() -> None:
    """It is cancelled and has failed."""
    (outcome,) = [o async for o in parallel_map(forever, [0], timeout=0.01, on_error="emit")]
    assert isinstance(outcome.error, HandlerTimeout)
    assert str(outcome.error) == "the handler did not end within its timeout of 0.01 s and was cancelled"


async def test_keys_that_fail() -> None:
    """They are their items' failures, and say that it was the key."""
    given = [o async for o in parallel_map(double, [1, 0, 2], key=lambda n: 1 // n, on_error="emit", in_order=True)]
    assert [(o.attempts, type(o.error)) for o in given] == [(1, type(None)), (0, ZeroDivisionError), (1, type(None))]
    assert given[1].error is not None
    assert given[1].error.__notes__ == [
        "from the key function, for item 1: a key is any hashable value, or None for no order"
    ]
    with pytest.raises(TypeError, match="unhashable"):
        [o async for o in parallel_map(double, [1], key=lambda n: [n])]  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"handler": lambda n: n}, "must be an `async def` function"),
        ({"handler": None}, "handler=None: must be an async function of one argument, the item"),
        ({"items": 3}, "items=3: must be iterable"),
        ({"key": double}, "must be a plain function of the item"),
        ({"max_concurrency": 0}, "max_concurrency=0: must be a whole number of at least 1"),
        ({"timeout": 0}, "timeout=0: must be more than 0 seconds"),
        ({"retry": 3}, "retry=3: must be None, for a single attempt, or a RetryPolicy"),
        ({"on_error": "yield"}, "on_error='yield': must be one of raise, emit, skip"),
        ({"middleware": [double]}, "must take two arguments, the item and call_next"),
        ({"label": 3}, "label=3: must be a plain function of the item and its index"),
    ],
)
async def test_mistakes_are_refused_at_once(given: dict[str, Any], said: str) -> None:
    """Before anything is iterated, by name, with what was found and what is allowed."""
    options: dict[str, Any] = {"handler": double, "items": [1]} | given
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        parallel_map(**options)


async def test_middleware_and_resources() -> None:
    """Both see the item; what is opened is closed."""
    events: list[object] = []

    @contextlib.asynccontextmanager
    async def client() -> AsyncIterator[str]:
        events.append("open")
        yield "client"
        events.append("closed")

    async def around(item: int, call_next: Any) -> object:
        events.append(item)
        return await call_next(item + 1)

    async def handle(item: int) -> tuple[str, int]:
        return resource("client", str), item

    options: dict[str, Any] = {"resources": {"client": client}, "middleware": [around]}
    assert [o.value async for o in parallel_map(handle, [10], **options)] == [("client", 11)]
    assert events == ["open", 10, "closed"]


@pytest.mark.parametrize("closes", [True, False])
async def test_leaving_early_leaves_nothing(closes: bool) -> None:
    """Handlers are cancelled, the source is closed."""
    events: list[str] = []

    async def source() -> AsyncIterator[int]:
        try:
            for number in range(1_000):
                yield number
        finally:
            events.append("source closed")

    async def handle(number: int) -> int:
        try:
            await asyncio.sleep(0 if number == 0 else 3_600)
        except asyncio.CancelledError:
            events.append("cancelled")
            raise
        return number

    if closes:
        async with parallel_map(handle, source(), max_concurrency=10) as outcomes:
            async for _ in outcomes:
                break
    else:
        async for _ in parallel_map(handle, source(), max_concurrency=10):
            break
        async with asyncio.timeout(10):
            while tasks() > 1:
                await asyncio.sleep(0.001)
    assert tasks() == 1
    assert events.count("source closed") == 1
    assert events.count("cancelled") == 10


async def test_a_reader_that_stops_holds_up_the_source() -> None:
    """It is read as far as the bounds say, and no further."""
    read = 0

    def source() -> Iterator[int]:
        nonlocal read
        for number in range(100_000):
            read += 1
            yield number

    async with parallel_map(double, source(), max_concurrency=10, max_buffered=50) as outcomes:
        async for outcome in outcomes:
            if outcome.index == 20:
                break
        for _ in range(200):
            await asyncio.sleep(0)
        stats = outcomes.stats()
        assert read <= 21 + 60
        assert stats.fed == read


async def test_what_the_source_raises_comes_last() -> None:
    """After the outcomes of all that it gave before."""

    def source() -> Iterator[int]:
        yield from range(5)
        raise ConnectionError("the file is gone")

    async def later() -> AsyncIterator[int]:
        for number in source():
            yield number

    for items in (source(), later()):
        given: list[int] = []
        with pytest.raises(ConnectionError, match="the file is gone"):
            await read(parallel_map(double, items), given)
        assert sorted(given) == list(range(5))


async def test_a_source_that_blocks_is_read_in_a_thread() -> None:
    """The event loop goes on; a source that never comes back keeps nobody."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    def source() -> Iterator[int]:
        for number in range(10):
            time.sleep(0.02)
            yield number
        raise ConnectionError

    ticking = asyncio.ensure_future(tick())
    given: list[int] = []
    with pytest.raises(ConnectionError):
        await read(parallel_map(double, source(), read_in_thread=True), given)
    ticking.cancel()
    assert sorted(given) == list(range(10))
    assert ticks > 30

    goes_on = threading.Event()

    def blocks() -> Iterator[int]:
        yield 1
        goes_on.wait()

    async with parallel_map(double, blocks(), read_in_thread=True) as outcomes:
        async for _ in outcomes:
            break
    assert tasks() <= 2  # the ticking one may still end
    goes_on.set()


async def test_statistics_before_it_runs() -> None:
    """There are none."""
    outcomes = parallel_map(double, [1])
    with pytest.raises(ConsumerStateError, match="iterate it first"):
        outcomes.stats()
    async with outcomes:
        pass


async def test_a_cancelled_reader(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing goes on behind its back."""

    async def read_closing() -> None:
        async with parallel_map(forever, range(100)) as outcomes:
            await read(outcomes, [])

    reading = asyncio.ensure_future(read_closing())
    await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert tasks() == 1
    assert not [one for one in caplog.records if one.levelno > logging.WARNING]


async def test_keyboard_interrupt_of_a_handler() -> None:
    """It is raised at the reader."""

    async def handle(number: int) -> None:
        raise SystemExit(number)

    with pytest.raises(SystemExit):
        [o async for o in parallel_map(handle, [3])]


def test_no_kafka_client_is_loaded() -> None:
    """Whoever only maps pays nothing for it."""
    code = "import sys, aioparallel; print([m for m in sys.modules if m in ('aiokafka', 'zstandard', 'cramjam')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
