"""What a producer that can send nothing says about it, in virtual time."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aioparallel import Outgoing, ParallelConsumer, Record
from aioparallel.records.errors import ProduceFailed
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient, InMemoryProducer
from tests.support.memory.sending import Result, numbered, send


async def test_a_cluster_that_does_not_answer_is_a_problem(broker: InMemoryBroker) -> None:
    """After three seconds, with how long and why, until something could be sent; an idle producer has none."""
    broker.go_down()
    producer = InMemoryProducer(broker, delivery_timeout=600.0)
    await asyncio.sleep(60)
    assert producer.problems() == ()
    sent = send(producer, *numbered(0, 1))
    await asyncio.sleep(2)
    assert producer.problems() == ()
    await asyncio.sleep(2)
    (problem,) = producer.problems()
    assert problem.kind == "producer_unreachable"
    assert "the in-memory broker" in problem.message
    assert "for 4 s" in problem.message
    await asyncio.sleep(60)
    (problem,) = producer.problems()
    assert "for 64 s" in problem.message
    assert "it does not answer" in problem.message
    broker.come_back()
    await sent
    assert producer.problems() == ()
    await producer.stop(1.0)


async def test_a_problem_lasts_until_something_is_sent(broker: InMemoryBroker) -> None:
    """Outputs that have failed meanwhile do not end it: nothing says that the next one would fare better."""
    broker.go_down()
    producer = InMemoryProducer(broker, delivery_timeout=5.0)
    await send(producer, *numbered(0, 1))
    await asyncio.sleep(600)
    assert [problem.kind for problem in producer.problems()] == ["producer_unreachable"]
    broker.come_back()
    await send(producer, *numbered(1, 1))
    assert producer.problems() == ()
    await producer.stop(1.0)


@pytest.mark.parametrize("refusal", ["is_login_refused", "is_idempotence_refused"])
async def test_a_refused_user_is_a_problem(broker: InMemoryBroker, refusal: str) -> None:
    """At once, and until it is let in."""
    setattr(broker, refusal, True)
    producer = InMemoryProducer(broker)
    await send(producer, *numbered(0, 1))
    (problem,) = producer.problems()
    assert problem.kind == "producer_unreachable"
    assert ("login refused" if refusal == "is_login_refused" else "not authorised") in problem.message
    setattr(broker, refusal, False)
    await send(producer, *numbered(1, 1))
    assert producer.problems() == ()
    await producer.stop(1.0)


async def test_the_log_is_not_flooded(broker: InMemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    """While nothing can be sent there is at most one line in five seconds; the first is a warning with the reason."""
    broker.is_idempotence_refused = True
    producer = InMemoryProducer(broker)
    with caplog.at_level(logging.INFO):
        for number in range(200):
            await send(producer, *numbered(number, 1))
            await asyncio.sleep(0.1)
    lines = [record for record in caplog.records if record.name.startswith("aioparallel.clients")]
    assert 1 <= len(lines) <= 5
    assert lines[0].levelno == logging.WARNING
    assert "not authorised" in lines[0].getMessage()
    await producer.stop(1.0)


async def test_health_tells(broker: InMemoryBroker) -> None:
    """A consumer that reads well and cannot produce is not healthy, and its health says what is wrong."""
    nowhere = InMemoryBroker()
    nowhere.go_down()
    broker.append("t", b"value", key=b"key")
    producer = InMemoryProducer(nowhere, delivery_timeout=600.0)
    consumer = ParallelConsumer("t", group_id="g", client=InMemoryClient(broker, "g"), producer=producer)

    async def handle(record: Record) -> Outgoing:
        return Outgoing("out", record.value)

    async with consumer:
        running = asyncio.ensure_future(consumer.run(handle))
        await asyncio.sleep(1)
        assert consumer.health().healthy
        await asyncio.sleep(60)
        assert [problem.kind for problem in consumer.health().problems] == ["producer_unreachable"]
        nowhere.create_topic("out")
        nowhere.come_back()
        await asyncio.sleep(60)
        assert consumer.health().healthy
        consumer.stop()
        await running


async def test_what_is_sent_when_another_one_fails_has_a_deadline_too(broker: InMemoryBroker) -> None:
    """A failed output's callback sends the next one, to a partition that was empty: it fails in its time."""
    loop = asyncio.get_running_loop()
    producer = InMemoryProducer(broker, delivery_timeout=5.0)
    await producer.start(1.0)
    for partition in (0, 1):
        await send(producer, Outgoing("t", b"first", partition=partition))
    broker.hang(1)
    second: list[asyncio.Future[Result]] = []
    producer.send(
        [Outgoing("t", b"1", partition=1)],
        lambda result: second.append(send(producer, Outgoing("t", b"2", partition=0))),
    )
    await asyncio.sleep(5.5)
    async with asyncio.timeout(5.5):
        assert isinstance(await second[0], ProduceFailed)
    assert loop.time() < 11.0
    await producer.stop(1.0)
