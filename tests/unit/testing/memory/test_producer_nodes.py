"""The in-memory producer on three nodes that hang, stop and lose the lead, in virtual time: what is acknowledged stands
in the log, once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Outgoing, TopicPartition
from aioparallel.testing.memory import ErrorCode, Fault, InMemoryBroker, InMemoryProducer, Request
from tests.support.memory.sending import Result, three_nodes

PATIENCE = 5.0
P0 = TopicPartition("t", 0)


@pytest.fixture
def broker() -> InMemoryBroker:
    """Topic "t" has a partition on each of three nodes: partition 0 on node 1 and so on."""
    return three_nodes()


@pytest_asyncio.fixture
async def producer(broker: InMemoryBroker) -> AsyncIterator[InMemoryProducer]:
    """It has written one output to each partition: everybody is connected, and knows its numbers."""
    producer = InMemoryProducer(broker, delivery_timeout=PATIENCE)
    for partition in range(3):
        assert not isinstance(await send(producer, b"first", partition), ProduceFailed)
    yield producer
    await producer.stop(1.0)


def send(producer: InMemoryProducer, value: bytes, partition: int = 0) -> asyncio.Future[Result]:
    ended: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
    producer.send([Outgoing("t", value, b"k", partition=partition)], ended.set_result)
    return ended


def values(broker: InMemoryBroker, partition: int = 0) -> list[bytes | None]:
    """What came after the first one."""
    return [record.value for record in broker.records("t") if record.partition == partition][1:]


def stands(broker: InMemoryBroker, value: bytes, result: Result) -> bool:
    """Whether the output is where it was acknowledged to be."""
    assert not isinstance(result, ProduceFailed), result
    [place] = result
    at = {(record.partition, record.offset): record.value for record in broker.records("t")}
    return at.get((place.partition, place.offset)) == value


async def test_one_hung_node_holds_up_nobody_else(broker: InMemoryBroker, producer: InMemoryProducer) -> None:
    """While outputs to it run out of time, each output to the other two is acknowledged in less than half a second."""
    broker.hang(1)
    loop = asyncio.get_running_loop()
    slow: list[float] = []
    late: list[asyncio.Future[Result]] = []
    for number in range(200):
        late.append(send(producer, b"%d" % number, 0))
        for partition in (1, 2):
            began = loop.time()
            assert stands(broker, b"%d" % number, await send(producer, b"%d" % number, partition))
            slow.append(loop.time() - began)
        await asyncio.sleep(0.1)
    assert max(slow) < 0.5
    assert [isinstance(await ended, ProduceFailed) for ended in late] == [True] * 200
    broker.unhang(1)


async def test_a_leader_that_hangs_is_replaced(broker: InMemoryBroker, producer: InMemoryProducer) -> None:
    """What waits for it goes to the new leader within seconds, and once: when the old one goes on it refuses what it
    still had."""
    broker.hang(1)
    waiting = [send(producer, b"1")]
    await asyncio.sleep(0.5)
    broker.move_leader(P0, 2)
    waiting.append(send(producer, b"2"))
    assert [stands(broker, b"%d" % number, await ended) for number, ended in enumerate(waiting, 1)] == [True, True]
    broker.unhang(1)
    broker.move_leader(P0, 1)
    await asyncio.sleep(10.0)
    assert stands(broker, b"3", await send(producer, b"3"))
    assert values(broker) == [b"1", b"2", b"3"]


async def test_a_hung_leader_that_goes_on_writes_once(broker: InMemoryBroker, producer: InMemoryProducer) -> None:
    """What it has had in its buffers, and what was sent again: acknowledged once it goes on, written once."""
    broker.hang(1)
    waiting = [send(producer, b"%d" % number) for number in range(5)]
    await asyncio.sleep(PATIENCE - 1.0)
    broker.unhang(1)
    assert [stands(broker, b"%d" % number, await ended) for number, ended in enumerate(waiting)] == [True] * 5
    assert values(broker) == [b"%d" % number for number in range(5)]


async def test_what_was_given_up_is_not_written_after_newer_ones(
    broker: InMemoryBroker, producer: InMemoryProducer
) -> None:
    """It is in the buffers of a hung node. What the new leader writes meanwhile has a newer epoch (KIP-360): when the
    node goes on and leads again, the old one is refused."""
    broker.hang(1)
    assert isinstance(await send(producer, b"old"), ProduceFailed)
    broker.move_leader(P0, 2)
    assert stands(broker, b"new", await send(producer, b"new"))
    broker.move_leader(P0, 1)
    broker.unhang(1)
    assert values(broker) == [b"new"]
    assert stands(broker, b"newer", await send(producer, b"newer"))
    assert values(broker) == [b"new", b"newer"]


async def test_what_was_given_up_may_be_written_later(broker: InMemoryBroker, producer: InMemoryProducer) -> None:
    """Where nothing newer was written the broker has no reason to refuse it: the output failed, and stands in the log,
    before all that come later."""
    broker.hang(1)
    assert isinstance(await send(producer, b"old"), ProduceFailed)
    broker.unhang(1)
    assert values(broker) == [b"old"]
    assert stands(broker, b"new", await send(producer, b"new"))
    assert values(broker) == [b"old", b"new"]


@pytest.mark.parametrize("code", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD])
async def test_a_batch_that_was_written_and_then_refused(
    broker: InMemoryBroker, producer: InMemoryProducer, code: ErrorCode
) -> None:
    """Its answer was lost, and it is refused when it comes again: the next one of the same size is not taken for it."""
    broker.faults.script(Request.PRODUCE, Fault(is_response_lost=True), Fault(error=code))
    assert isinstance(await send(producer, b"a"), ProduceFailed)
    for value in (b"b", b"c"):
        assert stands(broker, value, await send(producer, value))
    assert values(broker) == [b"a", b"b", b"c"]


async def test_a_topic_that_is_denied_for_a_while(broker: InMemoryBroker, producer: InMemoryProducer) -> None:
    """A batch is under way, written and not answered, when the metadata says so: it fails, and what is sent after the
    permission is back is not taken for it."""
    broker.faults.script(Request.PRODUCE, Fault(is_response_lost=True))
    failing = send(producer, b"a")
    await asyncio.sleep(0.1)
    broker.deny_topic("t")
    assert isinstance(await failing, ProduceFailed)
    broker.deny_topic("t", denied=False)
    for value in (b"b", b"c"):
        assert stands(broker, value, await send(producer, value))
    assert values(broker) == [b"a", b"b", b"c"]


async def test_nodes_that_restart_one_after_the_other(broker: InMemoryBroker, producer: InMemoryProducer) -> None:
    """Each stops for 2 seconds, its partition on another node meanwhile: everything is written once, in order."""
    waiting: list[asyncio.Future[Result]] = []

    async def keep_sending() -> None:
        for number in range(300):
            waiting.extend(send(producer, b"%03d" % number, partition) for partition in range(3))
            await asyncio.sleep(0.05)

    sending = asyncio.create_task(keep_sending())
    for node in (1, 2, 3):
        await asyncio.sleep(1.0)
        broker.stop_node(node)
        broker.move_leader(TopicPartition("t", node - 1), node % 3 + 1)
        await asyncio.sleep(2.0)
        broker.start_node(node)
        broker.move_leader(TopicPartition("t", node - 1), node)
    await sending
    assert not [result for result in await asyncio.gather(*waiting) if isinstance(result, ProduceFailed)]
    assert [values(broker, partition) for partition in range(3)] == [[b"%03d" % number for number in range(300)]] * 3


async def test_a_silent_node_is_seen(broker: InMemoryBroker) -> None:
    """outputs() counts by node what is not acknowledged, and how old it is; a node that owes an answer for three
    seconds is a problem until it answers, or the partition has another leader."""
    producer = InMemoryProducer(broker, delivery_timeout=60.0)
    assert await send(producer, b"first") is not None
    assert (producer.outputs(), producer.problems()) == ((), ())
    broker.hang(1)
    waiting = [send(producer, b"1")]
    await asyncio.sleep(0.2)
    waiting += [send(producer, b"%d" % number) for number in range(2, 5)]
    await asyncio.sleep(1.8)
    (one,) = producer.outputs()
    assert (one.broker, one.outputs, one.waiting, one.batches) == (1, 4, 3, 1)
    assert one.oldest == pytest.approx(2.0, abs=0.01)
    assert (one.silent, producer.problems()) == (None, ())
    await asyncio.sleep(2.0)
    (one,) = producer.outputs()
    assert one.silent == pytest.approx(4.0, abs=0.01)
    (problem,) = producer.problems()
    assert problem.kind == "broker_silent"
    assert problem.message.startswith("broker 1 (the in-memory broker) has not answered for 4 s; 4 outputs wait")
    broker.move_leader(P0, 2)
    assert not [result for result in await asyncio.gather(*waiting) if isinstance(result, ProduceFailed)]
    assert (producer.outputs(), producer.problems()) == ((), ())
    await producer.stop(1.0)
    broker.unhang(1)
