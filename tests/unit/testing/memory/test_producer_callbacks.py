"""Whoever hears how an output ended may send again, or raise; names that no topic can have. In virtual time."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aioparallel.clients.aiokafka.batch_encoding import BatchEncoder
from aioparallel.clients.producing.pending import outputs_of
from aioparallel.clients.producing.queues import PartitionQueues
from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Outgoing, Produced
from aioparallel.testing.memory import ErrorCode, Fault, InMemoryBroker, InMemoryProducer, Request
from tests.support.memory.sending import Result, numbered, send, values


async def test_an_output_sent_by_a_failure_has_a_deadline_of_its_own(broker: InMemoryBroker) -> None:
    """A letter, say, sent when an output has failed at its deadline: it fails at its own, and is not forgotten."""
    broker.hang(1)
    producer = InMemoryProducer(broker, delivery_timeout=5.0)
    loop = asyncio.get_running_loop()
    letter: asyncio.Future[Result] = loop.create_future()

    def failed(result: Result) -> None:
        producer.send([Outgoing("t", b"letter", partition=1)], letter.set_result)

    producer.send(numbered(0, 1), failed)
    assert isinstance(await asyncio.wait_for(letter, 60), ProduceFailed)
    assert loop.time() == pytest.approx(10.0, abs=0.1)
    await producer.stop(1.0)
    broker.unhang(1)


def test_what_hears_of_a_refusal_may_send_to_a_new_topic() -> None:
    """The metadata is new, and a partitioner names a partition that is not there: all others are still taken in."""
    partition_queues = PartitionQueues(
        BatchEncoder(None, 1000), lambda output: None, batch_bytes=1000, unchecked_bytes=100, partitioner=lambda *_: 9
    )
    heard: list[object] = []

    def refused(result: object) -> None:
        heard.append(result)
        for name in ("dead", "letters"):
            (entry,) = outputs_of([Outgoing(name, b"letter", partition=0)], heard.append)
            entry.deadline, entry.timestamp = 1.0, 0
            assert partition_queues.add(entry) is None

    for number in range(3):
        (entry,) = outputs_of([Outgoing(f"t{number}", b"value")], refused)
        entry.deadline, entry.timestamp = 1.0, 0
        assert partition_queues.add(entry) is None
    partition_queues.update(lambda topic: {0: True}, 0.0)
    assert [isinstance(one, ProduceFailed) for one in heard] == [True] * 3
    partition_queues.update(lambda topic: {0: True}, 0.0)
    assert sorted(queue.topic for queue in partition_queues.queues if not queue.is_empty) == ["dead", "letters"]


async def test_a_callback_that_is_cancelled_by_itself(broker: InMemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    """CancelledError out of a callback, as looking at a cancelled future raises it, is its own: the others of the batch
    hear of theirs."""
    producer = InMemoryProducer(broker)
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    gone.cancel()
    with caplog.at_level(logging.CRITICAL):
        producer.send(numbered(0, 1), lambda result: gone.result())
        others = [send(producer, output) for output in numbered(1, 5)]
        results = await asyncio.wait_for(asyncio.gather(*others), 10)
    assert not [result for result in results if isinstance(result, ProduceFailed)]
    await producer.stop(1.0)


@pytest.mark.parametrize("name", ["x\ud800", "a" * 250, "two words", "..", "größe"])
async def test_a_name_that_no_topic_can_have(broker: InMemoryBroker, name: str) -> None:
    """Its output fails at once and for good, and the metadata goes on: a topic created later is found."""
    producer = InMemoryProducer(broker)
    failure = await send(producer, Outgoing(name, b"value"))
    assert isinstance(failure, ProduceFailed)
    assert not failure.passing
    assert "not a topic name" in failure.reason
    broker.create_topic("later")
    assert not isinstance(await send(producer, Outgoing("later", b"value")), ProduceFailed)
    await producer.stop(1.0)


async def test_a_topic_that_was_never_found_is_forgotten(broker: InMemoryBroker) -> None:
    """Once nothing waits for it, nobody asks for it any more."""
    producer = InMemoryProducer(broker, delivery_timeout=2.0)
    assert isinstance(await send(producer, Outgoing("missing", b"value")), ProduceFailed)
    assert not isinstance(await send(producer, *numbered(0, 1)), ProduceFailed)
    assert set(producer._partition_queues.topics) == {"t"}
    await producer.stop(1.0)


async def test_outputs_without_a_key_go_where_nothing_waits() -> None:
    """One of three nodes hangs: it gathers no more of them than were on their way to it."""
    broker = InMemoryBroker(nodes=3)
    broker.create_topic("t", 3)
    producer = InMemoryProducer(broker, delivery_timeout=60.0, request_timeout=30.0)
    for partition in range(3):
        await send(producer, Outgoing("t", b"first", partition=partition))
    broker.hang(1)
    sent = []
    for number in range(300):
        sent.append(send(producer, Outgoing("t", b"%d" % number)))
        await asyncio.sleep(0.05)
    written = [one for one in sent if one.done() and not isinstance(one.result(), ProduceFailed)]
    assert len(written) >= 290
    broker.unhang(1)
    await asyncio.gather(*sent)
    await producer.stop(1.0)


async def test_a_cancelled_stop_closes_all_the_same(broker: InMemoryBroker) -> None:
    """Whoever waits for stop() may be cancelled: what is outstanding fails, and the connections are closed."""
    producer = InMemoryProducer(broker)
    await send(producer, *numbered(0, 1))
    broker.hang(1)
    waiting = send(producer, *numbered(1, 1))
    stopping = asyncio.create_task(producer.stop(10.0))
    await asyncio.sleep(0.1)
    stopping.cancel()
    await asyncio.wait([stopping])
    assert stopping.cancelled()
    assert isinstance(await waiting, ProduceFailed)
    await asyncio.sleep(2.0)
    assert not producer._brokers.is_connected
    broker.unhang(1)


async def test_no_backoff_is_no_storm(broker: InMemoryBroker) -> None:
    """Without a pause between attempts they would be hundreds a second."""
    producer = InMemoryProducer(broker)
    await send(producer, *numbered(0, 1))
    producer._sender._retry_backoff = 0.0
    attempts = 0
    decide = broker.faults.decide

    def counted(request: Request, node: int | None = None) -> Fault:
        nonlocal attempts
        attempts += request is Request.PRODUCE
        return decide(request, node)

    broker.faults.decide = counted  # type: ignore[method-assign]
    broker.faults.always(Request.PRODUCE, Fault(error=ErrorCode.NOT_ENOUGH_REPLICAS))
    waiting = send(producer, *numbered(1, 1))
    await asyncio.sleep(10.0)
    assert attempts < 30
    broker.faults.heal()
    assert [type(place) for place in await waiting] == [Produced]  # type: ignore[union-attr]
    assert values(broker) == [b"000", b"001"]
    await producer.stop(1.0)
