"""A consumer service from start to end: failures at each step, restarts, stops and cancellations."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from aioparallel import FailurePolicy, ParallelConsumer, Record, RetryPolicy
from aioparallel.observe.health import ProblemKind
from aioparallel.records.errors import (
    ClusterChanged,
    ConfigurationError,
    ConsumerStateError,
    InstanceFenced,
    RecordStopped,
    TopicNotFound,
    WorkCancelled,
)
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient
from aioparallel.web import Consumers, ConsumerService, RestartPolicy, answers
from aioparallel.web import service as service_module
from aioparallel.web.service import end_application
from tests.support.memory.consuming import Seen, committed, consumer_of, produce
from tests.support.waiting import until

STRICT = FailurePolicy(retry=RetryPolicy(max_attempts=1))
QUICK = RestartPolicy(first_delay=1, max_delay=100)


def factory(broker: InMemoryBroker, topic: str = "t") -> Callable[[], ParallelConsumer[Any, Any]]:
    return lambda: consumer_of(broker, topic, failures=STRICT)


class Breaks:
    """Fails for the values in it, handles all others."""

    def __init__(self, *values: bytes) -> None:
        self.values = set(values)
        self.calls = 0
        self.seen: list[bytes | None] = []

    async def __call__(self, record: Record) -> None:
        self.calls += 1
        if record.value in self.values:
            raise ValueError("broken")
        self.seen.append(record.value)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(getattr(one, "action", one)) for one in caplog.records if one.levelno >= logging.ERROR]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """How often the application was asked to end."""
    calls: list[None] = []

    def end() -> bool:
        calls.append(None)
        return True

    monkeypatch.setattr(service_module, "end_application", end)
    return calls


@pytest.fixture
def server() -> Iterator[list[int]]:
    """The signals that a server has got, which handles them as uvicorn does."""
    got: list[int] = []
    there = {number: signal.signal(number, lambda number, _: got.append(number)) for number in (2, 15)}
    yield got
    for number, handler in there.items():
        signal.signal(number, handler)


async def test_it_runs_for_the_length_of_the_block(broker: InMemoryBroker) -> None:
    """Records are handled and committed; before and after it is neither ready nor dead; it can be entered again."""
    seen = Seen()
    service = ConsumerService(factory(broker), seen)
    for count in (10, 20):
        assert service.health().live
        assert not service.health().ready
        async with service:
            produce(broker, [b"k"] * 10)
            await until(lambda: service.health().ready)
            await until(lambda count=count: len(seen.ended) == count)  # type: ignore[misc]
            assert service.consumer.health().ready
            with pytest.raises(ConsumerStateError, match="running already"):
                await service.__aenter__()
            assert service.health().ready
        assert committed(broker) == count
        assert not service.health().ready
        assert service.health().live
        assert service.stats().succeeded == 10


async def test_what_is_in_flight_ends_before_the_block_does(broker: InMemoryBroker) -> None:
    """And is committed."""
    seen = Seen(0.5)
    async with ConsumerService(factory(broker), seen):
        produce(broker, [b"a", b"b"])
        await until(lambda: len(seen.started) == 2)
    assert len(seen.ended) == 2
    assert committed(broker) == 2


async def test_a_failure_at_the_start_is_raised(broker: InMemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    """As it is, and logged by whoever gets it: a missing topic, a factory that fails, a handler for another topic."""
    with pytest.raises(TopicNotFound):
        async with ConsumerService(factory(broker, "missing"), Seen()):
            pass

    def broken() -> ParallelConsumer:
        raise KeyError("SERVERS")

    for restart in (None, QUICK):
        with pytest.raises(KeyError, match="SERVERS"):
            async with ConsumerService(broken, Seen(), restart=restart):
                pass
    assert errors(caplog) == []
    service = ConsumerService(factory(broker), {"other": Seen()})
    with pytest.raises(ConfigurationError, match="has none for topic t"):
        async with service:
            pass
    assert not broker.group("g").members
    consumer = consumer_of(broker)
    async with ConsumerService(lambda: consumer, Seen()):
        pass
    with pytest.raises(ConsumerStateError):
        async with ConsumerService(lambda: consumer, Seen(), restart=QUICK) as service:
            await until(lambda: service.failure)
            assert service.failure is not None
            raise service.failure


async def test_options_are_checked_when_it_is_made(broker: InMemoryBroker) -> None:
    """A consumer in place of a factory, what is no handler, wrong names and policies."""
    make = factory(broker)
    cases: list[tuple[Any, Any, dict[str, Any]]] = [
        (consumer_of(broker), Seen(), {}),
        (make, print, {}),
        (make, Seen(), {"name": ""}),
        (make, Seen(), {"restart": 3}),
        (make, Seen(), {"on_failure": "stop"}),
    ]
    for factory_, handler, options in cases:
        with pytest.raises(ConfigurationError):
            ConsumerService(factory_, handler, **options)
    for options in ({"first_delay": -1}, {"max_delay": "1"}, {"max_restarts": 0}, {"reset_after": 1e9}):
        with pytest.raises(ConfigurationError):
            RestartPolicy(**options)
    with pytest.raises(ConfigurationError, match="two consumers"):
        Consumers(ConsumerService(make, Seen()), ConsumerService(make, Seen()))


async def test_a_failed_run_is_neither_ready_nor_live(
    broker: InMemoryBroker, caplog: pytest.LogCaptureFixture, ended: list[None]
) -> None:
    """One line at ERROR; the block goes on, and its own exceptions pass."""
    service = ConsumerService(factory(broker), Breaks(b"0"))
    with pytest.raises(ZeroDivisionError):
        async with service:
            produce(broker, [b"k"])
            await until(lambda: service.failure)
            assert isinstance(service.failure, RecordStopped)
            health = service.health()
            assert (health.live, health.ready) == (False, False)
            assert [one.kind for one in health.problems] == [ProblemKind.FAILED]
            raise ZeroDivisionError
    assert errors(caplog) == ["run_failed"]
    assert ended == []


async def test_the_application_ends_if_asked(broker: InMemoryBroker, ended: list[None]) -> None:
    """Once, after the last restart."""
    restart = RestartPolicy(first_delay=1, max_restarts=2)
    service = ConsumerService(factory(broker), Breaks(b"0"), restart=restart, on_failure="exit")
    async with service:
        produce(broker, [b"k"])
        await until(lambda: ended)
        assert service.ended_application
        assert service.restarts == 2


async def test_sys_exit_in_a_handler_ends_the_application(
    broker: InMemoryBroker, ended: list[None], caplog: pytest.LogCaptureFixture
) -> None:
    """As its server ends it, whatever ``on_failure`` says, and one line tells why."""

    async def leave(record: Record) -> None:
        raise SystemExit(3)

    async with ConsumerService(factory(broker), leave, restart=QUICK) as service:
        produce(broker, [b"k"])
        await until(lambda: ended)
        assert not service.health().live
    assert errors(caplog) == ["handler_exit", "service_failed"]


async def test_it_is_started_again(broker: InMemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    """After delays that double; live all the while, ready in the end; one line at ERROR for each failure."""
    handler = Breaks(b"0")
    service = ConsumerService(factory(broker), handler, restart=QUICK)
    live: list[bool] = []
    async with service:
        produce(broker, [b"a", b"b", b"c"])
        loop = asyncio.get_running_loop()
        began = loop.time()

        def failed_three_times() -> bool:
            live.append(service.health().live)
            return service.restarts == 3

        await until(failed_three_times)
        took = loop.time() - began
        assert 0.9 + 1.8 <= took < 1.1 + 2.2 + 3
        assert [one.kind for one in service.health().problems] == [ProblemKind.RESTARTING]
        assert not service.health().ready
        handler.values.clear()
        await until(lambda: committed(broker) == 3)
        await until(lambda: service.health().ready)
        assert all(live)
    assert errors(caplog) == ["run_failed"] * 3
    assert len([one for one in caplog.records if getattr(one, "action", "") == "service_restart"]) == 3


async def test_a_long_run_resets_the_delays(broker: InMemoryBroker) -> None:
    """What fails an hour later is a new failure, and has all restarts again."""
    handler = Breaks(b"0")
    restart = RestartPolicy(first_delay=1, max_restarts=1, reset_after=100)
    async with ConsumerService(factory(broker), handler, restart=restart) as service:
        for number in range(3):
            handler.values = {b"0"}
            produce(broker, [b"a"])
            await until(lambda number=number: service.restarts == number + 1)  # type: ignore[misc]
            handler.values = set()
            await until(lambda: service.health().ready)
            await asyncio.sleep(101)
        handler.values = {b"0"}
        produce(broker, [b"a"])
        await until(lambda: service.restarts == 4)
        assert service.failure is None
        await until(lambda: service.failure)


async def test_with_restarts_it_waits_for_what_is_not_there_yet(
    broker: InMemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The block begins at once, not ready, and it runs when the topic has come; each try that fails is one ERROR."""
    seen = Seen()
    async with ConsumerService(factory(broker, "later"), seen, restart=QUICK) as service:
        await until(lambda: service.restarts == 2)
        assert service.health().live
        assert not service.health().ready
        with pytest.raises(ConsumerStateError):
            service.stats()
        broker.create_topic("later", 1)
        produce(broker, [b"k"], topic="later")
        await until(lambda: seen.ended)
        await until(lambda: service.health().ready)
    assert errors(caplog) == ["service_failed"] * 2


@pytest.mark.parametrize("moment", ["connecting", "waiting", "running"])
async def test_it_ends_quickly_wherever_it_stands(
    broker: InMemoryBroker, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it connects, between restarts, and while it runs: leaving does not wait for that."""
    if moment == "connecting":
        monkeypatch.setattr("aioparallel.testing.memory.InMemoryClient.start", lambda *_: asyncio.sleep(3_000))
    topic = "missing" if moment == "waiting" else "t"
    service = ConsumerService(factory(broker, topic), Seen(), restart=RestartPolicy(first_delay=3_600, max_delay=3_600))
    loop = asyncio.get_running_loop()
    async with service:
        await asyncio.sleep(5)
        left = loop.time()
    assert loop.time() - left < 10
    assert service.failure is None
    assert not [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]


async def test_a_start_that_is_cancelled_ends(broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quickly, with nothing left; the cancellation goes on."""
    monkeypatch.setattr("aioparallel.testing.memory.InMemoryClient.start", lambda *_: asyncio.sleep(3_000))
    service = ConsumerService(factory(broker), Seen())
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1), service:
            pytest.fail("it cannot start")
    assert loop.time() - began < 10
    assert not [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]


async def test_a_cancelled_end_waits_for_handlers_no_longer(broker: InMemoryBroker) -> None:
    """The group is left all the same; the cancellation goes on."""
    seen = Seen(0.9)
    service = ConsumerService(factory(broker), seen)
    await service.__aenter__()
    produce(broker, [b"k"])
    await until(lambda: seen.started)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await service.__aexit__(None, None, None)
    assert not seen.ended
    assert not broker.group("g").members
    assert not [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]


async def test_of_several_those_before_the_one_that_fails_end(broker: InMemoryBroker) -> None:
    """And left together, they drain at once."""
    seen = Seen(0.9)
    good = ConsumerService(factory(broker), seen, name="good")
    with pytest.raises(TopicNotFound):
        async with Consumers(good, ConsumerService(factory(broker, "missing"), Seen(), name="bad")):
            pass
    assert not broker.group("g").members
    broker.create_topic("u", 1)
    loop = asyncio.get_running_loop()
    consumers = Consumers(good, ConsumerService(factory(broker, "u"), seen, name="other"))
    async with consumers:
        produce(broker, [b"k"])
        produce(broker, [b"k"], topic="u")
        await until(lambda: len(seen.started) == 2)
        left = loop.time()
    assert len(seen.ended) == 2
    assert loop.time() - left < 1.5


def two(broker: InMemoryBroker, seen: Seen) -> Consumers:
    """Of a topic each."""
    broker.create_topic("u", 1)
    return Consumers(*(ConsumerService(factory(broker, topic), seen, name=topic) for topic in ("t", "u")))


@pytest.mark.parametrize("how", ["signal", "cancelled"])
async def test_several_wait_for_handlers_no_longer_together(
    broker: InMemoryBroker, server: list[int], how: str
) -> None:
    """At Ctrl-C, or cancelled, while they end: none of them drains on."""
    seen = Seen(30)
    consumers = two(broker, seen)
    await consumers.__aenter__()
    await until(lambda: all(one.health().ready for one in consumers.values()))
    for topic in ("t", "u"):
        produce(broker, [b"k"] * 3, topic=topic)
    await until(lambda: len(seen.started) == 2)
    loop = asyncio.get_running_loop()
    left = loop.time()
    leaving = asyncio.create_task(consumers.__aexit__(None, None, None))
    await asyncio.sleep(0.1)
    if how == "signal":
        signal.raise_signal(signal.SIGINT)
        assert server == [signal.SIGINT]
    else:
        leaving.cancel()
    await asyncio.wait([leaving])
    assert leaving.cancelled() == (how == "cancelled")
    assert not seen.ended
    assert loop.time() - left < 0.5
    assert not [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]


async def test_a_signal_ends_the_start_of_several(
    broker: InMemoryBroker, server: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that have not begun do not begin."""
    monkeypatch.setattr("aioparallel.testing.memory.InMemoryClient.start", lambda *_: asyncio.sleep(3_000))
    consumers = two(broker, Seen())
    loop = asyncio.get_running_loop()
    began = loop.time()
    loop.call_later(1, signal.raise_signal, signal.SIGTERM)
    async with consumers:
        assert [one.health().problems for one in consumers.values()] == [(), ()]
    assert loop.time() - began < 2
    assert server == [signal.SIGTERM]
    assert not [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]


@dataclasses.dataclass(frozen=True)
class Person:
    name: str


@pytest.mark.parametrize(
    "order_by", [None, lambda r: r.key.decode(), lambda r: (r.key.decode(), 1), lambda r: Person(r.key.decode())]
)
async def test_statistics_show_no_keys(broker: InMemoryBroker, order_by: Callable[[Record], object] | None) -> None:
    """Of whatever type they are."""
    make = lambda: consumer_of(broker, "t", order_by=order_by)  # noqa: E731
    async with ConsumerService(make, Seen(0.9)) as service:
        produce(broker, [b"Ada Lovelace"] * 3)
        await until(lambda: service.health().ready and service.stats().longest_lane)
        body = json.dumps(answers.stats({"c": service}).body)
        key = json.loads(body)["c"]["longest_lane"]["key"]
        assert "Lovelace" not in body
        assert len(key) == 16
        int(key, 16)


def test_it_may_be_asked_in_any_thread_and_after_its_loop_has_ended() -> None:
    """Routes that are plain functions run in threads. Its loop may have ended before it: it can be entered again."""

    async def abandoned() -> ConsumerService[Any, Any]:
        broker = InMemoryBroker()
        broker.create_topic("t", 1)
        service = ConsumerService(factory(broker), Seen())
        await service.__aenter__()
        await until(lambda: service.health().ready)
        for one in (service, service.consumer):
            assert (await asyncio.to_thread(one.health)).ready
            assert (await asyncio.to_thread(one.stats)).admitted == 0
        return service

    service = asyncio.run(abandoned())
    for one in (service, service.consumer):
        assert not one.health().ready
        assert one.stats().admitted == 0

    async def again() -> None:
        async with service:
            await until(lambda: service.health().ready)

    asyncio.run(again())


@pytest.mark.parametrize("handled", [(), (2,), (15,), (2, 15)])
async def test_only_who_handles_a_signal_gets_one(handled: tuple[int, ...]) -> None:
    """What nobody handles would end a test, or a notebook, in which something is tried out."""
    got: list[int] = []
    defaults: dict[int, Any] = {2: signal.default_int_handler, 15: signal.SIG_DFL}
    there = {
        number: signal.signal(number, (lambda n, _: got.append(n)) if number in handled else default)
        for number, default in defaults.items()
    }
    try:
        assert end_application() == bool(handled)
        await asyncio.sleep(0.1)
        assert got == list(handled[-1:])
    finally:
        for number, handler in there.items():
            signal.signal(number, handler)


async def test_stopped_before_it_is_started_again_it_says_so_no_more(broker: InMemoryBroker) -> None:
    """Nothing will start it."""
    service = ConsumerService(factory(broker, "missing"), Seen(), restart=QUICK)
    async with service:
        await until(lambda: service.health().problems)
        service.stop()
        assert service.health().problems == ()
    assert service.health().problems == ()


async def test_what_fails_at_the_close_is_told(
    broker: InMemoryBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line at ERROR; what was stopped on purpose is not started again."""

    async def refused(*_: object) -> None:
        raise OSError("the disk is full")

    service = ConsumerService(factory(broker), Seen(), restart=QUICK)
    async with service:
        await until(lambda: service.health().ready)
        monkeypatch.setattr(service.consumer, "_leave", refused)
        service.consumer.stop()
        await until(lambda: service.failure)
        await asyncio.sleep(10)
        assert service.restarts == 0
        assert not service.health().live
    assert errors(caplog) == ["service_failed"]
    assert "could not be closed with OSError: the disk is full" in caplog.text


async def test_a_task_that_somebody_cancels_is_told(broker: InMemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    """And the block ends as ever."""
    async with ConsumerService(factory(broker), Seen()) as service:
        await until(lambda: service.health().ready)
        for task in asyncio.all_tasks():
            if task.get_name().startswith("aioparallel-service"):
                task.cancel()
        await until(lambda: service.failure)
        assert [one.kind for one in service.health().problems] == [ProblemKind.FAILED]
    assert errors(caplog)[-1:] == ["service_failed"]


async def test_a_factory_that_exits(broker: InMemoryBroker, ended: list[None]) -> None:
    """At the start it goes on to who starts it; later the application ends."""
    calls = 0

    def make() -> ParallelConsumer[Any, Any]:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise SystemExit(3)
        return consumer_of(broker, "missing")

    async with ConsumerService(make, Seen(), restart=QUICK) as service:
        await until(lambda: ended)
        assert isinstance(service.failure, SystemExit)
    with pytest.raises(SystemExit):
        await ConsumerService(make, Seen()).__aenter__()


@pytest.mark.parametrize(
    "error", [ConsumerStateError("its task was cancelled"), ClusterChanged("kafka:9092", "a", "b")], ids=repr
)
async def test_what_no_restart_mends_is_dead_at_once(broker: InMemoryBroker, error: Exception) -> None:
    """Not only when it has drained."""
    consumers = []

    def make() -> ParallelConsumer[Any, Any]:
        consumers.append(consumer_of(broker, "t"))
        return consumers[-1]

    seen = Seen(0.9)
    async with ConsumerService(make, seen, restart=QUICK) as service:
        produce(broker, [b"k"])
        await until(lambda: seen.started)
        consumers[-1]._state.fail(error)
        await until(lambda: not service.health().live, 0.5)
        assert not seen.ended


class MuteError(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise KeyError("no such text")

    __repr__ = __str__


async def test_an_error_without_a_text_is_a_failure_like_others(
    broker: InMemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told, started again, and in the end neither ready nor live."""

    async def handle(record: Record) -> None:
        raise MuteError

    produce(broker, [b"a"])
    restart = RestartPolicy(first_delay=1, max_delay=1, max_restarts=1)
    async with ConsumerService(factory(broker), handle, restart=restart) as service:
        await until(lambda: service.restarts == 1)
        await until(lambda: service.failure)
        health = service.health()
        assert not health.live
        assert "MuteError" in health.problems[0].message


def opening_at_the_second_try(
    broker: InMemoryBroker, fail: Callable[[], Awaitable[None]]
) -> Callable[[], ParallelConsumer[Any, Any]]:
    """Consumers of one resource, which ``fail`` keeps from opening the first time."""
    tries = itertools.count()

    @contextlib.asynccontextmanager
    async def resource() -> AsyncIterator[None]:
        if not next(tries):
            await fail()
        yield

    return lambda: consumer_of(broker, "t", resources={"pool": resource})


async def test_a_start_that_raises_a_group_of_errors_is_tried_again(broker: InMemoryBroker) -> None:
    """Of a resource's task group, say, which holds more than Exceptions."""

    async def fail() -> None:
        raise BaseExceptionGroup("both", [ValueError("one"), GeneratorExit("two")])

    async with ConsumerService(opening_at_the_second_try(broker, fail), Seen(), restart=QUICK) as service:
        await until(lambda: service.health().ready)
        assert service.restarts == 1


async def test_a_resource_that_somebody_else_cancels_is_no_stop(broker: InMemoryBroker) -> None:
    """The start has failed: it is told, and tried again."""

    async def fail() -> None:
        shared = asyncio.get_running_loop().create_future()
        shared.cancel()
        await shared

    with pytest.raises(WorkCancelled, match="opening resource 'pool'"):
        await ConsumerService(opening_at_the_second_try(broker, fail), Seen()).__aenter__()
    async with ConsumerService(opening_at_the_second_try(broker, fail), Seen(), restart=QUICK) as service:
        await until(lambda: service.health().ready)
        assert service.restarts == 1


async def test_a_run_that_ends_as_if_it_were_cancelled_has_failed(
    broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has cancelled it, so it is started again like any other."""
    runs = 0

    async def run(self: object, handler: object) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise asyncio.CancelledError
        await asyncio.sleep(3_600)

    monkeypatch.setattr(ParallelConsumer, "_run_engine", lambda self, handler, output_sink: run(self, handler))
    async with ConsumerService(factory(broker), Seen(), restart=QUICK) as service:
        await until(lambda: runs == 2)
        assert service.restarts == 1


async def test_one_whose_place_another_process_has_stays_ended(broker: InMemoryBroker) -> None:
    """Started again it would take the place back, and be thrown out in turn: it is dead at once, and says why."""

    def make() -> ParallelConsumer[Any, Any]:
        client = InMemoryClient(broker, "g", group_instance_id="one")
        return ParallelConsumer("t", group_id="g", client=client)

    first, second = Seen(), Seen()
    async with ConsumerService(make, first, restart=QUICK) as fenced:
        await until(lambda: fenced.health().ready)
        async with ConsumerService(make, second, restart=QUICK) as staying:
            await until(lambda: fenced.failure)
            assert isinstance(fenced.failure, InstanceFenced)
            [problem] = fenced.health().problems
            assert problem.kind is ProblemKind.FAILED
            assert "group_instance_id 'one'" in problem.message
            assert not fenced.health().live
            await asyncio.sleep(3_600)
            assert fenced.restarts == staying.restarts == 0
            assert staying.health().healthy
            produce(broker, [b"k"] * 10)
            await until(lambda: committed(broker) == 10)
    assert (len(first.ended), len(second.ended)) == (0, 10)


async def test_a_handler_that_a_failed_run_has_left_behind_is_a_problem(broker: InMemoryBroker) -> None:
    """Of the run that follows, too, until it ends; that one is ready all the same."""
    over = asyncio.Event()

    async def handle(record: Record) -> None:
        if record.value == b"0":
            while not over.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await over.wait()
        else:
            raise ValueError

    made = iter([factory(broker), factory(broker, "other")])
    broker.create_topic("other", 1)
    produce(broker, [b"a", b"b"])
    async with ConsumerService(lambda: next(made)(), handle, restart=QUICK) as service:
        await until(lambda: service.restarts == 1 and service.health().ready)
        kinds = [one.kind for one in service.health().problems]
        assert kinds == [ProblemKind.HANDLER_STUCK]
        assert "t-0 offset 0: the handler still runs" in service.health().problems[0].message
        over.set()
        await until(lambda: not service.health().problems)
