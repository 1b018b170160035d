"""What type checkers accept of the public interface, and what they refuse: lines marked so.

Read by test_typing.py, never run.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any, assert_type

import msgspec

from aioparallel import (
    Batch,
    CallNext,
    FailurePolicy,
    Outcome,
    Outgoing,
    ParallelConsumer,
    ParallelMap,
    Record,
    Result,
    batches,
    in_processes,
    in_threads,
    parallel_map,
)
from aioparallel.deserializers import msgspec_json, text
from aioparallel.http import Request, http_handler
from aioparallel.queues.kmq import KmqConsumer
from aioparallel.queues.priority import PriorityConsumer


class Order(msgspec.Struct):
    price: float


raw = ParallelConsumer("t", group_id="g")
orders = ParallelConsumer("t", group_id="g", value_deserializer=msgspec_json(Order))
both = ParallelConsumer("t", group_id="g", key_deserializer=text(), value_deserializer=msgspec_json(Order))

queue = KmqConsumer("t", group_id="g", lease=3, value_deserializer=msgspec_json(Order), stalled_after=3)
ranked = PriorityConsumer("t", group_id="g", priorities=3, key_deserializer=text(), until="end")

assert_type(raw, ParallelConsumer[bytes | None, bytes | None])
assert_type(queue, KmqConsumer[bytes | None, Order])
assert_type(ranked, PriorityConsumer[str, bytes | None])
assert_type(orders, ParallelConsumer[bytes | None, Order])
assert_type(both, ParallelConsumer[str, Order])


def asks(record: Record) -> Request:
    return Request("GET", "https://host")


async def of_bytes(record: Record) -> None: ...
async def of_orders(record: Record[bytes | None, Order]) -> None: ...
async def of_both(record: Record[str, Order]) -> Outgoing | None: ...
async def of_any(record: Record[Any, Any]) -> list[Outgoing]:
    return []


async def of_objects(record: Record[object, object]) -> tuple[Outgoing, ...]:
    return ()


async def yields(record: Record[str, Order]) -> AsyncIterator[Outgoing]:
    yield Outgoing("out")


async def returns_iterator(record: Record[str, Order]) -> AsyncIterator[Outgoing]:
    return yields(record)


async def plain_iterator(record: Record) -> Iterator[Outgoing]:
    return iter(())


async def with_more(record: Record[str, Order], more: int) -> None: ...


class Handler:
    async def __call__(self, record: Record[str, Order]) -> None: ...

    async def method(self, record: Record[str, Order]) -> None: ...


async def middleware(record: Record[Any, Any], call_next: CallNext) -> object:
    return await call_next(record)


async def good() -> None:
    FailurePolicy(retry=lambda record, error, attempts: 1.0 if attempts < 3 else "skip")
    await raw.run(of_bytes)
    await raw.run(of_any)
    await raw.run(of_objects)
    await raw.run(plain_iterator)
    await raw.run({"a": of_bytes, "b": of_any})
    await orders.run(of_orders)
    await both.run(of_both)
    await both.run(of_any)
    await both.run(yields)
    await both.run(returns_iterator)
    await both.run(Handler())
    await both.run(Handler().method)
    await both.run(functools.partial(with_more, more=1))
    await both.run({"a": of_both, "b": Handler().method})
    async for result in both.results(priced):
        assert_type(result, Result[float])


async def priced(record: Record[str, Order]) -> float:
    return record.value.price


def outputs() -> Iterator[Outgoing]:
    yield Outgoing("out", headers=[("trace", b"1")])
    yield Outgoing("out", headers=[("trace", b"1"), ("empty", None)])
    yield Outgoing("out", headers=(("trace", b"1"),))
    known: list[tuple[str, bytes]] = [("trace", b"1")]
    yield Outgoing("out", headers=known)


# -- refused ----------------------------------------------------------------------------------------------


async def returns_dict(record: Record) -> dict[str, int]:
    return {}


async def returns_text(record: Record) -> str:
    return ""


async def returns_bytes(record: Record) -> bytes:
    return b""


async def yields_text(record: Record) -> AsyncIterator[str]:
    yield ""


def plain(record: Record) -> None: ...


async def bad() -> None:
    await orders.run(of_bytes)  # refused
    await both.run(of_bytes)  # refused
    await both.run(of_orders)  # refused
    await raw.run(of_orders)  # refused
    await raw.run(of_both)  # refused
    await raw.run(returns_dict)  # refused
    await raw.run(returns_text)  # refused
    await raw.run(returns_bytes)  # refused
    await raw.run(yields_text)  # refused
    await raw.run(plain)  # refused
    await raw.run({"a": returns_dict})  # refused
    orders.run_sync(of_bytes)  # refused
    both.results(of_bytes)  # refused
    ParallelConsumer("t", group_id="g", max_concurrency="many")  # refused
    ParallelConsumer("t", group_id="g", max_concurency=3)  # refused
    FailurePolicy(retry=lambda record, error, attempts: "release")  # refused
    KmqConsumer("t", group_id="g", max_concurency=3)  # refused
    KmqConsumer("t", group_id="g", stalled_after="3")  # refused
    PriorityConsumer("t", group_id="g", priorities=3, until="now")  # refused
    http_handler(asks, timeout="3")  # refused
    http_handler(asks, timeut=3)  # refused
    Outgoing("out", "text")  # refused
    Outgoing("out", headers=[("trace", "text")])  # refused
    Outgoing("out", headers={"trace": b"1"})  # refused
    await asyncio.sleep(0)


async def length(word: str) -> int:
    return len(word)


def plain_length(word: str) -> int:
    return len(word)


async def words() -> AsyncIterator[str]:
    yield "word"


async def mapped() -> None:
    assert_type(parallel_map(length, ["a"]), ParallelMap[str, int])
    async for outcome in parallel_map(length, words(), key=len, label=lambda word, index: word):
        assert_type(outcome, Outcome[str, int])
        assert_type(outcome.result(), int)
        assert_type(outcome.item, str)
    async with parallel_map(length, words(), on_error="emit") as outcomes:
        assert_type([one.value async for one in outcomes], list[int | None])


async def bad_maps() -> None:
    parallel_map(length, [1])  # refused
    parallel_map(plain_length, ["a"])  # refused
    parallel_map(length, ["a"], on_error="yield")  # refused
    parallel_map(length, ["a"], key=lambda word: [word])  # refused
    parallel_map(length, ["a"], retry=3)  # refused
    for one in parallel_map(length, ["a"]):  # refused
        print(one)
    await asyncio.sleep(0)


async def save(batch: Batch[Record]) -> None: ...


async def save_orders(batch: Batch[Record[bytes | None, Order]]) -> None:
    for record in batch:
        assert_type(record, Record[bytes | None, Order])
        batch.fail(record, ValueError())


async def by_record(batch: Batch[Record]) -> dict[Record, Outgoing]:
    return {record: Outgoing("out") for record in batch}


async def lengths(batch: Batch[str]) -> list[int]:
    return [len(word) for word in batch]


@batches(size=10)
async def decorated(batch: Batch[Record]) -> None: ...


async def batched() -> None:
    await raw.run(batches(save, size=500, by="lane"))
    await raw.run(batches(by_record))
    await raw.run(decorated)
    await raw.run({"a": batches(save), "b": of_bytes})
    await orders.run(batches(save_orders))
    await raw.run(in_threads(plain, threads=3))
    assert_type(parallel_map(batches(lengths), ["a"]), ParallelMap[str, int])
    assert_type(parallel_map(in_threads(plain_length), ["a"]), ParallelMap[str, int])
    assert_type(parallel_map(in_processes(plain_length), ["a"]), ParallelMap[str, int])


async def bad_batches() -> None:
    await raw.run(batches(save_orders))  # refused
    await orders.run(batches(save))  # refused
    batches(plain)  # refused
    batches(save, by="key")  # refused
    batches(save, sise=3)  # refused
    parallel_map(batches(lengths), [1])  # refused
    in_threads(length)(1)  # refused
    await asyncio.sleep(0)
