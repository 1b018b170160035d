"""Every way in which a run ends, and in which one fails to open. Each takes its stage there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aioparallel.config.policies import FailurePolicy
from aioparallel.consumer import ParallelConsumer
from aioparallel.records.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ClientError,
    RecordStopped,
    TopicNotFound,
)
from aioparallel.testing.memory import Fault, Request
from tests.support.memory.stages import GROUP, SOON, Stage, live


async def end(stage: Stage) -> None:
    """The end offsets."""
    assert await live(stage.consumer(until="end"), stage) is None
    assert stage.handled == 4


async def run_and(
    stage: Stage, finish: Callable[[ParallelConsumer, asyncio.Task[BaseException | None]], object]
) -> BaseException | None:
    consumer = stage.consumer()
    task = asyncio.ensure_future(live(consumer, stage))
    await stage.comes_to_it(task)
    finish(consumer, task)
    async with asyncio.timeout(SOON):
        return await task


async def stop(stage: Stage) -> None:
    """With a drain."""
    assert await run_and(stage, lambda consumer, task: consumer.stop()) is None


async def stop_without_drain(stage: Stage) -> None:
    """Handlers are cancelled at once."""
    assert await run_and(stage, lambda consumer, task: consumer.stop(drain=False)) is None


async def stop_then_without_drain(stage: Stage) -> None:
    """As a second SIGINT does."""

    def twice(consumer: ParallelConsumer, task: object) -> None:
        consumer.stop()
        stage.later(lambda: consumer.stop(drain=False))

    assert await run_and(stage, twice) is None


async def cancel(stage: Stage) -> None:
    """The task that runs it is cancelled."""
    assert isinstance(await run_and(stage, lambda consumer, task: task.cancel()), asyncio.CancelledError)


async def cancel_while_leaving(stage: Stage) -> None:
    """And once more while it drains, or closes its resources."""
    stage.closing = 0.03

    def twice(consumer: ParallelConsumer, task: asyncio.Task[BaseException | None]) -> None:
        task.cancel()
        stage.later(task.cancel)

    assert isinstance(await run_and(stage, twice), asyncio.CancelledError)


async def fatal(stage: Stage) -> None:
    """A handler raises KeyboardInterrupt."""
    error = await run_and(stage, lambda consumer, task: stage.broker.append("t", b"fatal"))
    assert isinstance(error, KeyboardInterrupt)


async def record_stopped(stage: Stage) -> None:
    """The retries of a record have ended, and the policy stops the consumer."""
    error = await run_and(stage, lambda consumer, task: stage.broker.append("t", b"poison"))
    assert isinstance(error, RecordStopped)


async def lost(stage: Stage) -> None:
    """The group throws the member out; it comes again, and is stopped then."""
    consumer = stage.consumer()
    task = asyncio.ensure_future(live(consumer, stage))
    await stage.comes_to_it(task)
    [member] = stage.broker.member_ids(GROUP)
    stage.broker.expire_session(GROUP, member, asyncio.get_running_loop().time())
    async with asyncio.timeout(SOON):
        while not stage.broker.member_ids(GROUP) or not consumer.stats().partitions:
            await asyncio.sleep(0.001)
    consumer.stop()
    async with asyncio.timeout(SOON):
        assert await task is None


async def crash(stage: Stage) -> None:
    """The client fails for good."""
    error = await run_and(stage, lambda consumer, task: stage.client.crash())
    assert isinstance(error, ClientError)
    for member in list(stage.broker.group(GROUP).members):
        stage.broker.expire_session(GROUP, member, asyncio.get_running_loop().time())


# -- openings that fail


async def a_resource_fails(stage: Stage) -> None:
    """The second of them: the first is open already."""
    opened = iter([False, True])

    @asynccontextmanager
    async def flaky() -> AsyncIterator[object]:
        stage.fails_to_open = next(opened)
        async with stage.resource() as found:
            yield found

    error = await live(stage.consumer(resources={"first": flaky, "second": flaky}), stage)
    assert isinstance(error, ConnectionError)


async def a_topic_is_missing(stage: Stage) -> None:
    """It was never created."""
    stage.topic = "misspelt"
    assert isinstance(await live(stage.consumer(), stage), TopicNotFound)


async def a_dead_letter_topic_is_missing(stage: Stage) -> None:
    """The producer is connected by then."""
    failures = FailurePolicy(dead_letter="misspelt")
    assert isinstance(await live(stage.consumer(failures=failures), stage), TopicNotFound)


async def the_broker_is_gone(stage: Stage) -> None:
    """No connection."""
    stage.broker.go_down()
    assert isinstance(await live(stage.consumer(), stage), BrokerUnreachable)


async def the_broker_hangs(stage: Stage) -> None:
    """It never answers."""
    stage.broker.faults.always(Request.CONNECT, Fault(is_request_lost=True))
    assert isinstance(await live(stage.consumer(), stage), BrokerUnreachable)


async def the_login_is_refused(stage: Stage) -> None:
    """The wrong password."""
    stage.broker.is_login_refused = True
    assert isinstance(await live(stage.consumer(), stage), AuthenticationFailed)


async def opening_is_cancelled(stage: Stage) -> None:
    """While the broker does not answer."""
    stage.broker.faults.always(Request.METADATA, Fault(is_request_lost=True))
    task = asyncio.ensure_future(live(stage.consumer(), stage))
    await asyncio.sleep(0.05)
    task.cancel()
    assert isinstance(await task, asyncio.CancelledError)


async def the_end_is_not_told(stage: Stage) -> None:
    """Opened, but the end offsets are not to be had."""
    stage.broker.faults.always(Request.LIST_OFFSETS, Fault(is_request_lost=True))
    assert isinstance(await live(stage.consumer(until="end"), stage), ClientError)


async def stopped_before_it_runs(stage: Stage) -> None:
    """It opens and closes."""
    consumer = stage.consumer()
    consumer.stop()
    assert await live(consumer, stage) is None
    assert not stage.begun


OPENINGS = {
    play.__name__: play
    for play in (
        a_resource_fails,
        a_topic_is_missing,
        a_dead_letter_topic_is_missing,
        the_broker_is_gone,
        the_broker_hangs,
        the_login_is_refused,
        opening_is_cancelled,
        the_end_is_not_told,
        stopped_before_it_runs,
    )
}
ENDS = {
    play.__name__: play
    for play in (
        stop,
        stop_without_drain,
        stop_then_without_drain,
        cancel,
        cancel_while_leaving,
        fatal,
        record_stopped,
        lost,
        crash,
    )
}
