"""However a run ends: no task, timer, connection or worker is left, and nothing that nobody caught."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal, Unpack

import psutil
import pytest
import uvloop

from aioparallel.consumer import ParallelConsumer
from aioparallel.errors import BrokerUnreachable, ClientError, NotAuthorized, RecordStopped, Reject, TopicNotFound
from aioparallel.options import OptionFields
from aioparallel.policies import FailurePolicy, RetryPolicy
from aioparallel.records import Outgoing, Record
from aioparallel.testing.memory import Fault, InMemoryBroker, InMemoryClient, InMemoryProducer, Request
from tests.simulation.loop import RecordingLoop

GROUP = "g"
Isolation = Literal["context", "task"]
_SOON = 20.0  # seconds that anything here may take, at most
_IGNORES = 1.0  # seconds that a handler goes on although it was cancelled


def loop_kinds() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Event loops by name; where this Python has it, with the eager task factory as well."""
    kinds: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "virtual": RecordingLoop,
        "asyncio": asyncio.SelectorEventLoop,
        "uvloop": uvloop.new_event_loop,
    }
    factory = getattr(asyncio, "eager_task_factory", None)  # from Python 3.12 on
    if factory is None:
        return kinds

    def eager(make: Callable[[], asyncio.AbstractEventLoop]) -> Callable[[], asyncio.AbstractEventLoop]:
        def make_eager() -> asyncio.AbstractEventLoop:
            loop = make()
            loop.set_task_factory(factory)
            return loop

        return make_eager

    eagers = {f"{name}, eager": eager(make) for name, make in kinds.items()}
    return kinds | {name: make for name, make in eagers.items() if _works(make)}


def _works(make: Callable[[], asyncio.AbstractEventLoop]) -> bool:
    """Whether the loop can do with the factory: some versions of uvloop and Python do not fit each other there."""
    loop = make()
    turn = asyncio.sleep(0)
    try:
        loop.run_until_complete(turn)
    except TypeError:
        turn.close()
        return False
    finally:
        loop.close()
    return True


KINDS = loop_kinds()


class Stage:
    """A broker, one consumer, and a handler that is where the test wants it when the run ends."""

    def __init__(self, moment: str, isolation: Isolation, *, real_time: bool) -> None:
        self.moment = moment
        self.broker = InMemoryBroker()
        self.topic = "t"
        self.closing = 0.0
        """Seconds that each resource takes to close."""
        self.fails_to_open = False
        self.broker.create_topic("t", 2)
        self.broker.create_topic("out", 1)
        self.begun = 0
        self.ending = 0
        self.handled = 0
        self.open_resources = 0
        if moment == "producing":
            # Outputs that are never acknowledged take the producer's two seconds at the end.
            late = Fault(response_delay=0.05) if real_time else Fault(is_request_lost=True)
            self.broker.faults.always(Request.PRODUCE, late)
        for number in range(4):
            self.broker.append("t", b"%d" % number, partition=number % 2)
        self.client = InMemoryClient(self.broker, GROUP, session_timeout=2, heartbeat_interval=0.02)
        self.isolation = isolation
        self.timers: list[asyncio.TimerHandle] = []

    def consumer(self, **more: Unpack[OptionFields]) -> ParallelConsumer[Any, Any]:
        """With short deadlines, and a resource."""
        options = OptionFields(
            max_concurrency=8,
            commit_interval=0.02,
            commit_timeout=0.3,
            drain_timeout=0.1,
            isolation=self.isolation,
            failures=FailurePolicy(retry=RetryPolicy(first_delay=60)),
            resources={"it": self.resource, "other": self.resource},
            connect_timeout=0.5,
        )
        options.update(more)
        producer = InMemoryProducer(self.broker, request_timeout=0.3)
        return ParallelConsumer(self.topic, group_id=GROUP, client=self.client, producer=producer, **options)

    @asynccontextmanager
    async def resource(self) -> AsyncIterator[object]:
        await asyncio.sleep(0)
        if self.fails_to_open:
            raise ConnectionError("no such service")
        self.open_resources += 1
        try:
            yield object()
        finally:
            try:
                await asyncio.sleep(self.closing)
            finally:
                self.open_resources -= 1

    async def handle(self, record: Record) -> object:
        """What the records at hand do; ``fatal`` and ``poison`` come at the end."""
        if record.value == b"fatal":
            raise KeyboardInterrupt
        if record.value == b"poison":
            raise Reject("never")
        self.begun += 1
        try:
            return await self._be(record)
        finally:
            self.handled += 1

    async def _be(self, record: Record) -> object:
        match self.moment:
            case "suspended":
                await asyncio.sleep(0.05)
            case "hanging":
                await asyncio.Event().wait()
            case "ignoring":
                await _ignore_cancellation(_IGNORES)
            case "producing":
                return Outgoing("out", record.value)
            case "deferred":
                record.defer(60)
            case "parked":
                raise ValueError("later")
        return None

    def later(self, do: Callable[[], object]) -> None:
        """Amid what ends the run, if that takes so long."""
        self.timers.append(asyncio.get_running_loop().call_later(0.02, do))

    async def comes_to_it(self, run: asyncio.Task[BaseException | None]) -> None:
        """Until the four records are where the moment says."""
        async with asyncio.timeout(_SOON):
            while self.begun < 4 or (self.moment == "idle" and not self._all_committed()):
                assert not run.done(), run.result()
                await asyncio.sleep(0.001)

    def _all_committed(self) -> bool:
        return sum(committed.offset for committed in self.broker.group(GROUP).offsets.values()) == 4


async def _ignore_cancellation(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while (left := until - loop.time()) > 0:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(left)


async def live(consumer: ParallelConsumer[Any, Any], stage: Stage) -> BaseException | None:
    """Open, run, close; what it ended with, for a task must not let KeyboardInterrupt through."""
    try:
        async with consumer:
            await consumer.run(stage.handle)  # type: ignore[arg-type]  # of many kinds
    except BaseException as error:
        return error
    return None


# -- the ends of a run


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
    async with asyncio.timeout(_SOON):
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
    """The patience with a record has ended, and the policy says stop."""
    error = await run_and(stage, lambda consumer, task: stage.broker.append("t", b"poison"))
    assert isinstance(error, RecordStopped)


async def lost(stage: Stage) -> None:
    """The group throws the member out; it comes again, and is stopped then."""
    consumer = stage.consumer()
    task = asyncio.ensure_future(live(consumer, stage))
    await stage.comes_to_it(task)
    group = stage.broker.group(GROUP)
    [member] = group.members
    stage.broker.expire_session(GROUP, member, asyncio.get_running_loop().time())
    async with asyncio.timeout(_SOON):
        while not group.members or not consumer.stats().partitions:
            await asyncio.sleep(0.001)
    consumer.stop()
    async with asyncio.timeout(_SOON):
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
    assert isinstance(await live(stage.consumer(), stage), NotAuthorized)


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


# -- what must be true then


def nothing_is_left(kind: str, scenario: Callable[[], Stage], play: Callable[[Stage], object]) -> None:
    """Play the scenario on a loop of this kind and look."""
    KINDS[kind]().close()  # what a kind of loop opens once and for all
    gc.collect()  # of tests that have failed
    before = threads_and_files()
    uncaught: list[str] = []
    with asyncio.Runner(loop_factory=KINDS[kind]) as runner:
        loop = runner.get_loop()
        loop.set_exception_handler(lambda _, context: uncaught.append(str(context)))

        async def main() -> None:
            stage = scenario()
            await play(stage)  # type: ignore[misc]
            for timer in stage.timers:
                timer.cancel()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            if stage.moment == "ignoring":  # it is left behind, and named; when it ends, all of it is gone
                assert len(left) <= 2 * stage.begun, left
                async with asyncio.timeout(_SOON):
                    while stage.handled < stage.begun:
                        await asyncio.sleep(0.01)
                await asyncio.sleep(0.03)
                left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left
            if isinstance(loop, RecordingLoop):
                assert not loop.timers()
            assert not stage.broker.group(GROUP).members
            assert not stage.broker.nodes.connections(1)
            assert not stage.open_resources

        runner.run(main())
    gc.collect()  # what nobody has caught is told when it is forgotten
    assert not uncaught
    assert threads_and_files() == before


def threads_and_files() -> tuple[int, int]:
    """How many there are."""
    return threading.active_count(), psutil.Process().num_fds()


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
REAL_MOMENTS = ("suspended", "hanging", "producing")
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
MOMENTS = ("idle", "suspended", "hanging", "ignoring", "producing", "deferred", "parked")


CASES = [
    pytest.param(kind, ending, moment)
    for kind in KINDS
    for ending in ENDS
    for moment in (MOMENTS if kind.startswith("virtual") else REAL_MOMENTS)
]


@pytest.mark.parametrize(("kind", "ending", "moment"), CASES)
def test_nothing_is_left_when_a_run_ends(kind: str, ending: str, moment: str) -> None:
    """Whatever ends it, and wherever its handlers are then."""
    real_time = not kind.startswith("virtual")
    isolations: list[Isolation] = ["context"] if real_time else ["context", "task"]
    for isolation in isolations:
        nothing_is_left(kind, partial(Stage, moment, isolation, real_time=real_time), ENDS[ending])


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_when_opening_fails(kind: str, opening: str) -> None:
    """What was opened before is closed."""
    nothing_is_left(kind, partial(Stage, "idle", "context", real_time=True), OPENINGS[opening])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("virtual")])
def test_nothing_is_left_of_connections_to_kafka(kind: str) -> None:
    """No socket of the real client and producer either, where nobody listens."""

    async def connect(stage: Stage) -> None:
        consumer = ParallelConsumer("t", bootstrap_servers="127.0.0.1:1", group_id=GROUP, connect_timeout=0.3)
        assert isinstance(await live(consumer, stage), BrokerUnreachable)

    nothing_is_left(kind, partial(Stage, "idle", "context", real_time=True), connect)


SIGNALLED = """
import asyncio, sys
from aioparallel.testing.memory import Request
from tests.unit.test_nothing_left import Stage

class Runner(asyncio.Runner):
    def close(self):
        if self.get_loop().is_closed():
            return
        left = [task.get_name() for task in asyncio.all_tasks(self.get_loop())]
        print("left", left, stage.open_resources, list(stage.broker.group("g").members), flush=True)
        super().close()

asyncio.Runner = Runner
stage = Stage(sys.argv[1], "context", real_time=True)
began = 0

async def handle(record):
    global began
    began += 1
    if began == 4:
        print("begun", flush=True)
    return await stage.handle(record)

stage.consumer(drain_timeout=float(sys.argv[2])).run_sync(handle)
print("ended", flush=True)
"""


@pytest.mark.parametrize(("moment", "signals"), [*((moment, 1) for moment in REAL_MOMENTS), ("hanging", 2)])
def test_nothing_is_left_after_signals(moment: str, signals: int) -> None:
    """run_sync() in a process of its own: the first SIGINT drains, the second does not wait."""
    drain = 0.1 if signals == 1 else 30.0
    command = [sys.executable, "-X", "dev", "-c", SIGNALLED, moment, str(drain)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n", child.communicate(timeout=_SOON)
        for _ in range(signals):
            child.send_signal(signal.SIGINT)
            time.sleep(0.1)  # two at once may be heard as one
        out, error = child.communicate(timeout=_SOON)
    assert out.splitlines() == ["left [] 0 []", "ended"], error
    assert child.returncode == 0
    assert "Error" not in error
    assert "Warning" not in error


@pytest.mark.parametrize("moment", ["idle", "suspended", "producing"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_at_the_end_offsets(kind: str, moment: str) -> None:
    """Whether the last handlers never suspend, do so, or wait for their outputs."""
    nothing_is_left(kind, lambda: Stage(moment, "context", real_time=True), end)
