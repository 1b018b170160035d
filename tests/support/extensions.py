"""Extensions that note, select and refuse, and consumers for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from aioparallel import (
    CommitFault,
    Committed,
    ConsumerStateError,
    Extension,
    Health,
    Options,
    ParallelConsumer,
    PartitionState,
    Record,
    Reject,
    Skipped,
    Stats,
    TopicPartition,
    Transactions,
)
from aioparallel.config.extension import ConsumerContext
from aioparallel.delivery.producer import Producer
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Client
from aioparallel.testing.memory import (
    InMemoryBroker,
    InMemoryClient,
    InMemoryProducer,
    InMemoryTransactionalProducer,
)

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
GROUP = "g"


def broker_of(partitions: int = 1) -> InMemoryBroker:
    broker = InMemoryBroker()
    broker.create_topic("t", partitions)
    broker.create_topic("out", 1)
    return broker


def consumer_of(broker: InMemoryBroker, *extensions: Extension, **options: Any) -> ParallelConsumer[Any, Any]:
    transactional = isinstance(options.get("commits"), Transactions)
    if not transactional:
        options.setdefault("commit_interval", 0.05)
    return ParallelConsumer(
        "t",
        group_id=GROUP,
        client=InMemoryClient(broker, GROUP, isolation_level="read_committed" if transactional else "read_uncommitted"),
        producer=InMemoryTransactionalProducer(broker, GROUP) if transactional else InMemoryProducer(broker),
        extensions=extensions,
        **options,
    )


def committed(broker: InMemoryBroker, partition: TopicPartition = P0) -> int | None:
    found = broker.group(GROUP).offsets.get(partition)
    return None if found is None else found.offset


async def nothing(record: Record) -> None:
    """A handler."""


async def rejecting(record: Record) -> None:
    """A handler."""
    raise Reject("no")


def fails(error: BaseException) -> None:
    """What must not be called."""
    raise error


class Noting(Extension):
    """Notes each call of each hook, by its name."""

    def __init__(self, calls: list[str], name: str = "") -> None:
        self.calls, self.name = calls, name

    def _note(self, hook: str) -> None:
        self.calls.append(f"{self.name}{hook}")

    def attach(self, consumer: Any) -> None:
        self._note("attach")

    def topics(self) -> Mapping[str, str]:
        self._note("topics")
        return {}

    async def check(self, partitions: Collection[TopicPartition], timeout: float) -> None:
        self._note("check")

    def handlers(self, handlers: Any) -> Any:
        self._note("handlers")
        return handlers

    async def start(self) -> None:
        self._note("start")

    def assigned(self, assignment: Assignment) -> PartitionState:
        self._note("assigned")
        return NotingState(self)

    async def restore(
        self, positions: Mapping[TopicPartition, Committed | None], timeout: float
    ) -> Collection[TopicPartition]:
        self._note("restore")
        return positions.keys()

    def may_attempt(self, record: Record) -> None:
        assert record.value == b"1"
        self._note("may_attempt")

    def before_attempt(self, record: Record[Any, Any]) -> None:
        assert record.value == 1
        self._note("before_attempt")

    async def attempt(self, item: Any, call_next: Callable[[Any], Awaitable[object]]) -> object:
        self._note("attempt")
        result = await call_next(item)
        self._note("attempted")
        return result

    async def before_commit(
        self, positions: Mapping[TopicPartition, Committed], timeout: float
    ) -> Mapping[TopicPartition, CommitFault]:
        self._note("before_commit")
        return {}

    def released(self, partition: TopicPartition) -> None:
        self._note("released")

    async def finish(self) -> None:
        self._note("finish")

    async def stop(self) -> None:
        self._note("stop")

    async def close(self) -> None:
        self._note("close")


class NotingState(PartitionState):
    def __init__(self, of: Noting) -> None:
        self.of = of

    def select(self, records: Sequence[Record]) -> Sequence[Record]:
        self.of._note("select")
        return records

    def completed(self, offset: int) -> None:
        self.of._note("completed")

    def acknowledged(self) -> None:
        self.of._note("acknowledged")


class Only(PartitionState):
    """Selects some offsets, and notes what completes."""

    def __init__(self, *offsets: int) -> None:
        self.offsets, self.done, self.asked = offsets, list[int](), list[int]()

    def select(self, records: Sequence[Record]) -> Sequence[Record]:
        self.asked += [record.offset for record in records]
        return [record for record in records if record.offset in self.offsets]

    def completed(self, offset: int) -> None:
        self.done.append(offset)


class Refusing(Extension):
    """Refuses to commit some partitions while it is full."""

    def __init__(self, *partitions: TopicPartition) -> None:
        self.partitions, self.asked = partitions, list[set[TopicPartition]]()
        self.is_full = True

    async def before_commit(
        self, positions: Mapping[TopicPartition, Committed], timeout: float
    ) -> Mapping[TopicPartition, CommitFault]:
        assert timeout > 0
        self.asked.append(set(positions))
        return dict.fromkeys(positions.keys() & self.partitions, CommitFault.RETRIABLE) if self.is_full else {}


def context_of(options: Options, group_id: str, client: Client, producer: Producer | None) -> ConsumerContext:
    """The context of a consumer that never ends and has no partitions."""

    def fail(error: BaseException) -> None:
        raise AssertionError from error

    def no_stats() -> Stats:
        raise ConsumerStateError("it has not run")

    async def skip(partition: TopicPartition, offset: int, *more: int, dry_run: bool = False) -> Sequence[Skipped]:
        raise ConsumerStateError("it has not run")

    return ConsumerContext(
        group_id=group_id,
        servers="memory:9092",
        options=options,
        group_client=client,
        producer=producer,
        plain_producer=lambda: producer,
        fail=fail,
        is_running=lambda: True,
        partitions=tuple,
        stats=no_stats,
        health=lambda: Health(running=True, problems=()),
        skip=skip,
    )
