"""parallel_map: what it gives, what it says of mistakes, and what it leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from aioparallel import ConfigurationError, ConsumerStateError, ParallelMap, RetryPolicy, parallel_map, resource
from aioparallel.errors import HandlerCancelled, HandlerTimeout, Reject


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
    assert given[1].seconds < given[0].seconds


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
        ({"label": lambda item: item}, "must take the item and its index"),
        ({"key": lambda: 3}, "must take the item"),
        ({"handler": {"a": double}}, "must be one async function of the item"),
        ({"handler": lambda n: double(n)}, "what a lambda gives is known when it is called"),
        ({"items": "http://one"}, "is one text, and would be read letter by letter: put it into a list"),
        ({"items": range}, "a generator function is called first: f()"),
        ({"middleware": None}, "middleware=None: must be async functions"),
        ({"in_order": "yes"}, "in_order='yes': must be one of True, False"),
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
    assert ticks >= 5

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


async def test_a_call_in_place_of_a_function() -> None:
    """The commonest slip: it says so, and no coroutine is left behind."""
    with pytest.raises(ConfigurationError, match=r"give the function itself, without \(\)"):
        parallel_map(double(1), [1])  # type: ignore[arg-type]


class Awkward:
    """A key that cannot be compared."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise ArithmeticError("not comparable")


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """Takes no notes."""

    number: int


def cancelled(number: int) -> int:
    raise asyncio.CancelledError


def frozen(number: int) -> int:
    raise Frozen(number)


async def test_keys_that_cannot_be_compared_end_it() -> None:
    """Amid the lanes nobody can tell any more what is where."""
    with pytest.raises(ArithmeticError, match="not comparable"):
        await read(parallel_map(double, range(5), key=lambda n: Awkward(), on_error="emit"), [])
    assert tasks() == 1


async def test_keys_that_fail_in_their_own_ways() -> None:
    """Cancelled errors, exceptions that take no notes, coroutines: all of them the items' own failures."""
    for key, kind in ((cancelled, HandlerCancelled), (frozen, Frozen), (double, TypeError)):
        given = [
            outcome
            async for outcome in parallel_map(
                double,
                range(3),
                key=lambda n, key=key: key(n),  # type: ignore[misc]
                on_error="emit",
                label=lambda item, index: 1 / 0,  # type: ignore[arg-type, return-value]
            )
        ]
        assert [type(outcome.error) for outcome in given] == [kind] * 3


async def test_errors_that_take_no_notes_are_raised_as_they_are() -> None:
    """Not what adding the note has raised."""

    async def fail(number: int) -> None:
        raise Frozen(number)

    with pytest.raises(Frozen):
        await read(parallel_map(fail, [1]), [])


async def test_what_a_generator_may_not_raise() -> None:
    """It is said which item it was."""

    async def fail(number: int) -> None:
        raise StopAsyncIteration

    with pytest.raises(RuntimeError, match="the handler raised StopAsyncIteration") as raised:
        await read(parallel_map(fail, [1]), [])
    assert "item 0 failed for good" in raised.value.__notes__[0]


async def test_left_out_items_count_until_their_turn() -> None:
    """In input order, behind a slow item: the source is not read without bound."""
    slow = asyncio.Event()
    numbers = 0

    def source() -> Iterator[int]:
        nonlocal numbers
        for number in range(10_000):
            numbers += 1
            yield number

    async def handle(number: int) -> int:
        if number == 0:
            await slow.wait()
        else:
            raise ValueError
        return number

    options: dict[str, Any] = {"on_error": "skip", "in_order": True, "max_buffered": 15, "max_concurrency": 5}
    given: list[int] = []
    reading = asyncio.ensure_future(read(parallel_map(handle, source(), **options), given))
    for _ in range(500):
        await asyncio.sleep(0)
    assert numbers <= 20
    slow.set()
    await reading
    assert given == [0]
    assert numbers == 10_000


async def test_a_reader_that_never_waits_lets_others_run() -> None:
    """The event loop turns every few milliseconds, though outcomes are ready all the time and the body blocks."""
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.ensure_future(turn())
    async with parallel_map(double, range(0, 200, 2)) as outcomes:
        async for outcome in outcomes:
            if outcome.index == 0:
                for _ in range(20):
                    await asyncio.sleep(0)  # until all are ready
                turns = 0
            time.sleep(0.001)  # noqa: ASYNC251 - as a body does that writes to a file
    other.cancel()
    assert turns > 5


async def test_break_with_a_variable_ends_it() -> None:
    """Only ``async with`` holds it open; and its outcomes come once."""
    outcomes = parallel_map(forever, range(100), max_concurrency=10, timeout=0.001, on_error="emit")
    async for _ in outcomes:
        break
    async with asyncio.timeout(10):
        while tasks() > 1:
            await asyncio.sleep(0.001)
    with pytest.raises(ConsumerStateError, match="come once; call parallel_map"):
        aiter(outcomes)
    assert outcomes.stats().parked == outcomes.stats().in_flight == outcomes.stats().buffered == 0
    assert repr(outcomes) == "<parallel_map of forever, over>"
    async with parallel_map(double, range(10)) as held:
        async for _ in held:
            break
        assert len([outcome async for outcome in held]) == 9
    with pytest.raises(ConsumerStateError):
        aiter(held)


async def test_closing_while_another_task_iterates() -> None:
    """The other one comes to the end."""
    outcomes = parallel_map(forever, range(100), max_concurrency=10)
    given: list[int] = []
    reading = asyncio.ensure_future(read(outcomes, given))
    async with asyncio.timeout(20):
        while repr(outcomes) != "<parallel_map of forever, running>":
            await asyncio.sleep(0.001)
    await outcomes.aclose()
    await reading
    assert tasks() == 1


async def test_a_cancellation_while_it_closes_is_not_lost() -> None:
    """All is closed, in order and to the end, and then the cancellation goes on."""
    events: list[str] = []
    closing = asyncio.Event()

    def resource_named(name: str) -> Any:
        @contextlib.asynccontextmanager
        async def slow() -> AsyncIterator[str]:
            yield name
            await asyncio.sleep(0.05)
            events.append(name)

        return slow

    async def source() -> AsyncIterator[int]:
        try:
            for number in range(1_000):
                yield number
        finally:
            closing.set()
            await asyncio.sleep(0.05)
            events.append("source")

    async def leave() -> None:
        resources = {"a": resource_named("a"), "b": resource_named("b")}
        async with parallel_map(double, source(), max_buffered=1, max_concurrency=1, resources=resources) as outcomes:
            async for _ in outcomes:
                break
        raise AssertionError("the cancellation is lost")

    leaving = asyncio.ensure_future(leave())
    await closing.wait()
    leaving.cancel()
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert events == ["source", "b", "a"]
    assert tasks() == 1


@pytest.mark.parametrize("count", [5, 100_000])
def test_a_loop_that_shuts_down_lets_all_of_it_close(count: int) -> None:
    """All tasks are cancelled, once: the source and the resources close, and no handler starts anew meanwhile."""
    events: list[str] = []
    running = 0

    async def source() -> AsyncIterator[int]:
        try:
            for number in range(count):
                yield number
        finally:
            if count > 5:  # else it has come to its end by itself, and the cancellation would be its own
                await asyncio.sleep(0.01)
            events.append("source")

    @contextlib.asynccontextmanager
    async def client() -> AsyncIterator[None]:
        yield
        await asyncio.sleep(0.05)  # longer than it takes to replace a worker
        events.append("client")

    async def handle(number: int) -> int:
        nonlocal running
        running += 1
        try:
            await asyncio.sleep(0 if number == 0 else 0.02)
        finally:
            running -= 1
        return number

    async def main() -> None:
        async for _ in parallel_map(handle, source(), resources={"client": client}, max_buffered=10, max_concurrency=3):
            return

    asyncio.run(main())
    gc.collect()
    assert sorted(events) == ["client", "source"]
    assert running == 0


async def test_generators_are_closed_where_they_were_read() -> None:
    """A cursor wants that; what is no generator is the caller's."""
    closed: list[int] = []

    def source() -> Iterator[int]:
        try:
            yield from range(1_000)
        finally:
            closed.append(threading.get_ident())

    for in_thread in (False, True):
        generator = source()
        options: dict[str, Any] = {"max_buffered": 1, "max_concurrency": 1, "read_in_thread": in_thread}
        async with parallel_map(double, generator, **options) as outcomes:
            async for _ in outcomes:
                break
        async with asyncio.timeout(10):
            while len(closed) < 1 + in_thread:
                await asyncio.sleep(0.001)
    assert closed[0] == threading.get_ident() != closed[1]


async def test_a_map_within_a_handler_reaches_the_resources_around_it() -> None:
    """And adds its own."""

    @contextlib.asynccontextmanager
    async def named(name: str) -> AsyncIterator[str]:
        yield name

    async def inner(number: int) -> str:
        return resource("outer", str) + resource("inner", str)

    async def outer(number: int) -> list[str | None]:
        return [o.value async for o in parallel_map(inner, [1], resources={"inner": lambda: named("i")})]

    given = [o.value async for o in parallel_map(outer, [1], resources={"outer": lambda: named("o")})]
    assert given == [["oi"]]


async def test_nothing_of_the_items_is_kept_by_an_error() -> None:
    """Whoever keeps it keeps its frames, and these the flow; not what was read ahead."""

    class Item:
        pass

    alive: weakref.WeakSet[Item] = weakref.WeakSet()

    def items() -> Iterator[Item]:
        for _ in range(500):
            item = Item()
            alive.add(item)
            yield item

    async def fail(item: Item) -> None:
        await asyncio.sleep(0.01)
        raise ValueError

    gc.disable()
    try:
        with pytest.raises(ValueError) as raised:  # noqa: PT011
            await read(parallel_map(fail, items(), max_concurrency=5), [])
        await asyncio.sleep(0.01)
        assert len(alive) < 20
        del raised
    finally:
        gc.enable()


async def test_large_backlogs_are_read_in_little_time() -> None:
    """Taking some of those that are ready does not touch the rest."""
    slow = asyncio.Event()

    async def handle(number: int) -> int:
        if number == 0:
            await slow.wait()
        return number

    async with parallel_map(handle, range(200_000), in_order=True, max_buffered=300_000) as outcomes:
        given: list[int] = []
        reading = asyncio.ensure_future(read(outcomes, given))
        async with asyncio.timeout(60):
            while outcomes._running.flow is None or outcomes.stats().unread < 199_999:
                await asyncio.sleep(0.05)
        began = time.process_time()
        slow.set()
        await reading
        assert time.process_time() - began < 2.0
    assert given == list(range(200_000))
