"""Several extensions together, and what a consumer with extensions of its own does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from aioparallel import (
    CommitFault,
    Committed,
    ConfigurationError,
    Extension,
    FailurePolicy,
    NotCommitted,
    Options,
    Outgoing,
    ParallelConsumer,
    PartitionState,
    Problem,
    ProblemKind,
    Producing,
    Record,
    RecordStopped,
    Reject,
    RetryLater,
    RetryPolicy,
    Stats,
    TopicPartition,
    Transactions,
)
from aioparallel.group.client import Generation
from aioparallel.group.extensions import Extensions
from aioparallel.group.sessions import Session
from aioparallel.handlers.batches import Batch, batches
from aioparallel.testing.memory import (
    Fault,
    InMemoryBroker,
    InMemoryClient,
    InMemoryProducer,
    InMemoryTransactionalProducer,
    Request,
)
from tests.support.extensions import context_of
from tests.support.waiting import until

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

    def assigned(self, session: Session) -> PartitionState:
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


async def test_hooks_come_in_the_order_of_the_diagram() -> None:
    broker, calls = broker_of(), list[str]()
    broker.append("t", b"1", partition=0)
    consumer = consumer_of(broker, Noting(calls), until="end", value_deserializer=int)
    async with consumer:
        await consumer.run(nothing)
    last = [*dict.fromkeys(reversed(calls))][::-1]  # where it begins is committed as well
    order = """attach topics check handlers start assigned restore select may_attempt before_attempt attempt attempted
        completed before_commit acknowledged finish released stop close"""
    assert last == order.split()


async def test_several_are_called_in_order_and_left_in_reverse() -> None:
    broker, calls = broker_of(), list[str]()
    broker.append("t", b"1", partition=0)
    consumer = consumer_of(broker, Noting(calls, "1 "), Noting(calls, "2 "), until="end", value_deserializer=int)
    async with consumer:
        await consumer.run(nothing)
    for hook in ("attach", "check", "handlers", "start", "assigned", "restore", "select", "completed", "before_commit"):
        assert [call for call in calls if call.endswith(f" {hook}")][:2] == [f"1 {hook}", f"2 {hook}"]
    for hook in ("released", "stop", "close", "attempted"):
        assert [call for call in calls if call.endswith(f" {hook}")] == [f"2 {hook}", f"1 {hook}"]


def test_a_session_without_states_calls_its_ledger_alone() -> None:
    session = Session(P0, generation=Generation(1, "m"))
    session.extend(Extensions([Extension()]).assigned(session), fails)
    assert session.complete == session.ledger.complete
    assert session.complete_all == session.ledger.complete_all
    session.extend([PartitionState()], fails)
    assert session.complete == session.ledger.complete
    assert not session.has_news


def test_what_nobody_overrides_is_not_around_an_attempt() -> None:
    extensions = Extensions([Extension(), Extension()])
    assert (extensions.may_attempt, extensions.before_attempt, extensions.middleware) == ([], [], [])
    assert (extensions.work, extensions.restores, extensions.saves) == ([], False, False)


class Only(PartitionState):
    """Selects some offsets, and notes what completes."""

    def __init__(self, *offsets: int) -> None:
        self.offsets, self.done, self.asked = offsets, list[int](), list[int]()

    def select(self, records: Sequence[Record]) -> Sequence[Record]:
        self.asked += [record.offset for record in records]
        return [record for record in records if record.offset in self.offsets]

    def completed(self, offset: int) -> None:
        self.done.append(offset)


def test_a_record_that_a_later_one_leaves_out_is_complete_for_the_first() -> None:
    session = Session(P0, generation=Generation(1, "m"))
    first, second = Only(1, 2, 3), Only(2)
    session.extend((first, second), fails)
    records = [Record(*P0, offset, b"k", b"v") for offset in range(4)]
    assert [record.offset for record in session.register(records, 4)] == [2]
    assert (first.asked, second.asked) == ([0, 1, 2, 3], [1, 2, 3])
    assert (first.done, second.done) == ([1, 3], [])
    session.complete(2)
    assert (first.done, second.done) == ([1, 3, 2], [2])
    assert session.ledger.next_commit == 4


def test_all_states_hear_of_a_record_that_is_given_up() -> None:
    heard: list[tuple[str, int]] = []

    class Hearing(PartitionState):
        def __init__(self, name: str) -> None:
            self.name = name

        def gave_up(self, offset: int) -> None:
            heard.append((self.name, offset))

    session = Session(P0, generation=Generation(1, "m"))
    session.extend((Hearing("a"), PartitionState(), Hearing("b")), fails)
    session.gave_up(7)
    assert heard == [("a", 7), ("b", 7)]


class Restoring(Extension):
    """Is ready with the partitions in ``ready``, and notes what it is asked for."""

    def __init__(self, *ready: TopicPartition) -> None:
        self.ready, self.asked = set(ready), list[set[TopicPartition]]()
        self.pause: asyncio.Event | None = None

    async def restore(
        self, positions: Mapping[TopicPartition, Committed | None], timeout: float
    ) -> Collection[TopicPartition]:
        self.asked.append(set(positions))
        if self.pause is not None:
            await self.pause.wait()
        return self.ready


async def test_a_partition_is_ready_when_all_are_and_none_is_asked_again() -> None:
    first, second = Restoring(P0, P1), Restoring(P1)
    extensions = Extensions((first, second))
    ends = asyncio.get_running_loop().time() + 5
    assert set(await extensions.restore({P0: None, P1: None}, ends)) == {P1}
    second.ready.add(P0)
    assert set(await extensions.restore({P0: None}, ends)) == {P0}
    assert (first.asked, second.asked) == ([{P0, P1}], [{P0, P1}, {P0}])
    extensions.assigned(Session(P0, generation=Generation(1, "m")))
    assert set(await extensions.restore({P0: None}, ends)) == {P0}
    extensions.released(P0)
    assert set(await extensions.restore({P0: None}, ends)) == {P0}
    assert first.asked == [{P0, P1}, {P0}, {P0}]


@pytest.mark.parametrize("how", ["released", "assigned"])
async def test_an_answer_for_an_earlier_assignment_counts_for_nothing(how: str) -> None:
    one = Restoring(P0)
    one.pause = asyncio.Event()
    extensions = Extensions([one])
    ends = asyncio.get_running_loop().time() + 5
    late = asyncio.create_task(extensions.restore({P0: None}, ends))
    await asyncio.sleep(0)
    if how == "released":
        extensions.released(P0)
    else:
        extensions.assigned(Session(P0, generation=Generation(1, "m")))
    one.pause.set()
    assert list(await late) == []
    assert set(await extensions.restore({P0: None}, ends)) == {P0}
    assert one.asked == [{P0}, {P0}]


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


class PuttingOff(Extension):
    """Puts each record off once."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def may_attempt(self, record: Record) -> None:
        if record.offset not in self.seen:
            self.seen.add(record.offset)
            raise RetryLater(0.1)


async def test_an_attempt_that_is_put_off_comes_again() -> None:
    broker, handled = broker_of(), list[int]()
    for n in range(5):
        broker.append("t", b"%d" % n, partition=0)

    async def handle(record: Record) -> None:
        handled.append(record.offset)

    consumer = consumer_of(broker, PuttingOff(), until="end")
    async with consumer:
        await consumer.run(handle)
    assert sorted(handled) == [0, 1, 2, 3, 4]
    assert committed(broker) == 5


async def test_an_attempt_hook_sees_batches_outputs_and_errors() -> None:
    broker, seen = broker_of(), list[object]()
    broker.append("t", b"1", partition=0)

    class Watching(Extension):
        async def attempt(self, item: Any, call_next: Callable[[Any], Awaitable[object]]) -> object:
            try:
                result = await call_next(item)
            except ValueError as error:
                seen.append(str(error))
                raise
            seen.append((len(item) if isinstance(item, Batch) else item.offset, result))
            return result

    async def fails_once(record: Record) -> Outgoing:
        if not seen:
            raise ValueError("no")
        return Outgoing("out", b"x")

    async with consumer_of(broker, Watching(), until="end") as consumer:
        await consumer.run(fails_once)
    assert seen[0] == "no"
    assert isinstance(seen[1], tuple)
    assert isinstance(seen[1][1], Outgoing)

    async def together(batch: Batch[Record]) -> None:
        """A batch handler."""

    seen.clear()
    broker.append("t", b"2", partition=0)
    async with consumer_of(broker, Watching(), until="end") as consumer:
        await consumer.run(batches(together, size=5))
    assert seen == [(1, None)]


HOOKS = "assigned select completed gave_up before_commit work start restore released finish"


@pytest.mark.parametrize("hook", HOOKS.split())
async def test_what_a_hook_raises_ends_the_run(hook: str) -> None:
    """Nothing hangs, and nothing is committed that the extension does not know."""

    class Failing(Extension):
        pass

    class FailingState(PartitionState):
        pass

    def fails_at_once(*_: object) -> None:
        raise LookupError(hook)

    async def fails_later(*_: object) -> None:
        raise LookupError(hook)

    if hook in ("select", "completed", "gave_up"):
        setattr(FailingState, hook, fails_at_once)
        Failing.assigned = lambda self, session: FailingState()  # type: ignore[method-assign]
    else:
        setattr(Failing, hook, fails_at_once if hook in ("assigned", "released") else fails_later)
    broker = broker_of()
    broker.append("t", b"1", partition=0)
    skips = FailurePolicy(retry=RetryPolicy(max_attempts=1), give_up="skip")
    consumer = consumer_of(broker, Failing(), failures=skips, until="end")
    handler = rejecting if hook == "gave_up" else nothing
    with pytest.raises(LookupError, match=hook):
        async with asyncio.timeout(300), consumer:
            await consumer.run(handler)
    if hook not in ("work", "released", "finish"):
        assert not committed(broker)


async def test_all_are_stopped_and_closed_though_one_raises() -> None:
    broker, calls = broker_of(), list[str]()

    class Failing(Noting):
        async def stop(self) -> None:
            await super().stop()
            raise LookupError("stop")

        async def close(self) -> None:
            await super().close()
            raise LookupError("close")

    consumer = consumer_of(broker, Noting(calls, "1 "), Failing(calls, "2 "), until="end")
    with pytest.raises(LookupError):
        async with consumer:
            await consumer.run(nothing)
    assert calls[-4:] == ["2 stop", "1 stop", "2 close", "1 close"]


async def test_one_that_cannot_connect_is_closed() -> None:
    broker, calls = broker_of(), list[str]()

    class Failing(Noting):
        async def check(self, partitions: Collection[TopicPartition], timeout: float) -> None:
            raise ConfigurationError("file", "x", "is not there")

    with pytest.raises(ConfigurationError, match="is not there"):
        async with consumer_of(broker, Noting(calls), Failing(calls)):
            pass
    assert calls[-2:] == ["close", "close"]


async def test_finish_may_bring_one_more_commit() -> None:
    broker = broker_of()
    broker.append("t", b"1", partition=0)

    class Late(PartitionState):
        news = False
        saved = 0

        @property
        def has_news(self) -> bool:
            return self.news

        def acknowledged(self) -> None:
            self.news, self.saved = False, self.saved + 1

    class Finishing(Extension):
        state = Late()

        def assigned(self, session: Session) -> Late:
            return self.state

        async def finish(self) -> None:
            self.before = self.state.saved
            self.state.news = True

    one = Finishing()
    async with consumer_of(broker, one, until="end") as consumer:
        await consumer.run(nothing)
    assert one.state.saved == one.before + 1
    assert committed(broker) == 1


async def test_problems_and_statistics_have_theirs() -> None:
    broker = broker_of()

    class Telling(Extension):
        def problems(self) -> list[Problem]:
            return [Problem(ProblemKind.EXTENSION, "the disk is full")]

        def stats(self, found: Stats) -> Stats:
            return replace(found, copies=found.copies + 7)

    async with consumer_of(broker, Telling(), Telling()) as consumer:
        running = asyncio.create_task(consumer.run(nothing))
        await until(lambda: consumer.health().running)
        assert [one.message for one in consumer.health().problems].count("the disk is full") == 2
        assert consumer.stats().copies == 14
        consumer.stop()
        await running


# -- what is refused


def test_what_is_no_extension_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="extensions"):
        consumer_of(broker_of(), 5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="extensions"):
        consumer_of(broker_of(), Extension)  # type: ignore[arg-type]


def test_one_extension_is_one_consumers() -> None:
    one = Extension()
    with pytest.raises(ConfigurationError, match="twice"):
        consumer_of(broker_of(), one, one)
    consumer_of(broker_of(), one)
    with pytest.raises(ConfigurationError, match="another consumer's"):
        consumer_of(broker_of(), one)


def test_two_that_replace_the_same_are_refused() -> None:
    class Client(Extension):
        def client(self, group_id: str, member_of: Any) -> Any:
            return member_of(group_id)

    with pytest.raises(ConfigurationError, match="has a client, and so has"):
        ParallelConsumer("t", group_id=GROUP, extensions=[Client(), Client()])


def test_outputs_of_commits_need_transactions() -> None:
    class Writing(Extension):
        def commit_outputs(self, partition: TopicPartition, committed: Committed) -> Sequence[Outgoing]:
            return [Outgoing("out", b"x")]

    with pytest.raises(ConfigurationError, match="needs commits=Transactions"):
        consumer_of(broker_of(), Writing())


async def test_outputs_of_commits_are_in_the_transaction() -> None:
    broker = broker_of()
    for n in range(10):
        broker.append("t", b"%d" % n, partition=0)

    class Writing(Extension):
        def commit_outputs(self, partition: TopicPartition, committed: Committed) -> Sequence[Outgoing]:
            return [Outgoing("out", b"%d" % committed.offset)]

    broker.faults.script(Request.END_TXN, Fault(is_request_lost=True))
    async with consumer_of(broker, Writing(), commits=Transactions(interval=0.05), until="end") as consumer:
        await consumer.run(nothing)
    found = [int(one.value or b"") for one in broker.records("out")]
    assert found[-1] == committed(broker) == 10
    assert found == sorted(set(found))


def test_a_topic_that_an_extension_writes_is_not_read() -> None:
    class Writing(Extension):
        def topics(self) -> Mapping[str, str]:
            return {"t": "Writing topic"}

    with pytest.raises(ConfigurationError, match="Writing topic"):
        consumer_of(broker_of(), Writing())


def test_commits_takes_an_extension_that_commits() -> None:
    with pytest.raises(ConfigurationError, match="commit_strategy"):
        Options(commits=Extension())


def test_a_frozen_dataclass_may_be_an_extension() -> None:
    @dataclass(frozen=True)
    class Frozen(Extension):
        value: int

    consumer_of(broker_of(), Frozen(1), Frozen(1))


async def test_a_consumer_without_a_producer_has_none_in_its_context() -> None:
    found: list[Any] = []

    class Asking(Extension):
        def attach(self, consumer: Any) -> None:
            found.append(consumer)

    broker = broker_of()
    client = InMemoryClient(broker, GROUP)
    ParallelConsumer("t", group_id=GROUP, client=client, extensions=[Asking()])
    (context,) = found
    assert (context.producer, context.plain_producer(), context.client) == (None, None, client)
    assert (context.is_running(), tuple(context.partitions())) == (False, ())
    assert context_of(Options(), GROUP, client, None).group_id == context.group_id


async def test_nothing_is_committed_that_a_state_does_not_know_to_be_left_out() -> None:
    """The state of the first raises when it hears of a record that the second leaves out."""

    class FailingState(PartitionState):
        def completed(self, offset: int) -> None:
            raise LookupError("completed")

    class Failing(Extension):
        def assigned(self, session: Session) -> PartitionState:
            return FailingState()

    class Leaving(Extension):
        def assigned(self, session: Session) -> PartitionState:
            return Only()

    broker = broker_of()
    broker.append("t", b"1", partition=0)
    with pytest.raises(LookupError, match="completed"):
        async with consumer_of(broker, Failing(), Leaving(), until="end") as consumer:
            await consumer.run(nothing)
    assert not committed(broker)


async def test_all_is_committed_before_an_extension_is_stopped_also_after_a_failure() -> None:
    broker, calls = broker_of(), list[str]()
    for n in range(3):
        broker.append("t", b"1", key=b"%d" % n, partition=0)

    async def handle(record: Record[Any, Any]) -> None:
        if record.offset == 2:
            await asyncio.sleep(0.2)
            raise Reject("no")

    stops = FailurePolicy(retry=RetryPolicy(max_attempts=1), give_up="stop")
    consumer = consumer_of(broker, Noting(calls), commit_interval=5, value_deserializer=int, failures=stops)
    with pytest.raises(RecordStopped):
        async with consumer:
            await consumer.run(handle)
    assert committed(broker) == 2
    assert calls.count("stop") == 1
    assert calls[-3:] == ["released", "stop", "close"]


async def test_what_ended_the_run_is_raised_though_stop_raises_too() -> None:
    class Failing(Extension):
        async def stop(self) -> None:
            raise LookupError("stop")

    broker = broker_of()
    broker.append("t", b"1", partition=0)
    stops = FailurePolicy(retry=RetryPolicy(max_attempts=1), give_up="stop")
    with pytest.raises(RecordStopped):
        async with consumer_of(broker, Failing(), failures=stops) as consumer:
            await consumer.run(rejecting)


async def test_the_producer_is_closed_though_an_extension_raises_in_close() -> None:
    class Failing(Extension):
        async def close(self) -> None:
            raise LookupError("close")

    class Stopping(InMemoryProducer):
        stopped = 0

        async def stop(self, timeout: float) -> None:
            self.stopped += 1
            await super().stop(timeout)

    broker = broker_of()
    producer = Stopping(broker)
    consumer = ParallelConsumer(
        "t",
        group_id=GROUP,
        client=InMemoryClient(broker, GROUP),
        producer=producer,
        extensions=[Failing()],
        until="end",
    )
    with pytest.raises(LookupError):
        async with consumer:
            await consumer.run(nothing)
    assert producer.stopped == 1


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
        assert consumer._engine is not None
        consumer._engine.lost([P0])
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
    where, name = (consumer._client, "commit") if commits is None else (consumer._producer, "end")
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
        assert consumer._engine is not None
        consumer._engine.lost([P0])
        await asyncio.sleep(3)
        consumer.stop()
        await running
    assert "acknowledged" not in calls[calls.index("released") :]


@pytest.mark.parametrize("how", ["end", "failure"])
async def test_work_has_ended_before_the_extension_is_stopped(how: str) -> None:
    calls: list[str] = []

    class Working(Extension):
        async def work(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                calls.append("work ended")

        async def stop(self) -> None:
            calls.append("stop")

    broker = broker_of()
    broker.append("t", b"1", partition=0)
    stops = FailurePolicy(retry=RetryPolicy(max_attempts=1), give_up="stop")
    consumer = consumer_of(broker, Working(), until="end", failures=stops)
    async with consumer:
        if how == "end":
            await consumer.run(nothing)
        else:
            with pytest.raises(RecordStopped):
                await consumer.run(rejecting)
    assert calls == ["work ended", "stop"]


async def test_a_stop_does_not_wait_for_an_extension_that_starts() -> None:
    calls: list[str] = []

    class Starting(Extension):
        async def start(self) -> None:
            calls.append("start")
            await asyncio.Event().wait()

        async def stop(self) -> None:
            calls.append("stop")

    async with consumer_of(broker_of(), Starting(), Noting(calls)) as consumer:
        running = asyncio.create_task(consumer.run(nothing))
        await until(lambda: calls[-1:] == ["start"])
        consumer.stop()
        async with asyncio.timeout(5):
            await running
    assert calls[-4:] == ["start", "finish", "stop", "close"]
    assert calls.count("stop") == 1  # of the one whose start was cancelled


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


@pytest.mark.parametrize("call", ["stop", "stats", "pause"])
async def test_a_state_may_use_the_consumer_when_a_record_is_complete(call: str) -> None:
    """Offsets were completed twice, which ended the run with an error, and nothing was committed."""

    class Calling(PartitionState):
        def completed(self, offset: int) -> None:
            if call == "stop":
                consumer.stop()
            elif call == "stats":
                assert consumer.stats().succeeded <= 20
            else:
                consumer.pause()
                consumer.resume()

    class Using(Extension):
        def assigned(self, session: Session) -> PartitionState:
            return Calling()

    broker = broker_of()
    for n in range(20):
        broker.append("t", b"1", key=b"%d" % n, partition=0)
    consumer = consumer_of(broker, Using(), until="end")
    async with consumer:
        await consumer.run(nothing)
    assert committed(broker)


@pytest.mark.parametrize(("hook", "seconds"), [("finish", 60), ("stop", 60), ("close", 10)])
async def test_a_hook_that_never_ends_keeps_no_consumer_from_its_end(hook: str, seconds: float) -> None:
    class Hanging(Extension):
        pass

    async def hangs(self: Extension) -> None:
        await asyncio.Event().wait()

    setattr(Hanging, hook, hangs)
    broker = broker_of()
    broker.append("t", b"1", partition=0)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimeoutError, match="did not end within"):
        async with consumer_of(broker, Hanging(), until="end") as consumer:
            await consumer.run(nothing)
    assert loop.time() - began < seconds + 5
    assert committed(broker) == 1


@pytest.mark.parametrize(("hurried_after", "seconds"), [(None, 5), (0, 5), (20, 25), (58, 60)])
async def test_a_hurried_stop_leaves_an_extension_a_few_seconds(hurried_after: float | None, seconds: float) -> None:
    """Also if its stop has begun, but never more than it had."""
    stopping: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    time = asyncio.get_running_loop().time

    class Hanging(Extension):
        async def stop(self) -> None:
            stopping.set_result(time())
            await asyncio.Event().wait()

    async with consumer_of(broker_of(), Hanging()) as consumer:
        running = asyncio.create_task(consumer.run(nothing))
        await until(lambda: consumer.health().ready)
        consumer.stop(drain=hurried_after is not None)
        began = await stopping
        if hurried_after is not None:
            await asyncio.sleep(hurried_after)
            consumer.stop(drain=False)
        with pytest.raises(TimeoutError, match=r"Hanging\.stop did not end within 5 s of a hurried stop"):
            await running
        assert time() - began == pytest.approx(seconds, abs=0.1)


async def test_a_stop_that_ends_in_time_is_no_error_though_it_is_hurried() -> None:
    class Slow(Extension):
        async def stop(self) -> None:
            await asyncio.sleep(4)

    async with consumer_of(broker_of(), Slow()) as consumer:
        running = asyncio.create_task(consumer.run(nothing))
        await until(lambda: consumer.health().ready)
        consumer.stop(drain=False)
        await running
