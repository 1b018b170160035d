"""Several nodes as a producer sees them: leaders, metadata that is old, nodes that do not answer. In virtual time."""

from __future__ import annotations

import asyncio

import pytest

from aioparallel.clients.producing.numbering import Identity
from aioparallel.clients.producing.partition_queue import PartitionQueue, RecordBatch
from aioparallel.clients.producing.pending import Outstanding, outputs_of
from aioparallel.clients.producing.produce_answers import Verdict
from aioparallel.records.errors import BrokerUnreachable, ConfigurationError, NotAuthorized
from aioparallel.records.record import Outgoing, TopicPartition
from aioparallel.testing.memory import ErrorCode, Fault, InMemoryBroker, Request
from aioparallel.testing.memory.broker_connections import InMemoryBrokers

TIMEOUT = 1.0
P = [TopicPartition("t", number) for number in range(4)]


@pytest.fixture
def broker() -> InMemoryBroker:
    """Three nodes; topic "t" has four partitions, led by nodes 1, 2, 3, 1."""
    broker = InMemoryBroker(nodes=3)
    broker.create_topic("t", 4)
    return broker


def now() -> float:
    """To the millisecond: a turn of the loop takes a microsecond."""
    return round(asyncio.get_running_loop().time(), 3)


async def brokers_of(broker: InMemoryBroker) -> InMemoryBrokers:
    """What a producer has when it has just asked node 1 for metadata; node 2 is asked next."""
    brokers = InMemoryBrokers(broker, lambda: None, TIMEOUT)
    await brokers.update(["t"])
    return brokers


def batch_of(*values: bytes, partition: int = 0, epoch: int = 0, sequence: int = 0) -> RecordBatch:
    outputs = [Outgoing("t", value) for value in values]
    entries = outputs_of(outputs, lambda result: None)
    for entry in entries:
        entry.timestamp, entry.deadline = 5, 100.0
    queue = PartitionQueue("t", partition, 1000, Outstanding())
    return RecordBatch(queue, entries, b"".join(values), Identity(7, epoch), sequence)


def leader_of(brokers: InMemoryBrokers, partition: int) -> int | None:
    return brokers.leader_of(PartitionQueue("t", partition, 1000, Outstanding()))


def values(broker: InMemoryBroker) -> list[bytes | None]:
    return [record.value for record in broker.records("t")]


# -- leaders


async def test_partitions_are_spread_over_the_nodes(broker: InMemoryBroker) -> None:
    """One after the other; those that are added go on in turn. With one node all are its own."""
    broker.add_partitions("t", 6)
    assert [broker.leader(TopicPartition("t", number)) for number in range(6)] == [1, 2, 3, 1, 2, 3]
    one = InMemoryBroker()
    one.create_topic("t", 2)
    assert [one.leader(partition) for partition in P[:2]] == [1, 1]


async def test_only_the_leader_takes_a_batch(broker: InMemoryBroker) -> None:
    """Any other node answers NOT_LEADER_OR_FOLLOWER for this partition, and writes what it does lead."""
    brokers = await brokers_of(broker)
    wrong, right = await brokers.produce(1, [batch_of(b"a", partition=1), batch_of(b"b", partition=3)])
    assert wrong.verdict is Verdict.AGAIN
    assert "NOT_LEADER" in wrong.reason
    assert right.verdict is Verdict.WRITTEN
    assert values(broker) == [b"b"]


async def test_what_is_known_of_producers_moves_with_the_leader(broker: InMemoryBroker) -> None:
    """The new leader recognises a batch that the old one wrote, and an epoch that is too old: it has the same log."""
    brokers = await brokers_of(broker)
    [first] = await brokers.produce(1, [batch_of(b"a", epoch=1)])
    broker.move_leader(P[0], 2)
    [again] = await brokers.produce(2, [batch_of(b"a", epoch=1)])
    [late] = await brokers.produce(2, [batch_of(b"b", epoch=0, sequence=1)])
    assert (again.verdict, again.offset) == (Verdict.WRITTEN, first.offset)
    assert late.verdict is Verdict.REJECTED
    assert values(broker) == [b"a"]


async def test_a_deleted_topic_takes_its_leaders_with_it(broker: InMemoryBroker) -> None:
    """A topic of the same name begins where every topic does."""
    broker.move_leader(P[0], 3)
    broker.delete_topic("t")
    broker.create_topic("t")
    assert broker.leader(P[0]) == 1


def test_nodes_that_are_not_there(broker: InMemoryBroker) -> None:
    """A wrong node, partition or number of nodes is a ConfigurationError that names it."""
    with pytest.raises(ConfigurationError, match="nodes"):
        InMemoryBroker(nodes=0)
    with pytest.raises(ConfigurationError, match="node=4"):
        broker.hang(4)
    with pytest.raises(ConfigurationError, match="node=0"):
        broker.move_leader(P[0], 0)
    with pytest.raises(ConfigurationError, match="partition"):
        broker.leader(TopicPartition("t", 9))


# -- metadata


async def test_metadata_is_as_old_as_its_last_answer(broker: InMemoryBroker) -> None:
    """A leader that moved, a partition that was added and a topic that was denied are known after doubt(), not
    before; the producer is told when they are."""
    told: list[float] = []
    brokers = InMemoryBrokers(broker, lambda: told.append(now()), TIMEOUT)
    await brokers.update(["t"])
    broker.faults.always(Request.METADATA, Fault(response_delay=0.5))
    broker.move_leader(P[0], 3)
    broker.add_partitions("t", 5)
    brokers.doubt()
    brokers.doubt()
    await asyncio.sleep(0.4)
    assert (leader_of(brokers, 0), leader_of(brokers, 4)) == (1, None)
    await asyncio.sleep(0.2)
    assert (leader_of(brokers, 0), leader_of(brokers, 4)) == (3, 2)
    assert told == [0.0, 0.5]
    broker.deny_topic("t")
    assert not brokers.refused_topics()
    await brokers.update(["t"])
    assert list(brokers.refused_topics()) == ["t"]
    assert leader_of(brokers, 0) is None
    assert brokers.partitions_of("t") == {}


async def test_a_hung_node_gives_no_metadata(broker: InMemoryBroker) -> None:
    """The one whose turn it is costs a request time-out; then the next one is asked."""
    brokers = await brokers_of(broker)
    broker.hang(2)
    broker.move_leader(P[1], 1)
    await brokers.update(["t"])
    assert now() == TIMEOUT
    assert leader_of(brokers, 1) == 1


async def test_who_asks_the_next_node_breaks_nothing(broker: InMemoryBroker) -> None:
    """With a long request time-out a node that gives no metadata costs a second, and its connection stays: what is on
    its way there is answered when it goes on."""
    brokers = InMemoryBrokers(broker, lambda: None, 30.0)
    await brokers.update(["t"])
    broker.hang(2)
    waiting = asyncio.create_task(brokers.produce(2, [batch_of(b"a", partition=1)]))
    await brokers.update(["t"])
    assert now() == 1.0
    await asyncio.sleep(20.0)
    broker.unhang(2)
    assert [answer.verdict for answer in await waiting] == [Verdict.WRITTEN]


async def test_no_node_gives_metadata(broker: InMemoryBroker) -> None:
    """Each is asked once, then it is a ConnectionError, and a doubt that ends in silence; what was known stays."""
    brokers = await brokers_of(broker)
    for node in (1, 2, 3):
        broker.hang(node)
    with pytest.raises(ConnectionError):
        await brokers.update(["t"])
    assert now() == 3 * TIMEOUT
    brokers.doubt()
    await asyncio.sleep(10.0)
    assert leader_of(brokers, 0) == 1


async def test_metadata_requests_meet_faults(broker: InMemoryBroker) -> None:
    """A refused one is asked of the next node."""
    brokers = await brokers_of(broker)
    broker.move_leader(P[0], 2)
    broker.faults.script(Request.METADATA, *[Fault(error=ErrorCode.REQUEST_TIMED_OUT)] * 3)
    with pytest.raises(ConnectionError):
        await brokers.update(["t"])
    assert leader_of(brokers, 0) == 1
    broker.faults.script(Request.METADATA, Fault(error=ErrorCode.REQUEST_TIMED_OUT))
    await brokers.update(["t"])
    assert leader_of(brokers, 0) == 2


async def test_a_stopped_node_leads_nothing(broker: InMemoryBroker) -> None:
    """Its partitions have no leader until it starts, or another one leads them; requests to it fail at once."""
    brokers = await brokers_of(broker)
    broker.stop_node(1)
    [answer] = await brokers.produce(1, [batch_of(b"a")])
    assert answer.verdict is Verdict.AGAIN
    await brokers.update(["t"])
    assert [leader_of(brokers, number) for number in range(4)] == [None, 2, 3, None]
    assert brokers.partitions_of("t") == {0: False, 1: True, 2: True, 3: False}
    broker.move_leader(P[0], 2)
    broker.start_node(1)
    await brokers.update(["t"])
    assert [leader_of(brokers, number) for number in range(4)] == [2, 2, 3, 1]
    assert now() == 0.0


# -- what arrives late


async def test_a_hung_node_refuses_what_it_no_longer_leads(broker: InMemoryBroker) -> None:
    """What waited there is carried out when it goes on: written where it still leads, else NOT_LEADER."""
    brokers = await brokers_of(broker)
    await brokers.produce(1, [batch_of(b"before")])
    broker.hang(1)
    answers = await brokers.produce(1, [batch_of(b"moved", sequence=1), batch_of(b"stayed", partition=3)])
    assert {answer.verdict for answer in answers} == {Verdict.AGAIN}
    broker.move_leader(P[0], 2)
    assert values(broker) == [b"before"]
    broker.unhang(1)
    assert values(broker) == [b"before", b"stayed"]


async def test_a_late_batch_of_an_older_epoch_is_refused(broker: InMemoryBroker) -> None:
    """What was cut off at a hung node does not land after what a newer epoch wrote; without a newer one it does."""
    brokers = await brokers_of(broker)
    await brokers.produce(1, [batch_of(b"0"), batch_of(b"a", partition=3)])
    broker.hang(1)
    await brokers.produce(1, [batch_of(b"1", sequence=1), batch_of(b"b", partition=3, sequence=1)])
    broker.move_leader(P[0], 2)
    await brokers.produce(2, [batch_of(b"2", epoch=1)])
    broker.move_leader(P[0], 1)
    broker.unhang(1)
    assert values(broker) == [b"0", b"2", b"a", b"b"]


async def test_what_arrives_is_what_was_sent(broker: InMemoryBroker) -> None:
    """A batch that the producer takes apart while it is on its way arrives whole, as its bytes do."""
    brokers = await brokers_of(broker)
    batch = batch_of(b"a", b"b")
    broker.faults.script(Request.PRODUCE, Fault(request_delay=5.0))
    await brokers.produce(1, [batch])
    del batch.entries[0]
    await asyncio.sleep(10.0)
    assert values(broker) == [b"a", b"b"]


# -- a producer id, and the first connection


async def test_a_producer_id_comes_from_a_node_that_answers(broker: InMemoryBroker) -> None:
    """Each is asked once, in turn: a hung one costs a time-out, one that is stopped or refuses nothing."""
    brokers = await brokers_of(broker)
    broker.hang(2)
    broker.stop_node(3)
    first = await brokers.identify()
    assert now() == TIMEOUT
    broker.hang(1)
    with pytest.raises(ConnectionError, match="does not answer"):
        await brokers.identify()
    broker.unhang(1)
    broker.unhang(2)
    broker.start_node(3)
    broker.faults.script(Request.IDENTIFY, Fault(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    assert (await brokers.identify()).producer_id > first.producer_id


@pytest.mark.parametrize(
    "fault",
    [
        Fault(is_request_lost=True),
        Fault(is_response_lost=True),
        Fault(response_delay=5.0),
        Fault(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        Fault(error=ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_requests_for_a_producer_id_meet_faults(broker: InMemoryBroker, fault: Fault) -> None:
    """With all nodes it is a ConnectionError, which passes; a refused permission does not."""
    brokers = await brokers_of(broker)
    broker.faults.always(Request.IDENTIFY, fault)
    with pytest.raises(ConnectionError):
        await brokers.identify()
    broker.faults.heal()
    broker.is_idempotence_refused = True
    with pytest.raises(NotAuthorized):
        await brokers.identify()


async def test_connecting_finds_a_node_that_answers(broker: InMemoryBroker) -> None:
    """One is enough; with none it is BrokerUnreachable after the time that it was given."""
    brokers = InMemoryBrokers(broker, lambda: None, TIMEOUT)
    broker.hang(1)
    broker.stop_node(2)
    await brokers.connect(5.0)
    assert brokers.is_connected
    assert 1.0 <= now() < 1.5
    broker.hang(3)
    with pytest.raises(BrokerUnreachable):
        await InMemoryBrokers(broker, lambda: None, TIMEOUT).connect(5.0)
    with pytest.raises(TimeoutError):
        await brokers.partitions(["t"], 5.0)


async def test_closing_ends_what_is_asked(broker: InMemoryBroker) -> None:
    """An update under way ends, and whoever waits for an answer is told."""
    brokers = await brokers_of(broker)
    broker.hang(1)
    broker.hang(2)
    brokers.doubt()
    waiting = asyncio.create_task(brokers.produce(1, [batch_of(b"a")]))
    await asyncio.sleep(0.1)
    await brokers.close(1.0)
    assert [answer.verdict for answer in await waiting] == [Verdict.AGAIN]
    assert now() == 0.1
    assert len(asyncio.all_tasks()) == 1
