"""The hooks of an extension: when they are called, and what follows if they raise or do not end."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from aioparallel import (
    BrokerUnreachable,
    Committed,
    ConfigurationError,
    Extension,
    FailurePolicy,
    Options,
    Outgoing,
    ParallelConsumer,
    PartitionState,
    Record,
    RecordStopped,
    Reject,
    RetryLater,
    RetryPolicy,
    TopicPartition,
    Transactions,
)
from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Generation
from aioparallel.group.extensions import Extensions
from aioparallel.handlers.batches import Batch, batches
from aioparallel.records.errors import WorkCancelled
from aioparallel.testing.memory import (
    Fault,
    InMemoryClient,
    InMemoryProducer,
    Request,
)
from tests.support.extensions import (
    GROUP,
    P0,
    Noting,
    broker_of,
    committed,
    consumer_of,
    context_of,
    fails,
    nothing,
    rejecting,
)
from tests.support.waiting import until


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


def test_a_assignment_without_states_calls_its_ledger_alone() -> None:
    assignment = Assignment(P0, generation=Generation(1, "m"))
    assignment.extend(Extensions([Extension()]).assigned(assignment), fails)
    assert assignment.complete == assignment.ledger.complete
    assert assignment.complete_all == assignment.ledger.complete_all
    assignment.extend([PartitionState()], fails)
    assert assignment.complete == assignment.ledger.complete
    assert not assignment.has_news


def test_what_nobody_overrides_is_not_around_an_attempt() -> None:
    extensions = Extensions([Extension(), Extension()])
    assert [extensions.hooks(hook) for hook in ("may_attempt", "before_attempt", "attempt", "work")] == [[]] * 4
    assert (extensions.restores, extensions.saves) == (False, False)


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
        Failing.assigned = lambda self, assignment: FailingState()  # type: ignore[method-assign]
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


class NoException(BaseException):
    """Not an Exception."""


@pytest.mark.parametrize("error", [asyncio.CancelledError("of a future"), NoException()], ids=repr)
@pytest.mark.parametrize("hook", ["assigned", "completed", "gave_up", "released"])
async def test_the_errors_of_plain_hooks_may_be_of_any_kind(hook: str, error: BaseException) -> None:
    """A hook may ask a future that was cancelled for its result. A worker would take that for a cancellation of its
    own."""

    def fails(*_: object) -> None:
        raise error

    class FailingState(PartitionState):
        pass

    class Failing(Extension):
        pass

    if hook in ("completed", "gave_up"):
        setattr(FailingState, hook, fails)
        Failing.assigned = lambda self, assignment: FailingState()  # type: ignore[method-assign]
    else:
        setattr(Failing, hook, fails)
    broker, calls = broker_of(2), list[str]()
    for number in range(2):
        broker.append("t", b"1", partition=number)
    skips = FailurePolicy(retry=RetryPolicy(max_attempts=1), give_up="skip")
    consumer = consumer_of(broker, Noting(calls), Failing(), failures=skips, until="end", value_deserializer=int)
    with pytest.raises(NoException if isinstance(error, NoException) else WorkCancelled):
        async with asyncio.timeout(300), consumer:
            await consumer.run(rejecting if hook == "gave_up" else nothing)
    assert calls.count("released") == 2
    if hook != "released":
        assert not committed(broker)


@pytest.mark.parametrize("error", [LookupError("no"), asyncio.CancelledError("of a future"), NoException()], ids=repr)
@pytest.mark.parametrize("hook", ["attempts_ended", "records_ended", "attempt_failed", "commit_ended"])
async def test_errors_of_monitoring_hooks_end_the_run_after_the_turn(hook: str, error: BaseException) -> None:
    """The records of the turn are counted once, for their own partition."""

    def fails(*_: object) -> None:
        raise error

    class Failing(Extension):
        pass

    setattr(Failing, hook, fails)
    broker, handled = broker_of(2), list[tuple[int, int]]()
    for number in range(80):
        broker.append("t", b"1", partition=number % 2)

    async def handle(record: Record) -> None:
        handled.append((record.partition, record.offset))
        if hook == "attempt_failed" and record.offset % 7 == 5:
            raise Reject("no")

    skips = FailurePolicy(retry=RetryPolicy(max_attempts=1), give_up="skip")
    consumer = consumer_of(broker, Failing(), failures=skips, until="end")
    is_cancelled = isinstance(error, asyncio.CancelledError)
    raised, match = (WorkCancelled, "a hook of an extension") if is_cancelled else (type(error), None)
    with pytest.raises(raised, match=match):
        async with asyncio.timeout(20), consumer:
            await consumer.run(handle)
    stats = consumer.stats()
    assert len(set(handled)) == len(handled) == stats.ended
    assert stats.in_flight == stats.producing == 0
    for partition in range(2):
        ended = {offset for where, offset in handled if where == partition}
        assert ended >= set(range(committed(broker, TopicPartition("t", partition)) or 0))


async def test_records_that_are_not_due_are_no_attempts() -> None:
    """No handler was called for a record of a retry topic before its time, alone or in a batch."""
    seen = list[tuple[str, int, int, str]]()

    class Watching(Extension):
        def attempts_ended(
            self, records: Sequence[Record], calls: int, began: float, seconds: float, error: BaseException | None
        ) -> None:
            seen.append((records[0].topic, len(records), calls, type(error).__name__))

    async def handle(given: Any) -> None:
        if (given[0] if isinstance(given, Batch) else given).topic == "t":
            raise ValueError("no")

    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), retry_topics={"retry": 0.3}, dead_letter="out")
    for handler in (handle, batches(handle, size=5)):
        broker = broker_of()
        broker.create_topic("retry", 1)
        broker.append("t", b"1")
        seen.clear()
        async with asyncio.timeout(20), consumer_of(broker, Watching(), failures=policy) as consumer:
            running = asyncio.create_task(consumer.run(handler))
            await until(lambda broker=broker: committed(broker, TopicPartition("retry", 0)) == 1)  # type: ignore[misc]
            consumer.stop()
            await running
        assert seen == [("t", 1, 1, "ValueError"), ("retry", 1, 1, "NoneType")]


@pytest.mark.parametrize("hook", ["before_commit", "restore", "select", "work"])
async def test_a_hook_that_awaits_what_was_cancelled_is_not_cancelled_itself(hook: str) -> None:
    """The error does not say that somebody has cancelled a task of the run."""

    def fails(*_: object) -> None:
        raise asyncio.CancelledError

    async def waits(*_: object) -> None:
        cancelled = asyncio.get_running_loop().create_future()
        cancelled.cancel()
        await cancelled

    class FailingState(PartitionState):
        pass

    class Failing(Extension):
        pass

    if hook == "select":
        setattr(FailingState, hook, fails)
        Failing.assigned = lambda self, assignment: FailingState()  # type: ignore[method-assign]
    else:
        setattr(Failing, hook, waits)
    broker = broker_of()
    broker.append("t", b"1", partition=0)
    consumer = consumer_of(broker, Failing())
    with contextlib.suppress(WorkCancelled):  # of the last commit
        async with asyncio.timeout(300), consumer:
            running = asyncio.create_task(consumer.run(nothing))
            await asyncio.wait((running,))
    error = running.exception()
    assert isinstance(error, WorkCancelled)
    assert str(error).startswith("its task aioparallel-")


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

        def assigned(self, assignment: Assignment) -> Late:
            return self.state

        async def finish(self) -> None:
            self.before = self.state.saved
            self.state.news = True

    one = Finishing()
    async with consumer_of(broker, one, until="end") as consumer:
        await consumer.run(nothing)
    assert one.state.saved == one.before + 1
    assert committed(broker) == 1


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
        def assigned(self, assignment: Assignment) -> PartitionState:
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


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks are new in Python 3.12")
async def test_a_hurried_stop_is_shorter_with_eager_tasks() -> None:
    class Hanging(Extension):
        async def stop(self) -> None:
            await asyncio.Event().wait()

    loop, hurried = asyncio.get_running_loop(), asyncio.Event()
    extensions = Extensions([Hanging()])
    await extensions.start()
    hurried.set()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 - unknown to Python 3.11
    began = loop.time()
    try:
        with pytest.raises(TimeoutError, match="did not end within 5 s of a hurried stop"):
            await extensions.stop(hurried)
    finally:
        loop.set_task_factory(None)
    assert loop.time() - began == pytest.approx(5, abs=0.1)


@pytest.mark.parametrize("hook", ["finish", "stop", "close"])
async def test_a_hook_that_ignores_its_cancellation_is_left_behind(hook: str, caplog: pytest.LogCaptureFixture) -> None:
    """All else that is to be closed is closed."""
    released, others = asyncio.Event(), []

    async def ignore(self: Extension) -> None:
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()

    class Other(Extension):
        async def close(self) -> None:
            others.append("closed")

    ignoring = type("Ignoring", (Extension,), {hook: ignore})()
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimeoutError, match="ignore did not end within"):
        async with consumer_of(broker_of(), Other(), ignoring, until="end") as consumer:
            await consumer.run(nothing)
    assert loop.time() - began < 70
    assert others == ["closed"]
    (line,) = [record for record in caplog.records if getattr(record, "action", None) == "task_not_stopped"]
    assert "in ignore" in line.getMessage()
    released.set()


async def test_a_cancellation_that_a_hook_raises_itself_is_an_error() -> None:
    class Odd(Extension):
        async def close(self) -> None:
            raise asyncio.CancelledError

    with pytest.raises(WorkCancelled, match="a hook of an extension"):
        async with consumer_of(broker_of(), Odd(), until="end") as consumer:
            await consumer.run(nothing)


async def test_a_stop_that_ends_in_time_is_no_error_though_it_is_hurried() -> None:
    class Slow(Extension):
        async def stop(self) -> None:
            await asyncio.sleep(4)

    async with consumer_of(broker_of(), Slow()) as consumer:
        running = asyncio.create_task(consumer.run(nothing))
        await until(lambda: consumer.health().ready)
        consumer.stop(drain=False)
        await running


async def test_a_check_that_does_not_end_is_named() -> None:
    """It may wait for something else than a broker, so the error leads to its line."""

    class Hanging(Extension):
        async def check(self, partitions: Collection[TopicPartition], timeout: float) -> None:
            await asyncio.Event().wait()

    with pytest.raises(BrokerUnreachable, match=r"Hanging\.check did not end") as raised:
        async with consumer_of(broker_of(), Noting([]), Hanging()):
            pass
    assert isinstance(raised.value.__cause__, TimeoutError)


async def test_a_time_out_of_a_check_is_the_cause_of_the_error() -> None:
    late = TimeoutError("the registry is slow")

    class Late(Extension):
        async def check(self, partitions: Collection[TopicPartition], timeout: float) -> None:
            raise late

    with pytest.raises(BrokerUnreachable, match="the registry is slow") as raised:
        async with consumer_of(broker_of(), Late()):
            pass
    assert raised.value.__cause__ is late
