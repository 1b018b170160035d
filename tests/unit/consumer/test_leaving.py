"""How a consumer ends, whatever comes in between: stops, cancellations, rebalances, brokers that do not answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from aioparallel import FailurePolicy, Outgoing, Record, RetryPolicy
from aioparallel.consumer import ParallelConsumer
from aioparallel.records.errors import BrokerUnreachable, ConsumerStateError, TopicNotFound
from aioparallel.testing.memory import Fault, InMemoryBroker, InMemoryClient, Request
from tests.support.memory.consuming import GROUP, Seen, committed, consumer_of, produce
from tests.support.virtual_time import VirtualLoop
from tests.support.waiting import until


class Slow:
    """Resources that take their time to close, and note when they have."""

    def __init__(self) -> None:
        self.closing: list[str] = []
        self.closed: list[str] = []

    def named(self, name: str) -> Callable[[], contextlib.AbstractAsyncContextManager[None]]:
        @contextlib.asynccontextmanager
        async def resource() -> AsyncIterator[None]:
            yield
            self.closing.append(name)
            await asyncio.sleep(3)
            self.closed.append(name)

        return resource


def ours() -> list[str]:
    """Names of tasks that the consumer has left."""
    return sorted(task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("aioparallel"))


async def test_run_sync_within_a_running_loop_says_what_to_write() -> None:
    """Nothing is begun, and the consumer can still be used."""
    broker = InMemoryBroker()
    broker.create_topic("t")
    consumer = ParallelConsumer("t", group_id=GROUP, client=InMemoryClient(broker, GROUP), until="end")

    async def handle(record: Record) -> None: ...

    with pytest.raises(ConsumerStateError, match=r"write `async with consumer: await consumer.run\(handler\)`"):
        consumer.run_sync(handle)
    async with consumer:
        await consumer.run(handle)


# -- stopping while it starts ---------------------------------------------------------------------------


class SignalledClient(InMemoryClient):
    """Gets a signal while it connects, and is never answered."""

    async def start(self, timeout: float) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()


def test_a_signal_while_connecting_ends_run_sync() -> None:
    """No broker answers; SIGINT is heard at once, not after ``connect_timeout``, and is no error."""
    client = SignalledClient(InMemoryBroker(), GROUP)
    consumer = ParallelConsumer("t", group_id=GROUP, client=client, connect_timeout=5)
    consumer.run_sync(Seen())


class UnhurriedClient(InMemoryClient):
    """Takes a moment to leave, as those do that have connections."""

    async def stop(self, timeout: float) -> None:
        await asyncio.sleep(0.01)
        await super().stop(timeout)


def unhurried(*, topic: str = "t", **options: Any) -> ParallelConsumer:
    """A consumer of a broker that has topic ``t``."""
    broker = InMemoryBroker()
    broker.create_topic("t", 1)
    return ParallelConsumer(topic, group_id=GROUP, client=UnhurriedClient(broker, GROUP), **options)


def fails() -> contextlib.AbstractAsyncContextManager[None]:
    """A resource that cannot be opened."""
    raise KeyError("no resource")


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: unhurried(topic="missing"), TopicNotFound),
        (lambda: unhurried(resources={"service": fails}), KeyError),
        (
            lambda: ParallelConsumer("t", bootstrap_servers="127.0.0.1:1", group_id=GROUP, connect_timeout=1),
            BrokerUnreachable,
        ),
    ],
    ids=["topic", "resource", "broker"],
)
def test_run_sync_raises_what_keeps_it_from_opening(
    make: Callable[[], ParallelConsumer], error: type[Exception]
) -> None:
    """The leaving that follows is not taken for a stop that somebody has asked for: the process must not end well."""
    consumer = make()
    with pytest.raises(error):
        consumer.run_sync(Seen())
    with pytest.raises(ConsumerStateError, match="closed"):
        consumer.run_sync(Seen())


def test_a_consumer_that_was_stopped_before_ends_at_once() -> None:
    """And is no error: a stop may come at any time."""
    consumer = unhurried()
    consumer.stop()
    consumer.run_sync(Seen())


@pytest.mark.parametrize("leaves", [False, True], ids=["stop", "leave"])
async def test_the_look_up_of_the_end_is_cut_short(broker: InMemoryBroker, leaves: bool) -> None:
    """Stopped, or left, while the brokers do not tell the end offsets: run() returns at once, and nothing is made
    that would use the closed client."""
    broker.faults.always(Request.LIST_OFFSETS, Fault(is_request_lost=True))
    loop = asyncio.get_running_loop()
    async with consumer_of(broker, until="end") as consumer:
        running = asyncio.create_task(consumer.run(Seen()))
        await asyncio.sleep(1)
        since = loop.time()
        if not leaves:
            consumer.stop()
            await running
    await running
    assert loop.time() - since < 1
    assert consumer._engine is None
    assert ours() == []


# -- two ways to stop -----------------------------------------------------------------------------------


async def sleeps(record: Record) -> None:
    await asyncio.sleep(60)


async def ignores(record: Record) -> None:
    until_then = asyncio.get_running_loop().time() + 60
    while asyncio.get_running_loop().time() < until_then:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


async def returns_output(record: Record) -> Outgoing:
    return Outgoing("out", b"value")


@pytest.mark.parametrize("handler", [sleeps, ignores, returns_output])
async def test_a_second_stop_without_drain_cuts_the_drain_short(
    broker: InMemoryBroker, handler: Callable[[Record], object], caplog: pytest.LogCaptureFixture
) -> None:
    """stop(), then stop(drain=False): neither handlers nor outputs on their way are waited for any more. The log says
    how many handlers are cancelled."""
    broker.create_topic("out")
    broker.faults.always(Request.PRODUCE, Fault(is_request_lost=True))
    produce(broker, [b"a", b"b"])
    loop = asyncio.get_running_loop()
    async with consumer_of(broker, drain_timeout=20) as consumer:
        running = asyncio.create_task(consumer.run(handler))  # type: ignore[arg-type]
        await until(lambda: consumer._engine and consumer.stats().in_flight + consumer.stats().producing == 2)
        consumer.stop()
        await asyncio.sleep(1)
        assert not running.done()
        since = loop.time()
        consumer.stop(drain=False)
        await running
        assert loop.time() - since < 2
    assert committed(broker) == 0
    hurried = [one.getMessage() for one in caplog.records if getattr(one, "action", "") == "stop_hurried"]
    assert len(hurried) == (handler is not returns_output)
    assert all("2 running handlers are cancelled, the first of them for t-" in line for line in hurried)


# -- rebalances on the way out --------------------------------------------------------------------------


async def test_who_has_stopped_takes_no_partitions(broker: InMemoryBroker) -> None:
    """Between the end of run() and the end of the block a rebalance may assign some: nobody would run them, so they
    are not opened."""
    broker.create_topic("many", 4)
    async with consumer_of(broker, "many") as first:
        running = asyncio.create_task(first.run(Seen()))
        await until(lambda: first._engine and len(first.stats().partitions) == 4)
        first.stop()
        await running
        broker.faults.always(Request.OFFSET_FETCH, Fault(is_request_lost=True))
        async with consumer_of(broker, "many") as second:
            joining = asyncio.create_task(second.run(Seen()))
            await until(lambda: second._engine and len(second.stats().partitions) == 2)
            assert first.stats().partitions == ()
        await joining
    assert ours() == []


async def test_a_rebalance_while_resources_close_leaves_nothing_behind(broker: InMemoryBroker) -> None:
    """Whatever the group does meanwhile, no task is left when the block has ended."""
    broker.create_topic("many", 4)
    slow = Slow()
    async with consumer_of(broker, "many") as second:
        first = consumer_of(broker, "many", resources={"slow": slow.named("slow")})
        await first.__aenter__()
        running = asyncio.create_task(first.run(Seen()))
        await until(lambda: first._engine and len(first.stats().partitions) == 4)
        leaving = asyncio.create_task(first.__aexit__(None, None, None))
        await until(lambda: slow.closing)
        broker.faults.always(Request.OFFSET_FETCH, Fault(is_request_lost=True))
        joining = asyncio.create_task(second.run(Seen()))
        await leaving
        await running
        left = [name for name in ours() if name == "aioparallel-opener"]
        await until(lambda: second._engine and len(second.stats().partitions) == 4)
        # The second one's opener alone may run.
        assert len(left) <= 1
        assert first.stats().partitions == ()
    await joining
    assert ours() == []


# -- cancelled on the way out ---------------------------------------------------------------------------


@pytest.mark.parametrize("during", ["drain", "producer", "member", "b", "a"])
@pytest.mark.parametrize("times", [1, 3])
async def test_whatever_is_cancelled_everything_is_closed_and_the_member_leaves(
    broker: InMemoryBroker, during: str, times: int
) -> None:
    """Delivery is cancelled, once or again and again, while it drains, waits for the producer, leaves the group, closes
    a resource: the rest follows, each with its deadline; then CancelledError goes on."""
    broker.create_topic("out")
    produce(broker, [b"a"])
    slow = Slow()
    consumer = consumer_of(broker, drain_timeout=20, resources={"a": slow.named("a"), "b": slow.named("b")})
    await consumer.__aenter__()
    if during == "producer":
        broker.faults.always(Request.PRODUCE, Fault(is_request_lost=True))
    running = asyncio.create_task(consumer.run(sleeps if during == "drain" else returns_output))
    await until(lambda: consumer._engine and consumer.stats().admitted > consumer.stats().buffered)
    if during != "drain":
        consumer.stop(drain=during != "producer")
        await running
    if during == "member":
        broker.faults.always(Request.LEAVE, Fault(response_delay=2))
    leaving = asyncio.create_task(consumer.__aexit__(None, None, None))
    if during in ("a", "b"):
        await until(lambda: during in slow.closing)
    else:
        await asyncio.sleep(1)
    for _ in range(times):
        leaving.cancel()
        await asyncio.sleep(0.01)
    await asyncio.wait([leaving])
    assert leaving.cancelled()
    await asyncio.wait([running])
    assert slow.closed == ["b", "a"]
    assert not broker.group(GROUP).members
    assert ours() == []


async def test_a_cancelled_opening_closes_what_was_opened(broker: InMemoryBroker) -> None:
    """Cancelled while the second resource opens: the first is closed, and CancelledError goes on."""
    slow = Slow()

    @contextlib.asynccontextmanager
    async def never() -> AsyncIterator[None]:
        slow.closing.append("opening")
        await asyncio.Event().wait()
        yield

    consumer = consumer_of(broker, resources={"a": slow.named("a"), "b": never})
    opening = asyncio.create_task(consumer.__aenter__())
    await until(lambda: slow.closing)
    opening.cancel()
    await asyncio.sleep(1)
    opening.cancel()
    await asyncio.wait([opening])
    assert opening.cancelled()
    assert slow.closed == ["a"]
    assert ours() == []


async def test_a_resource_that_does_not_close_holds_up_nobody(
    broker: InMemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """One ignores even its cancellation: it is named and left, the others are closed, the member has left."""
    slow = Slow()
    release = asyncio.Event()

    @contextlib.asynccontextmanager
    async def stubborn() -> AsyncIterator[None]:
        yield
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()

    consumer = consumer_of(broker, until="end", resources={"a": slow.named("a"), "b": stubborn})
    async with asyncio.timeout(60):
        async with consumer:
            await consumer.run(Seen())
    assert slow.closed == ["a"]
    assert not broker.group(GROUP).members
    assert "resource 'b' did not close" in caplog.text
    release.set()
    await until(lambda: not ours())


async def test_a_resource_is_opened_and_closed_in_one_task(broker: InMemoryBroker) -> None:
    """As task groups and cancel scopes need it, also when the block is entered and left by different tasks."""
    tasks: list[asyncio.Task[object] | None] = []

    @contextlib.asynccontextmanager
    async def resource() -> AsyncIterator[None]:
        async with asyncio.TaskGroup():
            tasks.append(asyncio.current_task())
            yield
            tasks.append(asyncio.current_task())

    consumer = consumer_of(broker, resources={"a": resource})
    await asyncio.create_task(consumer.__aenter__())
    await asyncio.create_task(consumer.__aexit__(None, None, None))
    assert len(tasks) == 2
    assert tasks[0] is tasks[1]


async def test_dead_letter_functions_end_before_what_they_use_is_closed(broker: InMemoryBroker) -> None:
    """One that is cancelled at the end may still need its resource to clean up."""
    produce(broker, [b"a"])
    log: list[str] = []

    @contextlib.asynccontextmanager
    async def resource() -> AsyncIterator[None]:
        yield
        log.append("resource closed")

    async def put(record: Record[Any, Any], error: Exception) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.2)
            log.append("function ended")

    async def fails(record: Record) -> None:
        raise ValueError

    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=put)
    async with consumer_of(broker, resources={"a": resource}, failures=failures) as consumer:
        running = asyncio.create_task(consumer.run(fails))
        await until(lambda: consumer._engine and consumer.stats().producing)
        consumer.stop(drain=False)
        await running
    assert log == ["function ended", "resource closed"]
    assert ours() == []


def test_a_resource_that_ignores_its_deadline_holds_no_opening() -> None:
    """Its time, half a second to end, and what closing it may take: then the consumer has failed to open."""

    @contextlib.asynccontextmanager
    async def stubborn() -> AsyncIterator[None]:
        end = asyncio.get_running_loop().time() + 500
        while (left := end - asyncio.get_running_loop().time()) > 0:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(left)
        yield

    async def main() -> float:
        broker = InMemoryBroker()
        broker.create_topic("t")
        began = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError, match="'stubborn' did not open within 5 s"):
            async with consumer_of(broker, resources={"stubborn": stubborn}, connect_timeout=5):
                pass
        return asyncio.get_running_loop().time() - began

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(main()) < 17
