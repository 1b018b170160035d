"""An Outgoing is checked where it is made, and may be changed after: what is handed over is checked again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aioparallel import FailurePolicy, Outgoing, Record, RetryPolicy
from aioparallel.testing.memory import Fault, InMemoryBroker, Request
from tests.support.memory.consuming import committed, consumer_of, produce
from tests.support.waiting import until

CHANGES: list[tuple[str, object, str]] = [
    ("topic", None, "topic's name"),
    ("topic", 5, "topic's name"),
    ("topic", ["out"], "topic's name"),
    ("topic", "", "topic's name"),
    ("value", "text", "value is a str"),
    ("value", 5, "value is an int"),
    ("key", "text", "key is a str"),
    ("key", {}, "key is a dict"),
    ("headers", None, "headers must be pairs"),
    ("headers", 5, "headers must be pairs"),
    ("headers", {"a": b"b"}, "headers must be pairs"),
    ("headers", [("a", "text")], "headers must be pairs"),
    ("headers", [(5, b"b")], "headers must be pairs"),
    ("headers", [("a",)], "headers must be pairs"),
    ("partition", "x", "partition='x'"),
    ("partition", -1, "partition=-1"),
    ("timestamp", "x", "timestamp='x'"),
    ("timestamp", 1.5, "timestamp=1.5"),
]


def broker_with_records() -> InMemoryBroker:
    broker = InMemoryBroker()
    for topic in ("t", "out", "dlq"):
        broker.create_topic(topic)
    produce(broker, [b"a", b"b"])
    return broker


def changed(field: str, value: object) -> Outgoing:
    output = Outgoing("out", b"v", b"k")
    setattr(output, field, value)
    return output


@pytest.mark.parametrize("count", [1, 2], ids=["alone", "among others"])
@pytest.mark.parametrize(("field", "value", "says"), CHANGES)
async def test_one_changed_to_what_cannot_be_sent_fails_its_record(
    field: str, value: object, says: str, count: int
) -> None:
    """Its record fails with InvalidOutput and follows the policy, nothing of it is produced, the others go on."""
    broker = broker_with_records()

    async def handle(record: Record) -> Any:
        output = changed(field, value) if record.offset == 0 else Outgoing("out", b"good")
        return output if count == 1 else [Outgoing("out", b"other"), output]

    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="dlq")
    async with consumer_of(broker, until="end", failures=policy) as consumer:
        await consumer.run(handle)
        assert (consumer.stats().succeeded, consumer.stats().dead_lettered) == (1, 1)
    (letter,) = broker.records("dlq")
    headers = dict(letter.headers)
    assert headers["aioparallel.error.type"] == b"aioparallel.errors.InvalidOutput"
    assert says in (headers["aioparallel.error.message"] or b"").decode()
    assert "t-0 offset 0" in (headers["aioparallel.error.message"] or b"").decode()
    assert [record.value for record in broker.records("out")] == ([b"good"] if count == 1 else [b"other", b"good"])
    assert committed(broker) == 2


@pytest.mark.parametrize(("field", "value", "says"), CHANGES)
async def test_one_changed_while_it_waits_for_the_broker_harms_no_other(field: str, value: object, says: str) -> None:
    """Handed over as it was right, changed after: the run goes on, whatever becomes of that record."""
    broker = broker_with_records()
    kept: list[Outgoing] = []

    async def handle(record: Record) -> Outgoing:
        output = Outgoing("out", b"v", b"k")
        if record.offset == 0 and not kept:
            kept.append(output)
        return output

    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="dlq")
    async with consumer_of(broker, until="end", failures=policy) as consumer:
        broker.faults.always(Request.METADATA, Fault(is_request_lost=True))
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: consumer._engine and consumer.stats().producing == 2)
        setattr(kept[0], field, value)
        broker.faults.heal()
        async with asyncio.timeout(20):
            await running
        assert consumer.stats().succeeded + consumer.stats().dead_lettered == 2
    assert committed(broker) == 2


async def test_one_changed_to_something_else_that_is_right_is_sent_as_it_is_then() -> None:
    """Middleware may add headers, or turn it to another topic."""
    broker = broker_with_records()

    async def handle(record: Record) -> Outgoing:
        output = Outgoing("nowhere", b"v")
        output.topic = "out"
        output.headers = (*output.headers, ("trace", b"1"))
        return output

    async with consumer_of(broker, until="end") as consumer:
        await consumer.run(handle)
    assert [record.headers for record in broker.records("out")] == [(("trace", b"1"),)] * 2
