"""The in-memory producer amid faults, in virtual time."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aioparallel.records.errors import AuthenticationFailed, ProduceFailed
from aioparallel.records.record import Outgoing
from aioparallel.testing.memory import ErrorCode, Fault, InMemoryBroker, InMemoryProducer, Request
from tests.support.memory.sending import numbered, send, values


@pytest.mark.parametrize(
    "fault",
    [
        Fault(is_response_lost=True),
        Fault(is_request_lost=True),
        Fault(error=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        Fault(error=ErrorCode.NOT_ENOUGH_REPLICAS),
        Fault(error=ErrorCode.REQUEST_TIMED_OUT, is_carried_out=True),
        Fault(error=ErrorCode.CORRUPT_MESSAGE),
        Fault(error=ErrorCode.KAFKA_STORAGE_ERROR),
        Fault(error=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        Fault(request_delay=5.0),
    ],
)
async def test_what_passes_costs_nothing(broker: InMemoryBroker, fault: Fault) -> None:
    """Requests or answers that are lost, late or refused for a while: everything is written once, in order."""
    broker.faults.script(Request.PRODUCE, fault, fault)
    producer = InMemoryProducer(broker)
    waiting = [send(producer, *numbered(first, 10)) for first in range(0, 50, 10)]
    await asyncio.sleep(0.5)
    waiting += [send(producer, *numbered(first, 10)) for first in range(50, 100, 10)]
    assert not [result for result in await asyncio.gather(*waiting) if isinstance(result, ProduceFailed)]
    assert values(broker) == [b"%03d" % number for number in range(100)]
    await asyncio.sleep(10)
    assert len(values(broker)) == 100
    await producer.stop(1.0)


async def test_the_delivery_timeout_is_kept(broker: InMemoryBroker) -> None:
    """An output fails ``delivery_timeout`` seconds after its send. It arrives later all the same, and is refused, for a
    younger one was written meanwhile."""
    broker.faults.always(Request.PRODUCE, Fault(request_delay=7.0))
    producer = InMemoryProducer(broker, delivery_timeout=5.0)
    loop = asyncio.get_running_loop()
    old = send(producer, *numbered(1, 1))
    await asyncio.sleep(4.0)
    young = send(producer, *numbered(2, 1))
    failure = await old
    assert loop.time() == pytest.approx(5.0, abs=0.1)
    assert isinstance(failure, ProduceFailed)
    assert failure.passing
    broker.faults.heal()
    assert not isinstance(await young, ProduceFailed)
    await asyncio.sleep(60)
    assert values(broker) == [b"002"]
    await producer.stop(1.0)


async def test_a_broker_that_comes_back(broker: InMemoryBroker) -> None:
    """While it is away outputs wait, for as long as the delivery timeout."""
    producer = InMemoryProducer(broker, delivery_timeout=60.0)
    await producer.start(1.0)
    broker.go_down()
    waiting = send(producer, *numbered(0, 3))
    await asyncio.sleep(50.0)
    assert not waiting.done()
    broker.come_back()
    assert not isinstance(await waiting, ProduceFailed)
    assert len(values(broker)) == 3
    await producer.stop(1.0)


async def test_permissions(broker: InMemoryBroker) -> None:
    """A denied topic and refused idempotence fail for good, a refused login when patience ends, each saying what is
    missing."""
    broker.deny_topic("t")
    producer = InMemoryProducer(broker)
    denied = await send(producer, *numbered(0, 1))
    broker.deny_topic("t", denied=False)
    broker.is_idempotence_refused = True
    not_idempotent = await send(InMemoryProducer(broker), *numbered(0, 1))
    broker.is_login_refused = True
    nobody = InMemoryProducer(broker)
    with pytest.raises(AuthenticationFailed):
        await nobody.start(1.0)
    not_known = await send(nobody, *numbered(0, 1))
    for result, what in ((denied, "WRITE"), (not_idempotent, "IDEMPOTENT_WRITE"), (not_known, "login")):
        assert isinstance(result, ProduceFailed)
        assert result.passing is (what == "login")
        assert what in result.reason
    await producer.stop(1.0)


async def test_only_what_is_too_large_fails(broker: InMemoryBroker) -> None:
    """By the broker's limit, among others in its batch."""
    broker.max_message_bytes = 2000
    producer = InMemoryProducer(broker)
    waiting = [send(producer, output) for output in numbered(0, 50)]
    large = send(producer, Outgoing("t", bytes(3000), partition=0))
    waiting += [send(producer, output) for output in numbered(50, 50)]
    failure = await large
    assert isinstance(failure, ProduceFailed)
    assert not failure.passing
    assert not [result for result in await asyncio.gather(*waiting) if isinstance(result, ProduceFailed)]
    assert values(broker) == [b"%03d" % number for number in range(100)]
    await producer.stop(1.0)


async def test_a_batch_that_is_taken_apart_is_logged_so(
    broker: InMemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """At INFO, for it goes again in parts; the warning is about what is left in the end, and not written."""
    caplog.set_level(logging.INFO)
    broker.max_message_bytes = 2000
    producer = InMemoryProducer(broker)
    waiting = [send(producer, output) for output in (*numbered(0, 1), Outgoing("t", bytes(3000), partition=0))]
    await asyncio.gather(*waiting)
    lines = [
        (record.levelname, record.getMessage()) for record in caplog.records if "A batch of" in record.getMessage()
    ]
    assert [line[0] for line in lines] == ["INFO", "WARNING"]
    assert lines[0][1].startswith("A batch of 2 for t-0 was split and is sent again (too large): its batch of")
    assert lines[1][1].startswith("A batch of 1 for t-0 was not written (too large): its batch of")
    await producer.stop(1.0)


async def test_a_missing_topic_is_waited_for(broker: InMemoryBroker) -> None:
    """10 seconds; then the output fails, and may be tried again."""
    producer = InMemoryProducer(broker)
    failure = await send(producer, Outgoing("missing", b"value"))
    assert 9.9 < asyncio.get_running_loop().time() < 12.0
    assert isinstance(failure, ProduceFailed)
    assert failure.passing
    assert "topic not found" in failure.reason
    await producer.stop(1.0)


async def test_a_broker_that_forgets_its_producers(broker: InMemoryBroker) -> None:
    """After it has forgotten them, batches go on to be written."""
    producer = InMemoryProducer(broker)
    await send(producer, *numbered(0, 2))
    broker.producers.forget()
    assert not isinstance(await send(producer, *numbered(2, 2)), ProduceFailed)
    assert values(broker) == [b"%03d" % number for number in range(4)]
    await producer.stop(1.0)
