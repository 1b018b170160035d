"""Handlers that swallow their cancellation: leaving has its deadlines, and no event loop waits for them afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from aioparallel import (
    Batch,
    FailurePolicy,
    HandlerNotStopped,
    Outgoing,
    ParallelConsumer,
    Record,
    RetryPolicy,
    batches,
    in_threads,
    mapping,
)
from aioparallel.cli.app import NOT_STOPPED
from aioparallel.config.handling import Handling
from aioparallel.engine.flow.loop_thread import LoopThread
from aioparallel.engine.flow.work import Work
from aioparallel.event_loop import own_loop
from aioparallel.event_loop.left_behind import leave_behind, stack_of, still_running
from aioparallel.handlers import resources
from aioparallel.mapping import ParallelMap
from aioparallel.testing.memory import InMemoryBroker
from tests.support.memory.consuming import committed, consumer_of, produce
from tests.support.waiting import SLACK, until

ENDED_WITHIN = 3.0 + SLACK
"""Seconds: drain (0.2), two graces of half a second, and what a busy machine takes."""


async def deaf() -> None:
    """Until this module's tests are over."""
    while not OVER.is_set():
        with contextlib.suppress(BaseException):
            await asyncio.sleep(0.05)


async def deaf_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(deaf())


async def deaf_gathered() -> None:
    await asyncio.gather(deaf(), deaf())


OVER = threading.Event()
WAYS = pytest.mark.parametrize(
    ("rest", "isolation"),
    [(deaf, "context"), (deaf, "task"), (deaf_in_a_group, "context"), (deaf_gathered, "context")],
)


@pytest.fixture(autouse=True)
def over() -> Iterator[None]:
    """A test that waits for what is deaf fails, and does not hang."""
    OVER.clear()
    before = threading.enumerate()
    timer = threading.Timer(ENDED_WITHIN, OVER.set)
    timer.start()
    yield
    timer.cancel()
    OVER.set()
    for thread in threading.enumerate():
        if thread not in before:
            thread.join(SLACK)


def broker_with_records(count: int = 1) -> InMemoryBroker:
    broker = InMemoryBroker()
    broker.create_topic("t", 1)
    produce(broker, [b"k%d" % n for n in range(count)])
    return broker


def consumer_on(broker: InMemoryBroker, **options: Any) -> ParallelConsumer[Any, Any]:
    return consumer_of(broker, drain_timeout=0.2, **options)


def handler_actions(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is logged about handlers that have not ended: one line for each."""
    actions = [getattr(one, "action", "") for one in caplog.records if one.levelno >= logging.INFO]
    return [action for action in actions if "handler" in action]


def stops(
    consumer: ParallelConsumer[Any, Any], rest: Callable[[], Awaitable[object]]
) -> Callable[..., Awaitable[None]]:
    async def handle(record: Record[Any, Any]) -> None:
        consumer.stop()
        await rest()

    return handle


@WAYS
def test_run_sync_ends_and_says_where_it_stands(rest: Callable[[], Awaitable[None]], isolation: str) -> None:
    """With the record and the handler's stack, within its deadlines; what it does not end is not committed."""
    broker = broker_with_records()
    consumer = consumer_on(broker, isolation=isolation)
    began = time.monotonic()
    with pytest.raises(HandlerNotStopped) as raised:
        consumer.run_sync(stops(consumer, rest))
    assert time.monotonic() - began < ENDED_WITHIN
    assert raised.value.record.offset == 0
    assert "t-0 offset 0" in str(raised.value)
    lines = raised.value.stack.splitlines()
    assert "in handle" in lines[0]
    assert any("in deaf" in line for line in lines) or rest is deaf_in_a_group  # a group does not say where it waits
    assert committed(broker) in (None, 0)
    problems = consumer.health().problems
    assert [one.kind for one in problems] == ["handler_stuck"]


def test_outputs_that_never_come() -> None:
    """A handler that yields."""
    consumer = consumer_on(broker_with_records())

    async def handle(record: Record[Any, Any]) -> AsyncIterator[Outgoing]:
        consumer.stop()
        await deaf()
        yield Outgoing("t", b"")

    with pytest.raises(HandlerNotStopped) as raised:
        consumer.run_sync(handle)
    assert "in handle" in raised.value.stack
    assert "in deaf" in raised.value.stack


def test_a_batch() -> None:
    """It is named by its first record."""
    consumer = consumer_on(broker_with_records(3))

    @batches(size=3, linger=0.01)
    async def handle(batch: Batch[Record[Any, Any]]) -> None:
        consumer.stop()
        await deaf()

    with pytest.raises(HandlerNotStopped) as raised:
        consumer.run_sync(handle)
    assert raised.value.record.offset == 0
    assert "in handle" in raised.value.stack


def test_what_else_it_has_failed_with_is_the_cause() -> None:
    """And a run that is ended by sys.exit() ends so."""
    for error, wanted in ((ValueError("own"), HandlerNotStopped), (SystemExit(7), SystemExit)):
        failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), give_up="stop")
        consumer = consumer_on(broker_with_records(2), failures=failures)

        async def handle(record: Record[Any, Any], error: BaseException = error) -> None:
            if record.offset:
                raise error
            await deaf()

        with pytest.raises(wanted) as raised:
            consumer.run_sync(handle)
        if isinstance(raised.value, HandlerNotStopped):
            assert "own" in str(raised.value.__cause__)


def test_the_second_cancellation_is_enough(caplog: pytest.LogCaptureFixture) -> None:
    """What ends then is named as abandoned, and nothing is left behind."""
    consumer = consumer_on(broker_with_records())
    ended = []

    async def once() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            await asyncio.sleep(600)
        finally:
            ended.append(True)

    consumer.run_sync(stops(consumer, once))
    assert ended == [True]
    assert not consumer.left_behind
    assert handler_actions(caplog) == ["handler_abandoned"]


def test_a_thread_that_goes_on_is_abandoned_by_name(caplog: pytest.LogCaptureFixture) -> None:
    """It is a daemon's, so nothing waits for it, and its coroutine has ended."""
    consumer = consumer_on(broker_with_records())

    @in_threads
    def handle(record: Record[Any, Any]) -> None:
        consumer.stop()
        OVER.wait(600)

    consumer.run_sync(handle)
    assert handler_actions(caplog) == ["handler_abandoned"]
    assert not consumer.left_behind
    handle._pool.close()  # or it would stay, idle, for half a minute


# -- event loops of others ----------------------------------------------------------------------------------


@WAYS
def test_asyncio_run_does_not_wait_for_it(
    rest: Callable[[], Awaitable[None]], isolation: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither does any server: they wait for all tasks that asyncio knows. The log says where it stands."""
    consumer = consumer_on(broker_with_records(), isolation=isolation)

    async def main() -> int:
        async with consumer:
            await consumer.run(stops(consumer, rest))
        return len(asyncio.all_tasks())

    began = time.monotonic()
    assert asyncio.run(main()) == 1
    assert time.monotonic() - began < ENDED_WITHIN
    assert handler_actions(caplog) == ["handler_not_stopped"]
    (line,) = [one for one in caplog.records if getattr(one, "action", "") == "handler_not_stopped"]
    assert line.levelno == logging.ERROR
    assert "in handle" in line.getMessage()


def test_parallel_map_does_not_hold_the_loop() -> None:
    """Left early, while a handler is deaf."""

    async def handle(item: int) -> int:
        if item:
            await deaf()
        return item

    async def main() -> None:
        work = Work(handle, Handling(drain_timeout=0.2))
        async with ParallelMap(work, [0, 1], read_in_thread=False) as outcomes:
            async for _ in outcomes:
                break

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < ENDED_WITHIN


@pytest.mark.parametrize("what", ["resource", "source", "dead letter"])
def test_what_else_a_user_gives_does_not_hold_the_loop(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resource that does not close, a source of items that does not, a dead-letter function that does not end."""
    for module, name in ((resources, "_CLOSE_TIMEOUT"), (mapping, "_SOURCE_TIMEOUT")):
        monkeypatch.setattr(module, name, 0.2)

    @contextlib.asynccontextmanager
    async def resource() -> AsyncIterator[None]:
        yield
        await deaf()

    async def source() -> AsyncIterator[int]:
        yield 1
        await deaf()

    async def put_away(record: Record[Any, Any], error: Exception) -> None:
        consumer.stop()
        await deaf()

    async def fails(item: object) -> None:
        if what == "resource":
            consumer.stop()
        elif what == "dead letter":
            raise ValueError

    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter=put_away)
    consumer = consumer_on(
        broker_with_records(), failures=failures, resources={"it": resource} if what == "resource" else {}
    )

    async def main() -> int:
        if what == "source":
            async with ParallelMap(Work(fails, Handling()), source(), read_in_thread=False) as outcomes:
                async for _ in outcomes:
                    break
        else:
            async with consumer:
                await consumer.run(fails)
        return len(asyncio.all_tasks())

    began = time.monotonic()
    assert asyncio.run(main()) == 1
    assert time.monotonic() - began < ENDED_WITHIN


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 has brought them")
def test_eager_tasks() -> None:
    """Of a loop that starts them at once."""
    consumer = consumer_on(broker_with_records(), isolation="task")

    async def main() -> int:
        asyncio.get_running_loop().set_task_factory(vars(asyncio)["eager_task_factory"])
        async with consumer:
            await consumer.run(stops(consumer, deaf))
        return len(asyncio.all_tasks())

    assert asyncio.run(main()) == 1
    assert "in deaf" in consumer.left_behind[0].stack


def test_one_that_ends_after_all_is_kept_no_longer() -> None:
    """In an application that goes on."""

    async def main() -> None:
        task = asyncio.create_task(deaf())
        await asyncio.sleep(0)
        before = still_running()
        leave_behind([task])
        assert task not in asyncio.all_tasks()
        assert still_running() == before + 1
        assert "in deaf" in stack_of(task)
        OVER.set()
        await task
        await until(lambda: still_running() == before)

    asyncio.run(main())


# -- an event loop of our own -------------------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds to end."""
    monkeypatch.setattr(own_loop, "_END_TIMEOUT", 0.3)


@pytest.mark.usefixtures("short")
def test_what_a_handler_has_begun_and_left(caplog: pytest.LogCaptureFixture) -> None:
    """A deaf task, an asynchronous generator that does not close, and a call in a thread: each is named, and the loop
    ends without it."""
    consumer = consumer_on(broker_with_records())
    kept: list[object] = []

    async def unclosed() -> AsyncIterator[None]:
        try:
            yield
        finally:
            await deaf()

    async def handle(record: Record[Any, Any]) -> None:
        kept.append(asyncio.create_task(deaf(), name="of a handler"))
        generator = unclosed()
        kept.append(generator)
        async for _ in generator:
            break
        kept.append(asyncio.get_running_loop().run_in_executor(None, OVER.wait, 600))
        consumer.stop()

    began = time.monotonic()
    consumer.run_sync(handle)
    assert time.monotonic() - began < ENDED_WITHIN
    said = [one.getMessage() for one in caplog.records if getattr(one, "action", "").endswith("_not_stopped")]
    assert any(one.startswith("task of a handler did not end") and "in deaf" in one for one in said)
    assert any("in unclosed" in one for one in said)
    assert any("A call in a thread" in one and "in wait" in one for one in said)


@pytest.mark.usefixtures("short")
def test_a_loop_thread_ends() -> None:
    """Spark's."""
    thread = LoopThread()

    async def handle(item: int) -> int:
        asyncio.get_running_loop().create_task(deaf())
        return item

    flow = thread.flow(Work(handle, Handling()))
    flow.feed([1])
    flow.end()
    assert [one.value for one in flow.take()] == [1]
    began = time.monotonic()
    thread.close()
    assert time.monotonic() - began < ENDED_WITHIN
    assert not thread._thread.is_alive()


# -- processes ----------------------------------------------------------------------------------------------

PROGRAM = """
import asyncio, os, signal, sys
from tests.support.memory.consuming import consumer_of, produce
from aioparallel.testing.memory import InMemoryBroker

broker = InMemoryBroker()
broker.create_topic("t", 1)
produce(broker, [b"k"])
consumer = consumer_of(broker, drain_timeout=0.2)

async def handle(record):
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        try:
            await asyncio.sleep(0.05)
        except BaseException:
            pass  # a GeneratorExit, too

async def main():  # as applications have it
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)
    async with consumer:
        await consumer.run(handle)

if sys.argv[1] == "run_sync":
    consumer.run_sync(handle)
elif sys.argv[1] == "asyncio.run":
    asyncio.run(main())
else:
    from aioparallel.cli import app as command_line

    @command_line.app.command
    def handle_records():
        consumer.run_sync(handle)

    command_line.main()
"""


@pytest.mark.parametrize(("how", "code"), [("run_sync", 1), ("asyncio.run", 0), ("handle-records", NOT_STOPPED)])
def test_the_process_ends(how: str, code: int) -> None:
    """By itself after SIGTERM, though the handler ignores even its garbage collection."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == code, ran.stderr
    assert ("HandlerNotStopped: the handler for t-0 offset 0 still runs" in ran.stderr) is (how == "run_sync")
    assert ("ERROR the handler for t-0 offset 0 still runs" in ran.stderr) is (how == "handle-records")
    assert "never" not in ran.stderr
    assert "was destroyed" not in ran.stderr
