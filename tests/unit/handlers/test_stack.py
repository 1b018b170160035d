"""Around the handler: deserialisers, middleware, resources, handlers by topic."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from aioparallel import CallNext, FailurePolicy, Outgoing, Record, RetryPolicy, resource
from aioparallel.deserializers import from_json, text
from aioparallel.records.errors import ConfigurationError, ConsumerStateError
from aioparallel.testing.memory import InMemoryBroker
from tests.support.memory.consuming import committed, consumer_of, produce
from tests.support.waiting import until

ONCE = RetryPolicy(max_attempts=1)


def broker_with(*values: bytes | None, key: bytes | None = b"k") -> InMemoryBroker:
    broker = InMemoryBroker()
    for topic in ("t", "u", "out", "dlq"):
        broker.create_topic(topic)
    for value in values:
        broker.append("t", value, key=key)
    return broker


async def test_the_handler_sees_what_deserialisers_made_and_the_raw_bytes() -> None:
    """None stays None and is never passed to one; the lanes still go by the bytes."""
    broker = broker_with(b'{"a": 1}', None)
    seen: list[tuple[str | None, object, bytes | None, bytes | None]] = []

    async def handle(record: Record[str, object]) -> None:
        seen.append((record.key, record.value, record.raw_key, record.raw_value))

    consumer = consumer_of(broker, until="end", key_deserializer=text(), value_deserializer=from_json)
    async with consumer:
        await consumer.run(handle)
    assert seen == [("k", {"a": 1}, b"k", b'{"a": 1}'), ("k", None, b"k", None)]


async def test_a_record_that_cannot_be_read_follows_the_policy_with_its_bytes() -> None:
    """It becomes a dead letter with the raw key and value; the others go on, and its handler is never called."""
    broker = broker_with(b"{}", b"not json", b"[]")
    called: list[object] = []

    async def handle(record: Record[bytes, object]) -> None:
        called.append(record.value)

    consumer = consumer_of(
        broker,
        until="end",
        value_deserializer=from_json,
        failures=FailurePolicy(retry=ONCE, dead_letter="dlq"),
    )
    async with consumer:
        await consumer.run(handle)
    (letter,) = broker.records("dlq")
    headers = dict(letter.headers)
    assert (letter.key, letter.value) == (b"k", b"not json")
    assert headers["aioparallel.error.type"] == b"aioparallel.errors.DeserializationError"
    assert b"cannot read the value (8 bytes)" in (headers["aioparallel.error.message"] or b"")
    assert called == [{}, []]
    assert committed(broker) == 3


async def test_a_dead_letter_after_deserialising_carries_the_bytes() -> None:
    """Also when the handler fails on what was read well."""
    broker = broker_with(b'{"a":    1}')

    async def handle(record: Record[str, Any]) -> None:
        record.value.clear()
        raise ValueError

    consumer = consumer_of(
        broker,
        until="end",
        key_deserializer=text(),
        value_deserializer=from_json,
        failures=FailurePolicy(retry=ONCE, dead_letter="dlq"),
    )
    async with consumer:
        await consumer.run(handle)
    (letter,) = broker.records("dlq")
    assert (letter.key, letter.value) == (b"k", b'{"a":    1}')


async def test_middleware_stands_around_each_attempt_the_first_outermost() -> None:
    """It sees the record deserialised, passes results and errors on, and may change them."""
    broker = broker_with(b"1", b"2")
    log: list[str] = []

    async def outer(record: Record[Any, Any], call_next: CallNext) -> object:
        log.append(f"outer {record.value} {record.attempt}")
        try:
            return await call_next(record)
        except ValueError:
            log.append("outer saw it")
            raise

    async def inner(record: Record[Any, Any], call_next: CallNext) -> object:
        result = await call_next(record)
        assert isinstance(result, Outgoing)
        return [result, Outgoing("out", b"more")]

    async def handle(record: Record[bytes, Any]) -> Outgoing:
        if record.value == 2 and record.attempt == 1:
            raise ValueError
        return Outgoing("out", json.dumps(record.value).encode())

    consumer = consumer_of(broker, until="end", middleware=[outer, inner], value_deserializer=from_json)
    async with consumer:
        await consumer.run(handle)
    assert log == ["outer 1 1", "outer 2 1", "outer saw it", "outer 2 2"]
    assert [record.value for record in broker.records("out")] == [b"1", b"more", b"2", b"more"]


class Pool:
    """Something that is opened and closed."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    async def __aenter__(self) -> Pool:
        self.log.append(f"open {self.name}")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.log.append(f"close {self.name}")


async def test_resources_are_open_while_handlers_run_and_reach_handler_middleware_and_dead_letter_function() -> None:
    """Opened in order with the consumer, closed in reverse after the drain."""
    broker = broker_with(b"1")
    log: list[str] = []

    async def middleware(record: Record[Any, Any], call_next: CallNext) -> object:
        log.append(f"middleware {resource('a', Pool).name}")
        return await call_next(record)

    async def handle(record: Record) -> None:
        await asyncio.sleep(0)
        log.append(f"handler {resource('b', Pool).name}")
        raise ValueError

    async def put(record: Record[Any, Any], error: Exception) -> None:
        log.append(f"put away {resource('b', Pool).name}")

    consumer = consumer_of(
        broker,
        until="end",
        middleware=[middleware],
        resources={"a": lambda: Pool("A", log), "b": lambda: Pool("B", log)},
        failures=FailurePolicy(retry=ONCE, dead_letter=put),
    )
    async with consumer:
        assert isinstance(consumer.resources["a"], Pool)
        await consumer.run(handle)
        log.append("end of run")
        with pytest.raises(ConsumerStateError, match="no resource 'a' here"):
            resource("a")  # not within a handler
    assert log == [
        "open A", "open B", "middleware A", "handler B", "put away B", "end of run", "close B", "close A",
    ]  # fmt: skip


async def test_a_resource_that_does_not_open_closes_the_others_and_the_consumer() -> None:
    """Its error is raised with the resource's name."""
    log: list[str] = []

    @contextlib.asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        if log:
            raise ConnectionError("no database")
        yield

    consumer = consumer_of(broker_with(), resources={"a": lambda: Pool("A", log), "db": broken})
    with pytest.raises(ConnectionError, match="no database") as caught:
        async with consumer:
            pass
    assert caught.value.__notes__ == ["while opening resource 'db'"]
    assert log == ["open A", "close A"]


async def test_a_wrong_resource_says_what_there_is() -> None:
    """Unknown name, and another class."""
    broker = broker_with(b"1")
    told: list[str] = []

    async def handle(record: Record) -> None:
        for arguments in (("http",), ("a", dict)):
            try:
                resource(*arguments)
            except ConsumerStateError as error:
                told.append(str(error))

    async with consumer_of(broker, until="end", resources={"a": lambda: Pool("A", [])}) as consumer:
        await consumer.run(handle)
    assert "no resource 'http' here (there are: a)" in told[0]
    assert told[1] == "resource 'a' is a Pool, not dict"


async def test_a_topic_that_appears_later_without_a_handler_fails_its_records_clearly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With a pattern and handlers by topic: the records wait, named in the log, and nothing is lost."""
    broker = broker_with(b"1")

    async def handle(record: Record) -> None:
        pass

    consumer = consumer_of(broker, re.compile("t|late"))
    async with consumer:
        running = asyncio.ensure_future(consumer.run({"t": handle}))
        await until(lambda: committed(broker) == 1)
        broker.create_topic("late")
        produce(broker, [b"x"], topic="late")
        await until(lambda: consumer.stats().parked == 1)
        consumer.stop()
        await running
    assert "no handler for topic 'late'; there are handlers for t" in caplog.text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"middleware": [lambda record: None]}, "must take two arguments, the record and call_next"),
        ({"middleware": "name"}, "middleware='name'"),
        ({"resources": {"a": 5}}, "must map names to functions"),
        ({"value_deserializer": "json"}, "must be a plain function of bytes"),
        ({"key_deserializer": asyncio.sleep}, "must be a plain function of bytes"),
        ({"handler_timeout": 0}, "handler_timeout=0"),
        ({"max_parked": 10}, "max_parked=10: must be at least twice max_concurrency"),
        ({"failures": "retry"}, "must be a FailurePolicy"),
    ],
)
async def test_wrong_options_are_refused_before_anything_runs(options: dict[str, Any], says: str) -> None:
    """Each message names the option and what it must be."""

    async def handle(record: Record) -> None:
        pass

    with pytest.raises(ConfigurationError, match=re.escape(says)):
        async with consumer_of(broker_with(), until="end", **options) as consumer:
            await consumer.run(handle)


def traced(function: Any) -> Any:
    """A decorator as there are many."""

    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        return function(*arguments)

    return wrapper


class Handlers:
    """Handlers of all kinds; ``seen`` is what ran."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    async def method(self, record: Record[Any, Any]) -> None:
        self.seen.append(record.offset)

    async def more(self, more: int, record: Record[Any, Any]) -> None:
        await self.method(record)

    async def yields(self, record: Record[Any, Any]) -> AsyncIterator[Outgoing]:
        await self.method(record)
        yield Outgoing("out")

    async def __call__(self, record: Record[Any, Any]) -> None:
        await self.method(record)

    def plain(self, record: Record[Any, Any]) -> None:
        self.seen.append(record.offset)


@pytest.mark.parametrize(
    "make",
    [
        lambda h: h,
        lambda h: h.method,
        lambda h: h.yields,
        lambda h: functools.partial(h.more, 1),
        lambda h: functools.partial(functools.partial(h.more), 1),
        lambda h: traced(h.method),
        lambda h: traced(traced(h.yields)),
        lambda h: {"t": functools.partial(h.more, 1)},
    ],
)
async def test_what_is_declared_async_is_a_handler(make: Callable[[Handlers], Any]) -> None:
    """Itself, or what a partial, a method, a ``__call__`` or a wrapper goes around."""
    handlers = Handlers()
    async with consumer_of(broker_with(b"1"), until="end") as consumer:
        await consumer.run(make(handlers))
    assert handlers.seen == [0]


@pytest.mark.parametrize(
    "make",
    [
        lambda h: h.plain,
        lambda h: lambda record: h.method(record),
        lambda h: functools.partial(h.plain),
        lambda h: traced(h.plain),
        lambda h: {"t": h.plain},
        lambda h: print,
    ],
)
async def test_what_is_not_declared_async_is_refused_before_anything_runs(make: Callable[[Handlers], Any]) -> None:
    """Not at its first record; the group is not joined, and the same consumer may run with another handler."""
    handlers, broker = Handlers(), broker_with(b"1")
    async with consumer_of(broker, until="end") as consumer:
        with pytest.raises(ConfigurationError, match="must be an `async def` function, or a partial"):
            await consumer.run(make(handlers))
        assert handlers.seen == []
        await consumer.run(handlers.method)


async def test_middleware_that_is_not_async_is_refused_when_the_consumer_is_made() -> None:
    """By the same rule."""
    with pytest.raises(ConfigurationError, match=r"middleware=.*must be an `async def` function"):
        consumer_of(broker_with(), middleware=[lambda record, call_next: call_next(record)])
