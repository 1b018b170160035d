"""A producer's connection to a node: order, what breaks it, and what still arrives then. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from aioparallel.testing.memory import ErrorCode, Fault, InMemoryBroker, Request
from aioparallel.testing.memory.connection import Connection
from aioparallel.testing.memory.refused import Refused

PRODUCE = Request.PRODUCE


class Sender:
    """One connection to node 1, and what the node has carried out, when."""

    def __init__(self, broker: InMemoryBroker) -> None:
        self.connection = Connection(broker, 1)
        self.arrived: list[tuple[str, float]] = []

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.arrived]

    @property
    def times(self) -> list[float]:
        return [at for _, at in self.arrived]

    def send(self, name: str, timeout: float = 100.0) -> asyncio.Task[str]:
        return asyncio.create_task(self.connection.call(PRODUCE, self._note(name), timeout))

    def _note(self, name: str) -> Callable[[float], str]:
        def carry_out(now: float) -> str:
            self.arrived.append((name, round(now, 3)))
            return name

        return carry_out


async def broken(task: asyncio.Task[str]) -> bool:
    with pytest.raises(Refused) as raised:
        await task
    return raised.value.code is ErrorCode.NETWORK_EXCEPTION


def now() -> float:
    """To the millisecond: a turn of the loop takes a microsecond."""
    return round(asyncio.get_running_loop().time(), 3)


async def test_requests_arrive_in_order(broker: InMemoryBroker) -> None:
    """A request that takes 3 seconds holds up what is sent after it on the same connection."""
    broker.faults.script(PRODUCE, Fault(request_delay=3.0))
    sender = Sender(broker)
    await asyncio.gather(*(sender.send(name) for name in "abc"))
    assert sender.arrived == [("a", 3.0), ("b", 3.0), ("c", 3.0)]


async def test_answers_come_in_order(broker: InMemoryBroker) -> None:
    """The second request is carried out at once, and its answer comes after the first one's, as with Kafka."""
    broker.faults.script(PRODUCE, Fault(response_delay=3.0))
    sender = Sender(broker)
    first, second = sender.send("a"), sender.send("b")
    assert await second == "b"
    assert first.done()
    assert now() == 3.0
    assert sender.arrived == [("a", 0.0), ("b", 0.0)]


async def test_lost_ones_hold_up_nothing(broker: InMemoryBroker) -> None:
    """A lost request is not carried out, one whose answer is lost is; what is sent after them is answered at once."""
    broker.faults.script(PRODUCE, Fault(is_request_lost=True), Fault(is_response_lost=True))
    sender = Sender(broker)
    silent = [sender.send("a"), sender.send("b")]
    assert await sender.send("c") == "c"
    assert now() == 0.0
    assert sender.names == ["b", "c"]
    sender.connection.close()
    assert [await broken(task) for task in silent] == [True, True]


async def test_an_error_may_come_after_the_deed(broker: InMemoryBroker) -> None:
    """A request is refused and nothing was done, or it was: the answer is the same."""
    timed_out = ErrorCode.REQUEST_TIMED_OUT
    broker.faults.script(PRODUCE, Fault(error=timed_out), Fault(error=timed_out, is_carried_out=True))
    sender = Sender(broker)
    for name in "ab":
        with pytest.raises(Refused) as raised:
            await sender.send(name)
        assert raised.value.code is timed_out
    assert sender.names == ["b"]


async def test_silence_breaks_the_connection(broker: InMemoryBroker) -> None:
    """After a time-out whoever else waits on that connection is told at once; all that was sent arrives later."""
    broker.faults.script(PRODUCE, Fault(request_delay=5.0))
    sender = Sender(broker)
    impatient, patient = sender.send("a", timeout=1.0), sender.send("b")
    assert await broken(patient)
    assert now() == 1.0
    with pytest.raises(TimeoutError):
        await impatient
    assert not sender.connection.is_open
    assert await broken(sender.send("c"))
    await asyncio.sleep(10.0)
    assert sender.names == ["a", "b"]
    assert sender.times == pytest.approx([5.0, 5.0])


async def test_what_was_sent_before_a_cut_arrives(broker: InMemoryBroker) -> None:
    """The bytes were on their way: the node carries them out, and its answer goes nowhere."""
    broker.faults.always(PRODUCE, Fault(request_delay=5.0))
    sender = Sender(broker)
    waiting = sender.send("a")
    await asyncio.sleep(1.0)
    sender.connection.close()
    assert await broken(waiting)
    await asyncio.sleep(10.0)
    assert sender.times == pytest.approx([5.0])


async def test_a_hung_node_goes_on_with_what_arrived(broker: InMemoryBroker) -> None:
    """Nothing is answered meanwhile; then all of it is carried out in order, also what nobody waits for any more."""
    sender = Sender(broker)
    broker.hang(1)
    cut = sender.send("a"), sender.send("b")
    await asyncio.sleep(30.0)
    assert not sender.arrived
    sender.connection.close()
    assert [await broken(task) for task in cut] == [True, True]
    broker.unhang(1)
    assert sender.arrived == [("a", 30.0), ("b", 30.0)]


async def test_a_connection_survives_a_node_that_hangs(broker: InMemoryBroker) -> None:
    """Who waits long enough has its answer when the node goes on."""
    sender = Sender(broker)
    broker.hang(1)
    waiting = sender.send("a")
    await asyncio.sleep(30.0)
    broker.unhang(1)
    assert await waiting == "a"
    assert await sender.send("b") == "b"


async def test_a_connection_to_a_hung_node_sends_nothing_yet(broker: InMemoryBroker) -> None:
    """A client begins with a question about versions: what waits for that answer goes with the connection, or is
    carried out if the connection is still there when the node goes on; from then on it is one like others."""
    broker.hang(1)
    gone, kept = Sender(broker), Sender(broker)
    lost, waiting = gone.send("a"), kept.send("b")
    await asyncio.sleep(1.0)
    gone.connection.close()
    assert await broken(lost)
    broker.unhang(1)
    assert await waiting == "b"
    broker.hang(1)
    late = kept.send("c")
    await asyncio.sleep(1.0)
    kept.connection.close()
    assert await broken(late)
    broker.unhang(1)
    assert (gone.arrived, kept.names) == ([], ["b", "c"])


@pytest.mark.parametrize("is_hung", [False, True])
async def test_a_node_that_stops_loses_what_it_has_not_carried_out(broker: InMemoryBroker, is_hung: bool) -> None:
    """Its connections break at once, and nothing that was sent before is carried out, even after it has started again
    and over a connection that was cut before."""
    cut, open_ = Sender(broker), Sender(broker)
    if is_hung:
        broker.hang(1)
    else:
        broker.faults.always(PRODUCE, Fault(request_delay=5.0))
    first, second = cut.send("a"), open_.send("b")
    await asyncio.sleep(1.0)
    cut.connection.close()
    broker.stop_node(1)
    assert await broken(first)
    assert await broken(second)
    assert now() == 1.0
    refused = Sender(broker)
    assert await broken(refused.send("c"))
    broker.start_node(1)
    broker.faults.heal()
    assert await Sender(broker).send("d") == "d"
    await asyncio.sleep(10.0)
    assert not [*cut.arrived, *open_.arrived, *refused.arrived]


async def test_a_node_that_is_stopped_does_not_hang(broker: InMemoryBroker) -> None:
    """Hanging a stopped node changes nothing: when it starts, it answers."""
    broker.stop_node(1)
    broker.hang(1)
    broker.start_node(1)
    assert await Sender(broker).send("a") == "a"


async def test_nothing_reaches_a_broker_that_is_down(broker: InMemoryBroker) -> None:
    """All nodes are away then: requests that arrive meanwhile are not carried out, later ones fail at once."""
    broker.faults.script(PRODUCE, Fault(request_delay=1.0))
    sender = Sender(broker)
    waiting = sender.send("a")
    await asyncio.sleep(0.5)
    broker.go_down()
    assert await broken(waiting)
    assert await broken(sender.send("b"))
    assert now() == 1.0
    broker.come_back()
    assert await sender.send("c") == "c"
    assert sender.names == ["c"]
