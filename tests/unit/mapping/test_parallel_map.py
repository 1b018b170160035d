"""parallel_map: what it gives, and what it says of mistakes."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aioparallel import ConfigurationError, ConsumerStateError, RetryPolicy, parallel_map, resource
from aioparallel.records.errors import HandlerCancelled, HandlerTimeout, Reject
from tests.support.engine.items import double, forever, picky, read, tasks


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
        [o async for o in parallel_map(picky, range(1, 100), label=lambda item, index: f"number {item} at {index}")]
    assert raised.value.__notes__ == [
        'number 3 at 2 failed for good after 1 attempt; on_error="emit" or "skip" goes on without it'
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


async def test_attempts_that_are_tried_again_are_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """With when; the last one is not, where it is an outcome."""
    policy = RetryPolicy(max_attempts=2, first_delay=0.01, jitter=0)
    given = [o async for o in parallel_map(picky, range(5), retry=policy, on_error="emit")]
    assert len(given) == 5
    assert [one.getMessage() for one in caplog.records] == [
        "item 3 failed (attempt 1): ValueError('no threes'); next attempt in 0.01 s"
    ]


async def test_all_that_was_read_may_wait_for_its_next_attempt() -> None:
    """However many do, what comes behind them runs."""

    async def handle(number: int) -> int:
        if number < 12_000:
            raise OSError
        return number

    policy = RetryPolicy(first_delay=3_600)
    async with parallel_map(handle, range(12_001), retry=policy, max_buffered=12_000) as outcomes:
        async with asyncio.timeout(60):
            async for outcome in outcomes:
                assert outcome.item == 12_000
                break
        assert outcomes.stats().parked == 12_000


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


async def test_keys_that_fail_are_in_the_log_where_they_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """As handlers that fail are."""
    outcomes = parallel_map(double, [1, 0, 2], key=lambda n: 1 // n, on_error="skip", in_order=True)
    assert [o.item async for o in outcomes] == [1, 2]
    assert "item 1 failed" in caplog.text
    assert 'it is left out (on_error="skip")' in caplog.text


async def test_notes_of_one_error_for_many_items() -> None:
    """Ten of them, and none of them twice."""
    for label, count in ((None, 10), (lambda item, index: "any", 1)):
        error = KeyError("id")

        def key(number: int, error: KeyError = error) -> int:
            raise error

        given = [o async for o in parallel_map(double, range(100), key=key, on_error="emit", label=label)]
        assert [o.error for o in given] == [error] * 100
        assert len(error.__notes__) == count


async def anything() -> AsyncIterator[int]:
    yield 1


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
        ({"handler": lambda n: double(n)}, "what a lambda returns is unknown until it is called"),
        ({"items": "http://one"}, "is one text, and iterates over its characters: put it into a list"),
        ({"items": b"one"}, "is one text, and iterates over its characters: put it into a list"),
        ({"read_in_thread": "yes"}, "read_in_thread='yes': must be one of True, False"),
        ({"items": anything(), "read_in_thread": True}, "is for plain iterables; this one is async"),
        ({"items": range}, "call a generator function first: f()"),
        ({"middleware": None}, "middleware=None: must be async functions"),
        ({"in_order": "yes"}, "in_order='yes': must be one of True, False"),
    ],
)
async def test_mistakes_are_refused_at_once(given: dict[str, Any], said: str) -> None:
    """Before anything is iterated, by name, with what was found and what is allowed."""
    options: dict[str, Any] = {"handler": double, "items": [1]} | given
    with pytest.raises(ConfigurationError, match=re.escape(said)) as raised:
        parallel_map(**options)
    assert str(raised.value).startswith([*given][-1])


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


async def test_the_context_of_handlers() -> None:
    """They have a copy of that in which it is iterated, and nothing of theirs is in the reader's."""
    variable = contextvars.ContextVar[str]("variable")

    @contextlib.asynccontextmanager
    async def client() -> AsyncIterator[str]:
        yield "client"

    async def handle(number: int) -> str:
        found = variable.get()
        variable.set("the handler's")
        return found

    variable.set("the reader's")
    async with parallel_map(handle, [1], resources={"client": client}) as outcomes:
        async for outcome in outcomes:
            assert outcome.result() == variable.get() == "the reader's"
            with pytest.raises(ConsumerStateError):
                resource("client")


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
    """It is said which item it was, and the error is the cause."""

    async def fail(number: int) -> None:
        raise StopAsyncIteration

    with pytest.raises(RuntimeError, match="the handler raised StopAsyncIteration") as raised:
        await read(parallel_map(fail, [1]), [])
    assert "item 0 failed for good" in raised.value.__notes__[0]
    assert isinstance(raised.value.__cause__, StopAsyncIteration)
    with pytest.raises(RuntimeError, match="StopIteration") as raised:
        await read(parallel_map(double, [1], key=lambda n: next(iter(list[int]()))), [])
    assert "from the key function, for item 0" in raised.value.__notes__[0]
    assert isinstance(raised.value.__cause__, StopIteration)


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
