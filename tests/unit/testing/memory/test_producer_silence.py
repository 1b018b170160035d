"""Nodes that go silent while requests may take half a minute, as with real clients: who is left, who is not, and what
it costs the others. In virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
import pytest_asyncio

from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Outgoing, TopicPartition
from aioparallel.testing.memory import ErrorCode, Fault, InMemoryBroker, InMemoryProducer, Request
from aioparallel.testing.memory.faults import Faults
from tests.support.memory.sending import Result, three_nodes

P0 = TopicPartition("t", 0)
NO_METADATA = [Fault(is_request_lost=True), Fault(error=ErrorCode.REQUEST_TIMED_OUT)]


@pytest.fixture
def broker() -> InMemoryBroker:
    """Topic "t" has a partition on each of three nodes: partition 0 on node 1 and so on."""
    return three_nodes()


@pytest_asyncio.fixture
async def producer(broker: InMemoryBroker) -> AsyncIterator[InMemoryProducer]:
    """It waits 30 seconds for an answer."""
    producer = InMemoryProducer(broker, delivery_timeout=120.0, request_timeout=30.0)
    await producer.start(1.0)
    yield producer
    await producer.stop(1.0)


@dataclass
class Stream:
    """Outputs to each partition, ten a second, and when each was sent and ended."""

    producer: InMemoryProducer
    sent: list[tuple[int, float]] = field(default_factory=list)
    ended: dict[int, tuple[float, Result]] = field(default_factory=dict)
    told_twice: list[int] = field(default_factory=list)

    def send(self) -> None:
        """One to each partition."""
        loop = asyncio.get_running_loop()
        for partition in range(3):
            number = len(self.sent)
            self.sent.append((partition, loop.time()))

            def delivered(result: Result, number: int = number) -> None:
                if number in self.ended:
                    self.told_twice.append(number)  # what a callback raises is only logged
                self.ended[number] = (loop.time(), result)

            self.producer.send([Outgoing("t", b"%d" % number, partition=partition)], delivered)

    async def flow(self, seconds: float) -> None:
        """Send for so long."""
        for _ in range(round(seconds * 10)):
            self.send()
            await asyncio.sleep(0.1)

    async def finish(self, seconds: float) -> None:
        """Wait for the rest; raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while len(self.ended) < len(self.sent):
                await asyncio.sleep(0.05)

    def longest(self, *partitions: int) -> float:
        """Seconds from ``send`` to the acknowledgement, at most."""
        return max(at - self.sent[n][1] for n, (at, _) in self.ended.items() if self.sent[n][0] in partitions)

    def failed(self) -> list[int]:
        return [number for number, (_, result) in self.ended.items() if isinstance(result, ProduceFailed)]


def is_written_once_in_order(broker: InMemoryBroker, stream: Stream) -> bool:
    """Whether each partition's log is what was sent to it, no more and no less, and nobody was told twice."""
    logs: list[list[int]] = [[], [], []]
    for record in broker.records("t"):
        logs[record.partition].append(int(record.value or b""))
    expected = [[n for n, (own, _) in enumerate(stream.sent) if own == partition] for partition in range(3)]
    return logs == expected and not stream.told_twice


def is_cut(caplog: pytest.LogCaptureFixture) -> bool:
    return any(getattr(record, "action", "") == "cut" for record in caplog.records)


async def goes_on(broker: InMemoryBroker) -> None:
    """Minutes later the hung node goes on, leads again, and has all that it still had."""
    await asyncio.sleep(300.0)
    broker.move_leader(P0, 1)
    broker.unhang(1)
    await asyncio.sleep(60.0)


async def test_a_leader_that_hangs_for_good_is_left(broker: InMemoryBroker, producer: InMemoryProducer) -> None:
    """It is replaced after 2 seconds: what was on its way there goes to the new leader after 3, and everything is
    acknowledged within 5. The others do not notice; nothing is written twice when the node goes on."""
    stream = Stream(producer)
    await stream.flow(1.0)
    broker.hang(1)
    await stream.flow(2.0)
    broker.move_leader(P0, 2)
    await stream.flow(7.0)
    await stream.finish(0.5)
    assert not stream.failed()
    assert stream.longest(0) < 5.0
    assert stream.longest(1, 2) < 0.5
    await goes_on(broker)
    stream.send()
    await stream.finish(5.0)
    assert is_written_once_in_order(broker, stream)


async def test_a_leader_that_keeps_its_lead_is_not_cut(
    broker: InMemoryBroker, producer: InMemoryProducer, caplog: pytest.LogCaptureFixture
) -> None:
    """Each answer takes it 4 seconds: it is silent for one of them, and is waited for."""
    stream = Stream(producer)
    await stream.flow(1.0)
    broker.faults.always(Request.PRODUCE, Fault(response_delay=4.0), node=1)
    seen: Counter[tuple[str, ...]] = Counter()
    with caplog.at_level(logging.INFO):
        for _ in range(12):
            await stream.flow(1.0)
            seen[tuple(problem.kind for problem in producer.problems())] += 1
        await stream.finish(10.0)
    assert not is_cut(caplog)
    assert seen[("broker_silent",)] >= 2
    assert seen[()] >= 6
    assert producer.problems() == ()
    assert not stream.failed()
    assert stream.longest(1, 2) < 0.5
    assert stream.longest(0) < 9.0
    assert is_written_once_in_order(broker, stream)


async def test_a_hung_leader_that_nobody_replaces_is_waited_for(
    broker: InMemoryBroker, producer: InMemoryProducer, caplog: pytest.LogCaptureFixture
) -> None:
    """20 seconds, without a cut; then it goes on and everything is acknowledged. Meanwhile outputs() and problems()
    tell what waits for whom, and for how long."""
    stream = Stream(producer)
    await stream.flow(1.0)
    broker.hang(1)
    with caplog.at_level(logging.INFO):
        for second in range(1, 21):
            await stream.flow(1.0)
            [one] = [one for one in producer.outputs() if one.broker == 1]
            assert one.outputs == 10 * second
            assert one.oldest == pytest.approx(second, abs=0.2)
            if second > 3:
                assert one.silent == pytest.approx(second, abs=0.2)
                assert [problem.kind for problem in producer.problems()] == ["broker_silent"]
            elif second < 3:
                assert (one.silent, producer.problems()) == (None, ())
    assert not is_cut(caplog)
    broker.unhang(1)
    await stream.finish(2.0)
    assert (producer.outputs(), producer.problems()) == ((), ())
    assert not stream.failed()
    assert stream.longest(1, 2) < 0.5
    assert is_written_once_in_order(broker, stream)


@pytest.mark.parametrize("fault", NO_METADATA)
async def test_the_new_leader_is_not_known_for_a_while(
    broker: InMemoryBroker, producer: InMemoryProducer, fault: Fault
) -> None:
    """No node gives metadata for 10 seconds: as soon as one does, what waits for the hung node goes to the new leader.
    Who needs no metadata is not held up."""
    stream = Stream(producer)
    await stream.flow(1.0)
    broker.hang(1)
    broker.faults.always(Request.METADATA, fault)
    await stream.flow(2.0)
    broker.move_leader(P0, 2)
    await stream.flow(8.0)
    broker.faults.heal()
    await stream.flow(5.0)
    await stream.finish(0.5)
    assert not stream.failed()
    assert stream.longest(0) < 15.0
    assert stream.longest(1, 2) < 0.5
    await goes_on(broker)
    assert is_written_once_in_order(broker, stream)


async def test_all_nodes_hang_for_a_while(broker: InMemoryBroker, producer: InMemoryProducer) -> None:
    """One after the other for longer than a request waits, and nobody else leads: all is acknowledged once they go on,
    and written once."""
    stream = Stream(producer)
    await stream.flow(1.0)
    for node in (1, 2, 3):
        broker.hang(node)
        await stream.flow(0.5)
    await asyncio.sleep(40.0)
    for node in (3, 2, 1):
        broker.unhang(node)
    await stream.finish(5.0)
    assert not stream.failed()
    assert is_written_once_in_order(broker, stream)


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("fault", [Fault(), *NO_METADATA])
@pytest.mark.parametrize("after", [0.0, 0.5, 2.5, 3.0, 3.5, 4.2, 9.7, 31.0])
async def test_stopping_takes_its_time_and_no_more(
    broker: InMemoryBroker, producer: InMemoryProducer, after: float, fault: Fault, moved: bool
) -> None:
    """At any moment of it, with or without metadata and another leader: everything has ended then, no task is left, and
    nothing is written twice or in another order when the hung node goes on."""
    loop = asyncio.get_running_loop()
    stream = Stream(producer)
    await stream.flow(1.0)
    stream.send()
    broker.hang(1)
    broker.faults.always(Request.METADATA, fault)
    await stream.flow(min(after, 2.0))
    if moved:
        broker.move_leader(P0, 2)
    await asyncio.sleep(after - min(after, 2.0))
    stream.send()
    began = loop.time()
    await producer.stop(2.0)
    assert loop.time() - began < 3.0
    assert len(stream.ended) == len(stream.sent)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert all(stream.sent[number][0] == 0 for number in stream.failed())
    await goes_on(broker)
    values = [int(record.value or b"") for record in broker.records("t") if record.partition == 0]
    assert values == sorted(set(values))
    acknowledged = set(stream.ended) - set(stream.failed())
    assert acknowledged <= {int(record.value or b"") for record in broker.records("t")}


class CountedFaults(Faults):
    """Counts the requests that it decides about."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[Request] = Counter()

    def decide(self, request: Request, node: int | None = None) -> Fault:
        self.requests[request] += 1
        return super().decide(request, node)


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_a_node_that_is_gone_is_forgotten(
    broker: InMemoryBroker, producer: InMemoryProducer, is_stopped: bool
) -> None:
    """It never comes back, stopped or hung: its partition has another leader, and nobody looks at the metadata for its
    sake any more."""
    broker.faults = faults = CountedFaults()
    stream = Stream(producer)
    await stream.flow(1.0)
    (broker.stop_node if is_stopped else broker.hang)(1)
    await stream.flow(0.3)
    broker.move_leader(P0, 2)
    await stream.flow(20.0)
    await stream.finish(1.0)
    before = faults.requests[Request.METADATA]
    await stream.flow(60.0)
    await stream.finish(1.0)
    assert not stream.failed()
    assert faults.requests[Request.METADATA] - before == 0


async def test_who_needs_a_producer_id_holds_up_nobody(broker: InMemoryBroker, producer: InMemoryProducer) -> None:
    """A node takes nothing of the old id any more, and for 8 seconds nobody gives a new one: the other two partitions
    are written as ever, and this one as soon as there is an id."""
    stream = Stream(producer)
    await stream.flow(1.0)
    broker.faults.script(Request.PRODUCE, Fault(error=ErrorCode.INVALID_PRODUCER_EPOCH), node=1)
    broker.faults.always(Request.IDENTIFY, Fault(is_request_lost=True))
    await stream.flow(8.0)
    broker.faults.heal()
    await stream.flow(4.0)
    await stream.finish(0.5)
    assert not stream.failed()
    assert 7.0 < stream.longest(0) < 12.0
    assert stream.longest(1, 2) < 0.5
    assert is_written_once_in_order(broker, stream)


async def test_what_is_given_up_holds_up_nothing(broker: InMemoryBroker) -> None:
    """An output is out of time while its second request waits for an answer that never comes: the connection is cut,
    and the next output is written at once, not when that request would have been given up."""
    producer = InMemoryProducer(broker, delivery_timeout=40.0, request_timeout=30.0)
    await producer.start(1.0)
    broker.faults.script(Request.PRODUCE, Fault(is_request_lost=True), Fault(is_request_lost=True))
    stream = Stream(producer)
    producer.send([Outgoing("t", b"lost", partition=0)], lambda result: stream.ended.update({-1: (0.0, result)}))
    await asyncio.sleep(40.1)
    assert isinstance(stream.ended.pop(-1)[1], ProduceFailed)
    stream.send()
    await stream.finish(1.0)
    assert not stream.failed()
    await producer.stop(1.0)
    assert is_written_once_in_order(broker, stream)


@pytest.mark.parametrize("request_kind", [Request.CONNECT, Request.METADATA, Request.IDENTIFY])
async def test_stopping_while_nothing_can_be_sent_yet(broker: InMemoryBroker, request_kind: Request) -> None:
    """Whatever is waited for, connection, metadata or a producer id: stop ends it, and leaves no task."""
    broker.faults.always(request_kind, Fault(is_request_lost=True))
    producer = InMemoryProducer(broker, request_timeout=30.0)
    stream = Stream(producer)
    await stream.flow(2.5)
    await producer.stop(0.3)
    assert len(stream.failed()) == len(stream.sent)
    assert asyncio.all_tasks() == {asyncio.current_task()}
