"""stop(), pause() and resume() from other threads: they act on the event loop, and wake it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from aioparallel import ParallelConsumer
from aioparallel.queues.kmq import KmqConsumer, RedeliveryTracker
from aioparallel.queues.priority import PriorityConsumer
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient, InMemoryProducer
from aioparallel.web import ConsumerService
from tests.support.memory.consuming import Seen, consumer_of, produce
from tests.support.waiting import until

AnyConsumer = ParallelConsumer[Any, Any] | RedeliveryTracker


def run_in_debug_mode(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """The event loop refuses calls from other threads then, except for call_soon_threadsafe()."""
    with asyncio.Runner(debug=True, loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(main())


def broker_with(*topics: str) -> InMemoryBroker:
    broker = InMemoryBroker()
    for topic in topics:
        broker.create_topic(topic, 1)
    return broker


def plain() -> ParallelConsumer[Any, Any]:
    return consumer_of(broker_with("t"))


def kmq() -> KmqConsumer[Any, Any]:
    broker = broker_with("q", "q-markers", "q__undelivered")
    return KmqConsumer("q", group_id="g", client=InMemoryClient(broker, "g"), producer=InMemoryProducer(broker))


def tracker() -> RedeliveryTracker:
    broker = broker_with("q", "q-markers", "q__undelivered")
    client, producer = InMemoryClient(broker, "g"), InMemoryProducer(broker)
    return RedeliveryTracker("q", group_id="g", client=client, producer=producer)


def of_priorities() -> PriorityConsumer[Any, Any]:
    broker = broker_with("t-0", "t-1")
    clients = [InMemoryClient(broker, f"g-{priority}") for priority in range(2)]
    producer = InMemoryProducer(broker)
    return PriorityConsumer("t", priorities=2, group_id="g", clients=clients, producer=producer)


@pytest.mark.parametrize("make", [plain, kmq, tracker, of_priorities])
@pytest.mark.parametrize("drain", [True, False])
def test_stop(make: Callable[[], AnyConsumer], drain: bool) -> None:
    """The run returns."""

    async def main() -> None:
        async with asyncio.timeout(60), make() as consumer:
            if isinstance(consumer, RedeliveryTracker):
                run, stop = consumer.run(), consumer.stop
            else:
                run, stop = consumer.run(Seen()), partial(consumer.stop, drain)
            running = asyncio.create_task(run)
            await until(lambda: consumer.health().ready)
            await asyncio.to_thread(stop)
            await running

    run_in_debug_mode(main)


def test_a_stop_wakes_the_loop() -> None:
    """It was noticed when the next timer of something else came."""

    async def main() -> None:
        async with asyncio.timeout(60), plain() as consumer:
            running = asyncio.create_task(consumer.run(Seen()))
            await until(lambda: consumer.health().ready)
            threading.Thread(target=consumer.stop).start()
            await running

    run_in_debug_mode(main)


def test_pause_and_resume() -> None:
    """Calls of one thread act in their order."""

    async def main() -> None:
        broker, seen = broker_with("t"), Seen()
        async with asyncio.timeout(60), consumer_of(broker) as consumer:
            running = asyncio.create_task(consumer.run(seen))
            await until(lambda: consumer.health().ready)
            await asyncio.to_thread(consumer.pause)
            await until(lambda: consumer.stats().intake == "paused")
            produce(broker, [b"a"])
            await asyncio.sleep(0.05)
            assert not seen.started

            def several() -> None:
                consumer.resume()
                consumer.pause()
                consumer.resume()

            await asyncio.to_thread(several)
            await until(lambda: seen.ended)
            await asyncio.to_thread(consumer.stop)
            await running

    run_in_debug_mode(main)


def test_before_and_after_the_loop() -> None:
    """There is nothing to wake: it is done at once."""
    consumer = plain()
    thread = threading.Thread(target=consumer.stop)
    thread.start()
    thread.join()
    consumer.run_sync(Seen())
    consumer.stop()
    consumer.pause()
    consumer.resume()


def test_a_service() -> None:
    """Its routes may be plain functions, which run in threads."""

    async def main() -> None:
        async with asyncio.timeout(60), ConsumerService(plain, Seen()) as service:
            await asyncio.to_thread(service.consumer.pause)
            await until(lambda: service.stats().intake == "paused")
            await asyncio.to_thread(service.stop)
            await until(lambda: not service.health().ready)

    run_in_debug_mode(main)
