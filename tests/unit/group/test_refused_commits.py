"""Commits that an extension refuses, delays or breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from aioparallel import (
    CommitFault,
    Committed,
    Extension,
    NotCommitted,
    Outgoing,
    ParallelConsumer,
    ProblemKind,
    Producing,
    Record,
    TopicPartition,
    Transactions,
)
from aioparallel.group.client import Generation
from aioparallel.testing.memory import InMemoryClient
from tests.support.extensions import (
    GROUP,
    P0,
    P1,
    Noting,
    Refusing,
    broker_of,
    committed,
    consumer_of,
    nothing,
)
from tests.support.inside import client_of, run_of
from tests.support.waiting import until


@pytest.mark.parametrize("commits", [None, Transactions(interval=0.05)], ids=["group", "transactions"])
async def test_what_one_refuses_is_neither_saved_by_others_nor_committed(commits: Transactions | None) -> None:
    """Records go on meanwhile. Nothing of a partition that is refused leaves in a transaction, and all of it later."""
    broker = broker_of(2)
    for partition in (0, 1):
        for n in range(20):
            broker.append("t", b"%d" % n, partition=partition)
    refusing, other = Refusing(P0), Refusing()

    async def handle(record: Record) -> Outgoing:
        return Outgoing("out", b"%d-%s" % (record.partition, record.value))

    given = {} if commits is None else {"commits": commits}
    consumer = consumer_of(broker, refusing, other, **given)
    async with consumer:
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: committed(broker, P1) == 20)
        await asyncio.sleep(1)
        assert consumer.stats().succeeded == 40
        assert committed(broker, P0) is None
        assert {P0} not in other.asked
        if commits is not None:
            assert {one.value[:1] for one in broker.records("out") if one.value} == {b"1"}
        refusing.is_full = False
        await until(lambda: committed(broker, P0) == 20)
        consumer.stop()
        await running
    assert sorted(one.value or b"" for one in broker.records("out")) == sorted(
        b"%d-%d" % (partition, n) for partition in (0, 1) for n in range(20)
    )


async def test_a_commit_that_is_refused_at_the_end_is_not_done() -> None:
    broker, refusing = broker_of(), Refusing(P0)
    broker.append("t", b"1", partition=0)
    consumer = consumer_of(broker, refusing, commit_timeout=0.5)
    async with consumer:
        running = asyncio.create_task(consumer.run(nothing))
        await until(lambda: bool(refusing.asked))
        consumer.stop()
        await running
    assert committed(broker) is None


class Hanging(Extension):
    """Never answers."""

    async def before_commit(
        self, positions: Mapping[TopicPartition, Committed], timeout: float
    ) -> Mapping[TopicPartition, CommitFault]:
        await asyncio.Event().wait()
        return {}


@pytest.mark.parametrize("commits", [None, Transactions(interval=0.05)], ids=["group", "transactions"])
@pytest.mark.parametrize("one", [Refusing, Hanging])
async def test_health_and_errors_tell_which_extension_lets_nothing_be_committed(
    commits: Transactions | None, one: type[Extension]
) -> None:
    broker = broker_of()
    broker.append("t", b"1", partition=0)
    extension = Refusing(P0) if one is Refusing else one()
    consumer = consumer_of(broker, extension, **({} if commits is None else {"commits": commits}))
    async with consumer:
        running = asyncio.create_task(consumer.run(nothing))
        await asyncio.sleep(60)
        (problem,) = consumer.health().problems
        assert (problem.kind, problem.message.split(" refuses")[0]) == (ProblemKind.EXTENSION, f"t-0: {one.__name__}")
        with pytest.raises(NotCommitted, match=f"{one.__name__} refuses its commit"):
            await consumer.commit_now()
        consumer.stop()
        await running
    assert not consumer.health().problems


async def test_outputs_that_an_extension_holds_take_no_room_from_other_partitions() -> None:
    broker = broker_of(2)
    for partition in (0, 1):
        for n in range(300):
            broker.append("t", b"x", key=b"%d" % n, partition=partition)

    async def handle(record: Record) -> Outgoing:
        return Outgoing("out", b"y" * 10_000)

    refusing = Refusing(P0)
    few = Producing(max_unacknowledged_bytes=100_000)
    async with consumer_of(broker, refusing, commits=Transactions(interval=0.05), producing=few) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        async with asyncio.timeout(60):
            await until(lambda: committed(broker, P1) == 300)
        assert consumer.stats().succeeded < 400  # what waits is bounded
        refusing.is_full = False
        async with asyncio.timeout(60):
            await until(lambda: committed(broker, P0) == 300)
        consumer.stop()
        await running
    assert len([one for one in broker.records("out") if one.value]) == 600


@pytest.mark.parametrize(
    ("fault", "seconds"), [(CommitFault.RETRIABLE, 6), (CommitFault.REFUSED, 0.5), (CommitFault.FENCED, 0.5)]
)
async def test_a_transaction_that_is_refused_at_the_end_is_tried_with_pauses(
    fault: CommitFault, seconds: float
) -> None:
    asked: list[float] = []
    loop = asyncio.get_running_loop()

    class Never(Extension):
        async def before_commit(
            self, positions: Mapping[TopicPartition, Committed], timeout: float
        ) -> Mapping[TopicPartition, CommitFault]:
            asked.append(loop.time())
            return dict.fromkeys(positions, fault)

    broker = broker_of()
    broker.append("t", b"1", partition=0)
    began = loop.time()
    with pytest.raises(NotCommitted):
        async with consumer_of(broker, Never(), commits=Transactions(interval=0.05), until="end") as consumer:
            await consumer.run(nothing)
    assert loop.time() - began < seconds
    assert len(asked) <= 60


async def test_a_partition_that_goes_while_extensions_save_aborts_no_transaction() -> None:
    broker, saving = broker_of(2), asyncio.Event()
    for partition in (0, 1):
        broker.append("t", b"1", partition=partition)

    class Slow(Extension):
        async def before_commit(
            self, positions: Mapping[TopicPartition, Committed], timeout: float
        ) -> Mapping[TopicPartition, CommitFault]:
            saving.set()
            await asyncio.sleep(1)
            return {}

    async with consumer_of(broker, Slow(), commits=Transactions(interval=0.05)) as consumer:
        running = asyncio.create_task(consumer.run(nothing))
        await saving.wait()
        run_of(consumer).lost([P0])
        await until(lambda: committed(broker, P1) == 1)
        transactions = consumer.stats().transactions
        assert transactions is not None
        assert transactions.aborted == 0
        consumer.stop()
        await running


async def test_what_one_says_of_partitions_that_it_was_not_asked_for_counts_for_nothing() -> None:
    class Telling(Extension):
        count = 0

        async def before_commit(
            self, positions: Mapping[TopicPartition, Committed], timeout: float
        ) -> Mapping[TopicPartition, CommitFault]:
            self.count += 1
            return dict.fromkeys([P0, P1, TopicPartition("other", 7)], CommitFault.RETRIABLE) if self.count < 3 else {}

    broker, telling = broker_of(), Telling()
    broker.append("t", b"1", partition=0)
    async with consumer_of(broker, telling) as consumer:
        running = asyncio.create_task(consumer.run(nothing))
        await until(lambda: committed(broker) == 1)
        assert not consumer.health().problems
        consumer.stop()
        await running


class Forgetful(InMemoryClient):
    """Its first answers to commits leave out a partition."""

    left = 3

    async def commit(
        self, offsets: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        """See :class:`InMemoryClient`. What is left out was not committed either."""
        if not self.left:
            return await super().commit(offsets, generation, timeout)
        self.left -= 1
        answered = {partition: one for partition, one in offsets.items() if partition != P0}
        return await super().commit(answered, generation, timeout)


async def test_a_partition_that_an_answer_leaves_out_is_not_committed() -> None:
    """It is tried again, although nothing more ends."""
    broker = broker_of(2)
    for partition in (0, 1):
        broker.append("t", b"1", partition=partition)
    client = Forgetful(broker, GROUP)
    consumer = ParallelConsumer("t", group_id=GROUP, client=client, commit_interval=0.05)
    async with consumer:
        running = asyncio.create_task(consumer.run(nothing))
        await until(lambda: not client.left)
        await until(lambda: (committed(broker, P0), committed(broker, P1)) == (1, 1))
        assert consumer.stats().failed_commits == 3
        consumer.stop()
        await running


async def test_a_fault_that_is_none_commits() -> None:
    """As in what an OffsetStore returns. It was taken for a commit that the broker had acknowledged."""

    class Telling(Extension):
        async def before_commit(
            self, positions: Mapping[TopicPartition, Committed], timeout: float
        ) -> Mapping[TopicPartition, CommitFault]:
            return dict.fromkeys(positions)  # type: ignore[return-value]

    broker = broker_of()
    broker.append("t", b"1", partition=0)
    async with consumer_of(broker, Telling(), until="end") as consumer:
        await consumer.run(nothing)
    assert committed(broker) == 1


@pytest.mark.parametrize("commits", [None, Transactions(interval=0.05)], ids=["group", "transactions"])
async def test_a_commit_that_is_answered_after_its_partition_went_is_not_told(commits: Transactions | None) -> None:
    calls, answered = list[str](), asyncio.Event()
    broker = broker_of()
    broker.append("t", b"1", partition=0)
    consumer = consumer_of(
        broker, Noting(calls), value_deserializer=int, **({} if commits is None else {"commits": commits})
    )
    where, name = (client_of(consumer), "commit") if commits is None else (consumer._producer, "end")
    asks = getattr(where, name)

    async def answers_late(*args: Any, **keywords: Any) -> Any:
        found = await asks(*args, **keywords)
        answered.set()
        await asyncio.sleep(1)
        return found

    setattr(where, name, answers_late)
    async with consumer:
        running = asyncio.create_task(consumer.run(nothing))
        await answered.wait()
        run_of(consumer).lost([P0])
        await asyncio.sleep(3)
        consumer.stop()
        await running
    assert "acknowledged" not in calls[calls.index("released") :]


@pytest.mark.parametrize("ends", ["until", "stop"])
@pytest.mark.parametrize("hook", ["before_commit", "commit_outputs"])
async def test_what_a_hook_raises_in_the_last_transaction_is_raised(hook: str, ends: str) -> None:
    """It was logged, and the run returned, or said that the brokers had not answered."""

    class Failing(Extension):
        pass

    def fails_at_once(*_: object) -> None:
        raise LookupError(hook)

    async def fails_later(*_: object) -> None:
        raise LookupError(hook)

    setattr(Failing, hook, fails_at_once if hook == "commit_outputs" else fails_later)
    broker, handled = broker_of(), asyncio.Event()
    broker.append("t", b"1", partition=0)

    async def handle(record: Record) -> None:
        handled.set()

    until_end = {"until": "end"} if ends == "until" else {}
    consumer = consumer_of(broker, Failing(), commits=Transactions(interval=5), **until_end)
    async with consumer:
        running = asyncio.create_task(consumer.run(handle))
        await handled.wait()
        consumer.stop()
        with pytest.raises(LookupError, match=hook):
            await running
    assert not committed(broker)


async def test_partitions_whose_last_commit_raises_are_released_before_the_extension_is_stopped() -> None:
    class Failing(Noting):
        async def before_commit(
            self, positions: Mapping[TopicPartition, Committed], timeout: float
        ) -> Mapping[TopicPartition, CommitFault]:
            raise LookupError("before_commit")

    broker, calls = broker_of(), list[str]()
    broker.append("t", b"1", partition=0)
    with pytest.raises(LookupError):
        async with consumer_of(broker, Failing(calls), value_deserializer=int, until="end") as consumer:
            await consumer.run(nothing)
    assert calls[-3:] == ["released", "stop", "close"]


@pytest.mark.parametrize("error", [OSError("the table is away"), TimeoutError("the table is away")], ids=repr)
async def test_an_error_of_the_last_commit_is_raised(error: Exception) -> None:
    """Also a time-out that is the extension's own: what it could not save is no slow broker."""

    class Away(Extension):
        is_away = False

        async def before_commit(
            self, positions: Mapping[TopicPartition, Committed], timeout: float
        ) -> Mapping[TopicPartition, CommitFault]:
            if self.is_away:
                raise error
            return {}

    broker, away = broker_of(), Away()
    broker.append("t", b"1", partition=0)

    async def handle(record: Record) -> None:
        away.is_away = True
        consumer.stop()

    consumer = consumer_of(broker, away, commit_interval=1000.0)
    with pytest.raises(type(error), match="the table is away"):
        async with consumer:
            await consumer.run(handle)
    assert committed(broker) == 0
