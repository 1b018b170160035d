"""What handlers return: produced, acknowledged, then complete; in order, within bounds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aioparallel import Batch, FailurePolicy, Outgoing, Produced, Producing, Record, RetryPolicy, batches
from aioparallel.delivery.outbox import Outbox
from aioparallel.delivery.outputs import size_of
from aioparallel.testing.memory import ErrorCode, Fault, Request
from tests.support.memory.consuming import QUICK, committed, consumer_of, produce
from tests.support.memory.sending import broker_with, values
from tests.support.waiting import until


async def one(record: Record) -> Outgoing:
    return Outgoing("out", record.value, record.key)


async def several(record: Record) -> list[Outgoing]:
    return [Outgoing("out", b"%s.%d" % (record.value or b"", i), b"k") for i in range(3)]


async def generator(record: Record) -> AsyncIterator[Outgoing]:
    for i in range(3):
        await asyncio.sleep(0)
        yield Outgoing("out", b"%s.%d" % (record.value or b"", i), b"k")


async def returns_generator(record: Record) -> AsyncIterator[Outgoing]:
    return generator(record)


async def test_a_returned_output_is_produced_before_the_offset_completes() -> None:
    """Nothing is committed while the broker does not acknowledge; then everything is, and every output is there."""
    broker = broker_with([b"a", b"b", None])
    broker.faults.always(Request.PRODUCE, Fault(is_request_lost=True))
    consumer = consumer_of(broker, until="end")
    async with consumer:
        running = asyncio.ensure_future(consumer.run(one))
        await until(lambda: consumer._engine and consumer.stats().producing == 3)
        await consumer.commit_now()
        assert committed(broker) == 0
        assert consumer.stats().in_flight == 0
        broker.faults.heal()
        await running
    assert sorted(filter(None, values(broker, "out"))) == [b"0", b"1", b"2"]
    assert committed(broker) == 3


@pytest.mark.parametrize("handler", [several, generator, returns_generator])
async def test_several_outputs_may_be_returned_or_yielded(handler: Any) -> None:
    """A list, an async generator function and a returned async iterator all give their outputs in order."""
    broker = broker_with([b"k", b"k"])
    consumer = consumer_of(broker, until="end")
    async with consumer:
        await consumer.run(handler)
    assert values(broker, "out") == [b"%d.%d" % (r, i) for r in range(2) for i in range(3)]


async def test_a_lane_waits_for_its_acknowledgement_and_holds_no_worker() -> None:
    """While one key's output is unacknowledged its next record does not start; with one worker, other keys do."""
    broker = broker_with([b"a", b"a", b"b"])
    broker.faults.script(Request.PRODUCE, Fault(response_delay=0.15))
    started: list[bytes | None] = []

    async def handle(record: Record) -> Outgoing | None:
        started.append(record.value)
        return Outgoing("out", record.value, record.key) if record.key == b"a" else None

    consumer = consumer_of(broker, until="end", max_concurrency=1)
    async with consumer:
        running = asyncio.ensure_future(consumer.run(handle))
        await until(lambda: len(started) == 2)
        assert started == [b"0", b"2"]
        await running
    assert values(broker, "out") == [b"0", b"1"]


async def test_a_refused_output_fails_its_record_alone() -> None:
    """A record whose output the broker refuses follows the failure policy; the others are not touched."""
    broker = broker_with([b"a", b"b", b"c"])

    async def handle(record: Record) -> Outgoing:
        return Outgoing("nowhere" if record.key == b"b" else "out", record.value, record.key)

    policy = FailurePolicy(retry=RetryPolicy(first_delay=0.01, max_attempts=2), give_up="skip")
    consumer = consumer_of(broker, until="end", failures=policy, producing=Producing(delivery_timeout=0.3))
    async with consumer:
        await consumer.run(handle)
        stats = consumer.stats()
    assert (stats.succeeded, stats.skipped, stats.failed_attempts) == (2, 1, 2)
    assert sorted(filter(None, values(broker, "out"))) == [b"0", b"2"]


@pytest.mark.parametrize("wrong", ["text", b"bytes", 7, {"a": 1}, [Outgoing("out"), "text"]])
async def test_what_cannot_be_produced_fails_the_record_and_says_what_to_do(
    wrong: object, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler that returns something else fails with InvalidOutput; nothing of it is produced."""
    broker = broker_with([b"a"])

    async def handle(record: Record) -> Any:
        return wrong

    consumer = consumer_of(
        broker, until="end", failures=FailurePolicy(retry=RetryPolicy(max_attempts=1), give_up="skip")
    )
    async with consumer:
        await consumer.run(handle)
    assert "may return None, an Outgoing, or an iterable of them" in caplog.text
    assert "consumer.results(handler)" in caplog.text
    assert values(broker, "out") == []


async def test_unacknowledged_outputs_are_bounded_and_starting_slows_down() -> None:
    """With the broker silent, no more is sent than the bound and one record's outputs; the handlers that have ended
    wait in flight, so nothing more starts. It goes on when the broker answers."""
    broker = broker_with([None] * 50)
    broker.faults.always(Request.PRODUCE, Fault(is_request_lost=True))
    started = 0

    async def handle(record: Record) -> Outgoing:
        nonlocal started
        started += 1
        return Outgoing("out", bytes(1_000))

    size = 1_256
    consumer = consumer_of(
        broker, until="end", max_concurrency=4, producing=Producing(max_unacknowledged_bytes=10 * size)
    )
    async with consumer:
        running = asyncio.ensure_future(consumer.run(handle))
        await until(lambda: started == 14)
        assert isinstance(consumer._delivery.output_sink, Outbox)
        assert consumer._delivery.output_sink.unacknowledged_bytes == 10 * size
        stats = consumer.stats()
        assert (stats.producing, stats.in_flight, stats.buffered) == (10, 4, 36)
        broker.faults.heal()
        await running
    assert len(values(broker, "out")) == 50


async def test_a_drain_waits_for_acknowledgements_and_close_has_its_deadline() -> None:
    """Stopping with outputs on their way commits them; with a broker that never answers it ends at the deadline,
    nothing of it committed."""
    broker = broker_with([b"a", b"b"])
    broker.faults.script(Request.PRODUCE, Fault(response_delay=0.1))
    consumer = consumer_of(broker)
    async with consumer:
        running = asyncio.ensure_future(consumer.run(one))
        await until(lambda: consumer._engine and consumer.stats().producing == 2)
        consumer.stop()
        await running
    assert committed(broker) == 2

    produce(broker, [b"a"])
    broker.faults.always(Request.PRODUCE, Fault(is_request_lost=True))
    consumer = consumer_of(broker, drain_timeout=0.2)
    async with asyncio.timeout(60), consumer:
        running = asyncio.ensure_future(consumer.run(one))
        await until(lambda: consumer._engine and consumer.stats().producing == 1)
        consumer.stop()
        await running
        stats = consumer.stats()
    assert committed(broker) == 2
    assert stats.admitted == stats.ended + stats.dropped + stats.producing


@pytest.mark.parametrize(("handler", "each"), [(one, [""]), (several, [".0", ".1", ".2"])])
async def test_on_produced_hears_each_output_and_cannot_break_anything(
    caplog: pytest.LogCaptureFixture, handler: Any, each: list[str]
) -> None:
    """It is told record, output and place before the offset completes; what it raises is logged."""
    broker = broker_with([b"a", b"b"])
    told: list[tuple[int, bytes | None, Produced]] = []

    def on_produced(record: Record[Any, Any], output: Outgoing, place: Produced) -> None:
        told.append((record.offset, output.value, place))
        raise RuntimeError("broken callback")

    consumer = consumer_of(broker, until="end", producing=Producing(on_produced=on_produced))
    async with consumer:
        await consumer.run(handler)
    assert sorted((offset, value, place.topic) for offset, value, place in told) == [
        (offset, f"{offset}{end}".encode(), "out") for offset in (0, 1) for end in each
    ]
    assert committed(broker) == 2
    lines = [line.getMessage().startswith("on_produced failed") for line in caplog.records]
    assert lines.count(True) == 2 * len(each)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("handler", [one, several])
async def test_an_on_produced_that_exits_ends_the_run_at_once(handler: Any, together: bool) -> None:
    """With what it raised. The output is written, so its record is complete and no drain waits for it."""
    broker = broker_with([b"a", b"b"])

    def on_produced(*_: object) -> None:
        raise GeneratorExit("of a generator that it closes")

    async def handle_all(batch: Batch[Record[Any, Any]]) -> list[Outgoing]:
        return [Outgoing("out", record.value) for record in batch]

    consumer = consumer_of(broker, producing=Producing(on_produced=on_produced))
    time = asyncio.get_running_loop().time
    began = time()
    with pytest.raises(GeneratorExit, match="that it closes") as raised:
        async with consumer:
            await consumer.run(batches(handle_all, size=2) if together else handler)
    assert time() - began < 10
    assert committed(broker) == 2
    assert consumer.stats().producing == 0
    assert "in on_produced, for the output of t-0 offset" in raised.value.__notes__[0]


def test_an_output_takes_as_much_as_all_of_it() -> None:
    """Key, value and headers, those without a value as well."""
    small = size_of(Outgoing("out", b""))
    assert size_of(Outgoing("out", b"12345", b"123", headers=[("ab", b"1"), ("abc", None)])) == small + 5 + 3 + 3 + 3


async def test_a_retried_produce_writes_each_output_once() -> None:
    """Errors that pass by themselves never reach the record: one attempt, one output."""
    broker = broker_with([b"a"] * 5)
    broker.faults.script(Request.PRODUCE, Fault(error=ErrorCode.NOT_LEADER_OR_FOLLOWER), Fault(is_response_lost=True))
    consumer = consumer_of(broker, until="end", failures=FailurePolicy(retry=QUICK))
    async with consumer:
        await consumer.run(one)
        assert consumer.stats().failed_attempts == 0
    assert values(broker, "out") == [b"0", b"1", b"2", b"3", b"4"]


async def test_nothing_connects_for_a_consumer_that_produces_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Without outputs and dead letters there is no producer to be seen."""
    caplog.set_level(logging.DEBUG)
    broker = broker_with([b"a"])

    async def handle(record: Record) -> None:
        pass

    consumer = consumer_of(broker, until="end")
    async with consumer:
        await consumer.run(handle)
    assert not [line for line in caplog.records if "outbox" in line.name or "producer" in line.name]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"topic": ""}, "not empty"),
        ({"topic": "t", "value": "text"}, "value is a str"),
        ({"topic": "t", "key": 5}, "key is an int"),
        ({"topic": "t", "headers": {"a": b"b"}}, "pairs of a text and bytes"),
        ({"topic": "t", "headers": (("a", "b"),)}, "pairs of a text and bytes"),
        ({"topic": "t", "partition": -1}, "partition=-1 must be a whole number"),
        ({"topic": "t", "timestamp": 1.5}, "timestamp=1.5 must be a whole number"),
    ],
)
def test_a_wrong_outgoing_is_refused_where_it_is_made(arguments: dict[str, Any], says: str) -> None:
    """The message names what is wrong, and where."""
    with pytest.raises(TypeError, match=says):
        Outgoing(**arguments)


async def test_a_retry_function_that_raises_cancelled_error_ends_the_run() -> None:
    """Also when an output has failed: there nobody would hear of it, and the record would stay producing for ever."""
    broker = broker_with([b"a", b"a"])

    def retry(record: Record, error: Exception, attempts: int) -> float:
        raise asyncio.CancelledError

    async def handle(record: Record) -> Outgoing:
        return Outgoing("no such topic", b"")

    options: dict[str, Any] = {"failures": FailurePolicy(retry=retry), "producing": Producing(delivery_timeout=0.2)}
    async with consumer_of(broker, **options) as consumer:
        with pytest.raises(RuntimeError, match="it raised CancelledError"):
            async with asyncio.timeout(5):
                await consumer.run(handle)
