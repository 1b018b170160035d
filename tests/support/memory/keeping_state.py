"""Topics of a state beside those that are read, and consumers that keep one, in memory."""

from __future__ import annotations

from collections import Counter
from typing import Any

from aioparallel import Record, State, Transactions
from aioparallel.consumer import ParallelConsumer
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient, InMemoryProducer, InMemoryTransactionalProducer

GROUP = "g"


def broker_of(partitions: int = 1) -> InMemoryBroker:
    """With topics "in", "out" and "dead", and the two of a state."""
    broker = InMemoryBroker()
    broker.create_topic("in", partitions)
    broker.create_topic("out", 1)
    broker.create_topic("dead", 1)
    for topic in (f"{GROUP}-state", f"{GROUP}-snapshots"):
        broker.create_topic(topic, partitions)
        broker.make_compacted(topic)
    return broker


def add(total: int, record: Record[Any, Any]) -> int:
    """The sum of the values of a key."""
    return total + int(record.value)


def sums(**given: Any) -> State[int]:
    """The sum of the values of each key."""
    fields: dict[str, Any] = {
        "initial": 0,
        "apply": add,
        "dump": lambda total: b"%d" % total,
        "load": int,
        "snapshot_after": 50,
        **given,
    }
    return State(**fields)


def keeping(
    broker: InMemoryBroker, state: State[Any], *, cooperative: bool = False, together: bool = False, **options: Any
) -> ParallelConsumer[Any, Any]:
    """A consumer of topic "in". ``together``: with transactions."""
    client = InMemoryClient(
        broker,
        GROUP,
        isolation_level="read_committed",
        cooperative=cooperative,
        session_timeout=2,
        heartbeat_interval=0.02,
    )
    given: dict[str, Any] = {"drain_timeout": 1, **options}
    if together:
        given |= {"producer": InMemoryTransactionalProducer(broker, GROUP), "commits": Transactions(interval=0.02)}
    else:
        given |= {"producer": InMemoryProducer(broker), "commit_interval": 0.02}
    return ParallelConsumer("in", group_id=GROUP, client=client, state=state, **given)


def write(broker: InMemoryBroker, *numbers: int, keys: int = 10, partition: int = 0) -> None:
    """A record for each of these, which is its value; the key follows from it."""
    for number in numbers:
        broker.append("in", b"%d" % number, key=b"k%d" % (number % keys), partition=partition)


def totals(*numbers: int, keys: int = 10) -> dict[bytes, int]:
    """The state after these."""
    found: Counter[bytes] = Counter()
    for number in numbers:
        found[b"k%d" % (number % keys)] += number
    return dict(found)


P0 = TopicPartition("in", 0)
