"""A consumer service from start to end: failures at each step, restarts, stops and cancellations."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from aioparallel import FailurePolicy, ParallelConsumer, Record, RetryPolicy
from aioparallel.errors import ConfigurationError, ConsumerStateError, RecordStopped, TopicNotFound
from aioparallel.observe.health import ProblemKind
from aioparallel.testing.memory import InMemoryBroker
from aioparallel.web import Consumers, ConsumerService, RestartPolicy
from aioparallel.web import service as service_module
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
    monkeypatch.setattr(service_module, "end_application", lambda: calls.append(None))
    return calls


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
    assert errors(caplog) == ["service_failed"]


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
