"""Functions that are called and not awaited: an async one is refused, and so is a coroutine that a plain one returns.

A coroutine that nothing closes fails the test with the warning that it was never awaited.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from aioparallel import (
    ConfigurationError,
    DeserializationError,
    FailurePolicy,
    Outgoing,
    ParallelConsumer,
    Producing,
    Record,
    RetryPolicy,
    State,
    parallel_map,
)
from aioparallel.config.handling import Handling
from aioparallel.config.security import Security
from aioparallel.http import Request, http_handler
from aioparallel.queues.kmq import KmqConsumer
from aioparallel.records.errors import StateFailed, StateNotRestored
from aioparallel.testing.memory import InMemoryBroker
from aioparallel.web import ConsumerService
from tests.support.memory.consuming import QUICK, Seen, consumer_of, produce
from tests.support.memory.keeping_state import broker_of, keeping, sums, write


async def asks(*arguments: object) -> Any:
    """What needs an answer from elsewhere."""
    return 1


async def yields(*arguments: object) -> AsyncIterator[int]:
    yield 1


class Asks:
    async def __call__(self, *arguments: object) -> int:
        return 1


@functools.wraps(asks)
def wrapped(*arguments: object) -> object:
    return asks(*arguments)


ASYNC = [asks, functools.partial(asks, 1), Asks(), Asks().__call__, wrapped, yields]
GIVEN: dict[str, Callable[[Any], object]] = {
    "order_by": lambda one: ParallelConsumer("t", group_id="g", order_by=one),
    "order_by ": lambda one: Handling(order_by=one),
    "key_deserializer": lambda one: ParallelConsumer("t", group_id="g", key_deserializer=one),
    "value_deserializer": lambda one: ParallelConsumer("t", group_id="g", value_deserializer=one),
    "FailurePolicy retry": lambda one: FailurePolicy(retry=one),
    "Producing on_produced": lambda one: Producing(on_produced=one),
    "State apply": lambda one: State(initial=None, apply=one, dump=bytes, load=bytes),
    "State dump": lambda one: State(initial=None, apply=lambda value, record: value, dump=one, load=bytes),
    "State load": lambda one: State(initial=None, apply=lambda value, record: value, dump=bytes, load=one),
    "key": lambda one: parallel_map(asks, [], key=one),
    "label": lambda one: parallel_map(asks, [], label=one),
    "lease": lambda one: KmqConsumer("t", group_id="g", lease=one),
    "http_handler idempotency_key": lambda one: http_handler(request_of, idempotency_key=one),
    "Security password": lambda one: Security("SASL_SSL", mechanism="PLAIN", username="me", password=one),
}


def request_of(record: Record) -> Request:
    return Request("GET", "https://host")


@pytest.mark.parametrize("function", ASYNC, ids=["def", "partial", "object", "method", "wrapper", "generator"])
@pytest.mark.parametrize("option", GIVEN)
def test_an_async_one_is_refused_when_it_is_given(option: str, function: object) -> None:
    """In all the ways in which a function may be async. The error names the option."""
    if option == "Security password" and function in (wrapped, yields):
        return  # refused when it is called
    with pytest.raises(ConfigurationError, match="plain function") as raised:
        GIVEN[option](function)
    assert raised.value.option == option.strip()


async def opens(*arguments: object) -> Any:
    raise NotImplementedError


OPENS: Any = opens  # of a type that is refused by type checkers as well


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("resources['db']", lambda: ParallelConsumer("t", group_id="g", resources={"db": OPENS})),
        ("http_handler client", lambda: http_handler(request_of, client=OPENS)),
        ("make_consumer", lambda: ConsumerService(OPENS, Seen())),
    ],
)
def test_neither_makes_an_async_one_what_is_used_at_once(option: str, given: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError, match="plain function") as raised:
        given()
    assert raised.value.option == option


# -- plain functions that return something to await ---------------------------------------------------------


def awaitable(record: object) -> Any:
    return asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    ("order_by", "says"),
    [(lambda record: asks(record), "it returned a coroutine"), (awaitable, "it returned a Future")],
)
async def test_an_order_by_something_to_await(
    broker: InMemoryBroker, order_by: Callable[[Record[Any, Any]], Any], says: str
) -> None:
    """Each one equals no other, so each record had a lane of its own: their order was lost. It ends the run."""
    produce(broker, [b"a", b"a"])
    seen = Seen()
    async with asyncio.timeout(60), consumer_of(broker, order_by=order_by, until="end") as consumer:
        with pytest.raises(TypeError, match=says) as raised:
            await consumer.run(seen)
    assert "from order_by, for t-0 offset 0" in raised.value.__notes__[0]
    assert not seen.started


@pytest.mark.parametrize(
    ("key", "says"), [(lambda item: asks(item), "it returned a coroutine"), (awaitable, "it returned a Future")]
)
async def test_items_by_something_to_await(key: Callable[[int], Any], says: str) -> None:
    """Each item fails."""
    async for outcome in parallel_map(asks, range(3), key=key, on_error="emit"):
        assert isinstance(outcome.error, TypeError)
        assert says in str(outcome.error)


async def test_other_keys_order_as_before(broker: InMemoryBroker) -> None:
    """Tuples, objects that are hashable, and None."""
    produce(broker, [b"a", b"b", b"a", b"c"])
    keys = [("a", 1), frozenset(b"b"), None, True]
    seen = Seen()
    options: Any = {"order_by": lambda record: keys[record.offset], "until": "end"}
    async with asyncio.timeout(60), consumer_of(broker, **options) as consumer:
        await consumer.run(seen)
    assert sorted(seen.offsets) == [0, 1, 2, 3]


async def test_values_to_await(broker: InMemoryBroker) -> None:
    """Such a record fails, and its handler is not called."""
    produce(broker, [b"a"])
    failures, seen = list[Exception](), Seen()

    async def note(record: Record[Any, Any], error: Exception) -> None:
        failures.append(error)

    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=note)
    options: Any = {"value_deserializer": lambda raw: asks(raw), "failures": policy, "until": "end"}
    async with asyncio.timeout(60), consumer_of(broker, **options) as consumer:
        await consumer.run(seen)
    (failure,) = failures
    assert isinstance(failure, DeserializationError)
    assert "it returned a coroutine, which nothing awaits" in str(failure)
    assert not seen.started


async def test_a_verdict_to_await(broker: InMemoryBroker) -> None:
    """The run ends, and says what the function may return."""
    produce(broker, [b"a"])

    async def fails(record: Record) -> None:
        raise ValueError

    policy = FailurePolicy(retry=lambda record, error, attempts: asks(record))  # type: ignore[arg-type, return-value]
    async with asyncio.timeout(60), consumer_of(broker, failures=policy) as consumer:
        with pytest.raises(ConfigurationError, match=r"FailurePolicy retry=.*coroutine.* it must be seconds"):
            await consumer.run(fails)


async def test_an_output_told_to_something_to_await(broker: InMemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    """The output is written; the log says that the function has done nothing."""
    broker.create_topic("out", 1)
    produce(broker, [b"a"])

    async def handle(record: Record) -> Outgoing:
        return Outgoing("out", b"x")

    producing = Producing(on_produced=lambda record, output, place: asks(record))  # type: ignore[arg-type]
    async with asyncio.timeout(60), consumer_of(broker, producing=producing, until="end") as consumer:
        await consumer.run(handle)
    assert len(broker.records("out")) == 1
    (line,) = [one for one in caplog.records if getattr(one, "action", "") == "on_produced_failed"]
    assert line.exc_info is not None
    assert isinstance(line.exc_info[1], TypeError)


@pytest.mark.parametrize("broken", ["dump", "load"])
def test_a_dumped_value_to_await(broken: str) -> None:
    """Refused at once, as it is tried with the initial value."""
    with pytest.raises(ConfigurationError, match=f"State {broken}=.*it returned a coroutine"):
        sums(**{broken: lambda value: asks(value)})


async def test_a_state_to_await() -> None:
    """The record fails; so does a restore."""
    broker, failures = broker_of(), list[Exception]()
    write(broker, 1)

    async def note(record: Record[Any, Any], error: Exception) -> None:
        failures.append(error)

    state = sums(apply=lambda total, record: asks(record))
    options: Any = {"failures": FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=note), "until": "end"}
    async with asyncio.timeout(60), keeping(broker, state, **options) as consumer:
        await consumer.run(Seen())
    (failure,) = failures
    assert isinstance(failure, StateFailed)
    assert "it returned a coroutine" in str(failure)
    write(broker, 2)
    async with asyncio.timeout(60), keeping(broker, sums(), failures=FailurePolicy(retry=QUICK), until="end") as two:
        await two.run(Seen())
    write(broker, 3)
    with pytest.raises(StateNotRestored, match="it returned a coroutine"):
        async with asyncio.timeout(60), keeping(broker, state, **options) as three:
            await three.run(Seen())


async def test_a_resource_to_await(broker: InMemoryBroker) -> None:
    with pytest.raises(TypeError, match="it returned a coroutine"):
        async with consumer_of(broker, resources={"db": lambda: OPENS()}):
            pass
