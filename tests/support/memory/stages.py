"""Where runs of all kinds end: a broker in memory, a consumer on it, four records
whose handlers are where one wants them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, Unpack

import uvloop

from aioparallel.config.options import OptionFields
from aioparallel.config.policies import FailurePolicy, RetryPolicy
from aioparallel.consumer import ParallelConsumer
from aioparallel.records.errors import Reject
from aioparallel.records.record import Outgoing, Record
from aioparallel.testing.memory import Fault, InMemoryBroker, InMemoryClient, InMemoryProducer, Request
from tests.simulation.loop import RecordingLoop

GROUP = "g"
Isolation = Literal["context", "task"]
SOON = 20.0  # seconds that anything here may take, at most
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
        async with asyncio.timeout(SOON):
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
