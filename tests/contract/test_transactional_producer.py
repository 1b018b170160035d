"""What coordinators answer to a transactional producer: the same on Apache Kafka and the in-memory broker.

The machine of :mod:`aioparallel.persistence.transactions.machine` relies on these answers, and the simulated histories
are valid only if they are correct."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import pytest
import pytest_asyncio

from aioparallel.delivery.producer import PendingOutput
from aioparallel.group.client import Committed, Generation
from aioparallel.persistence.transactions import NO_ANSWER, Epoch, Epochs, StableOffsets, TransactionalProducer
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Outgoing, Produced, TopicPartition
from tests.support.clusters.cluster import Cluster
from tests.support.clusters.member import Member, values

pytestmark = pytest.mark.needs("exactly once", "producers")

ONE: Final = 5.0
"""Seconds for one request."""
TIMEOUT: Final = 60.0
PASSING: Final = (
    NO_ANSWER,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
NOBODY: Final = Generation(-1, "")
"""As tools commit, which is accepted while a group has no members."""


class Output(PendingOutput):
    """An output whose result is awaited."""

    __slots__ = ("ended",)

    def __init__(self, output: Outgoing) -> None:
        super().__init__(output)
        self.ended: asyncio.Future[Produced | ProduceFailed] = asyncio.get_running_loop().create_future()

    def placed(self, place: Produced) -> None:
        self.ended.set_result(place)

    def failed(self, failure: ProduceFailed) -> None:
        self.ended.set_result(failure)


class Transactor:
    """A transactional producer for these tests. It retries transient errors."""

    def __init__(self, producer: TransactionalProducer, topic: str) -> None:
        self.producer = producer
        self.topic = topic
        self.broken: list[int] = []
        producer.on_broken = self.broken.append

    async def write(self, epoch: Epoch, value: bytes = b"v") -> Produced | ProduceFailed:
        """Send outputs within the transaction of this epoch."""
        self.producer.begin(epoch)
        output = Output(Outgoing(self.topic, value, b"k"))
        self.producer.send_all([output])
        async with asyncio.timeout(30):
            return await output.ended

    async def initialize(self, known: Epoch | None = None, timeout: float = TIMEOUT) -> Epochs:
        """InitProducerId."""
        return await self._settled(lambda: self.producer.initialize(known, timeout, ONE))

    async def begun(self) -> Epoch:
        """A first epoch."""
        epoch = (await self.initialize()).epoch
        assert epoch is not None
        return epoch

    async def end(self, epoch: Epoch, *, commit: bool) -> Epochs:
        """EndTxn."""
        return await self._settled(lambda: self.producer.end(epoch, ONE, commit=commit))

    async def offsets(self, epoch: Epoch, offset: int, generation: Generation = NOBODY, text: str = "") -> int:
        """TxnOffsetCommit of partition 0; its code."""
        place = TopicPartition(self.topic, 0)
        async with asyncio.timeout(30):
            while True:
                found = await self.producer.commit_offsets(epoch, {place: Committed(offset, text)}, generation, ONE)
                if found[place] not in PASSING:
                    return found[place]
                await asyncio.sleep(0.02)

    async def stable(self) -> Committed | int | None:
        """OffsetFetch of partition 0."""
        place = TopicPartition(self.topic, 0)
        async with asyncio.timeout(30):
            while True:
                found: StableOffsets = await self.producer.stable_offsets([place], ONE)
                if found.code not in PASSING:
                    assert found.code == ErrorCode.NONE
                    return found.found[place]
                await asyncio.sleep(0.02)

    @staticmethod
    async def _settled(ask: Callable[[], Awaitable[Epochs]]) -> Epochs:
        async with asyncio.timeout(60):
            while (answer := await ask()).code in PASSING:
                await asyncio.sleep(0.02)
        return answer


@pytest_asyncio.fixture
async def transactor(cluster: Cluster, topic: str, group_id: str) -> AsyncIterator[Transactor]:
    """A producer, with a topic of one partition."""
    await cluster.create_topic(topic)
    producer = cluster.transactional_producer(group_id)
    producer.identify_as(f"id-{topic}")
    await producer.start(30.0)
    yield Transactor(producer, topic)


def after(epoch: Epoch, steps: int = 1) -> Epoch:
    """The epoch this number of epochs later."""
    return Epoch(epoch.producer_id, epoch.number + steps)


async def seen(cluster: Cluster, topic: str, group_id: str, position: int) -> list[bytes | None]:
    """The records that a read_committed reader gets up to this position."""
    member = Member(cluster.client(f"{group_id}-reader", isolation_level="read_committed"), cluster.timing.deadline)
    await member.join([topic])
    member.seek_all()
    await member.reach(TopicPartition(topic, 0), position)
    return values(member.records[TopicPartition(topic, 0)])


async def test_outputs_and_offsets_are_there_together(
    cluster: Cluster, transactor: Transactor, topic: str, group_id: str
) -> None:
    """Each end returns the next epoch. Until then the offset is not stable; after an abort it is unchanged."""
    first = await transactor.begun()
    assert isinstance(await transactor.write(first, b"1"), Produced)
    assert await transactor.offsets(first, 1, text="a map") == ErrorCode.NONE
    assert await transactor.stable() == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert await transactor.end(first, commit=True) == Epochs(ErrorCode.NONE, after(first))
    second = after(first)
    assert isinstance(await transactor.write(second, b"2"), Produced)
    assert await transactor.offsets(second, 2) == ErrorCode.NONE
    assert await transactor.end(second, commit=False) == Epochs(ErrorCode.NONE, after(second))
    assert await transactor.offsets(after(second), 3) == ErrorCode.NONE
    assert (await transactor.end(after(second), commit=False)).code == ErrorCode.NONE
    async with asyncio.timeout(10):
        while (found := await transactor.stable()) == ErrorCode.UNSTABLE_OFFSET_COMMIT:
            await asyncio.sleep(0.01)
    assert found == Committed(1, "a map")
    assert await seen(cluster, topic, group_id, 4) == [b"1"]


@pytest.mark.parametrize("commit", [True, False])
async def test_an_end_that_is_repeated_is_answered_the_same(transactor: Transactor, commit: bool) -> None:
    """With the same epoch; the opposite decision is refused. When the next transaction has begun, late requests are
    fenced."""
    first = await transactor.begun()
    await transactor.write(first)
    for _ in range(3):
        assert await transactor.end(first, commit=commit) == Epochs(ErrorCode.NONE, after(first))
    assert (await transactor.end(first, commit=not commit)).code == ErrorCode.INVALID_TXN_STATE
    await transactor.write(after(first))
    assert (await transactor.end(first, commit=commit)).code == ErrorCode.PRODUCER_FENCED
    assert await transactor.end(after(first), commit=True) == Epochs(ErrorCode.NONE, after(first, 2))


async def test_one_in_which_nothing_was_done(transactor: Transactor) -> None:
    """It cannot be committed; an abort returns an epoch. Refused offsets have begun a transaction."""
    first = await transactor.begun()
    assert (await transactor.end(first, commit=True)).code == ErrorCode.INVALID_TXN_STATE
    assert await transactor.end(first, commit=False) == Epochs(ErrorCode.NONE, after(first))
    second = after(first)
    # Kafka says the first where the group has no state at all.
    refusals = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
    assert await transactor.offsets(second, 1, Generation(5, "nobody")) in refusals
    assert await transactor.end(second, commit=True) == Epochs(ErrorCode.NONE, after(second))
    assert await transactor.stable() is None


async def test_an_id_that_is_initialised_anew(transactor: Transactor) -> None:
    """By another producer: requests of the first one are refused, and its open transaction is aborted."""
    first = await transactor.begun()
    await transactor.write(first)
    other = (await transactor.initialize()).epoch
    assert other is not None
    assert other.number > first.number
    assert isinstance(await transactor.write(first), ProduceFailed)
    assert transactor.broken == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert await transactor.offsets(first, 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert (await transactor.end(first, commit=True)).code == ErrorCode.PRODUCER_FENCED
    assert isinstance(await transactor.write(other), Produced)
    assert (await transactor.end(other, commit=True)).code == ErrorCode.NONE


async def test_an_id_that_is_initialised_by_its_owner(transactor: Transactor) -> None:
    """With its own epoch it gets the next one, and its open transaction is aborted. A repetition with the earlier
    epoch, as after a lost answer, returns the same."""
    first = await transactor.begun()
    await transactor.write(first)
    second = await transactor.initialize(first)
    assert second == Epochs(ErrorCode.NONE, after(first))
    for _ in range(2):
        assert await transactor.initialize(first) == second
    assert isinstance(await transactor.write(after(first)), Produced)
    assert (await transactor.end(after(first), commit=True)).code == ErrorCode.NONE


async def test_one_that_the_brokers_have_ended(transactor: Transactor) -> None:
    """It has timed out: it cannot be committed, and an abort is answered with the next epoch."""
    epoch = (await transactor.initialize(timeout=1.0)).epoch
    assert epoch is not None
    await transactor.write(epoch)
    assert await transactor.offsets(epoch, 1) == ErrorCode.NONE
    async with asyncio.timeout(30):
        while await transactor.stable() == ErrorCode.UNSTABLE_OFFSET_COMMIT:
            await asyncio.sleep(0.1)
    assert await transactor.stable() is None
    assert await transactor.offsets(epoch, 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert (await transactor.end(epoch, commit=True)).code == ErrorCode.INVALID_TXN_STATE
    assert await transactor.end(epoch, commit=False) == Epochs(ErrorCode.NONE, after(epoch))
    assert isinstance(await transactor.write(after(epoch)), Produced)
    assert (await transactor.end(after(epoch), commit=True)).code == ErrorCode.NONE


async def test_a_time_out_that_brokers_do_not_take(transactor: Transactor) -> None:
    """It is refused at once, with a code of its own."""
    assert (await transactor.initialize(timeout=86_400.0)).code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


async def test_metadata_that_is_too_long(transactor: Transactor) -> None:
    """4096 characters are accepted, 4097 are not."""
    epoch = await transactor.begun()
    assert await transactor.offsets(epoch, 1, text="\u0800" * 4096) == ErrorCode.NONE
    assert await transactor.offsets(epoch, 2, text="x" * 4097) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert (await transactor.end(epoch, commit=True)).code == ErrorCode.NONE
