"""What is around a handler works in a share group as elsewhere: threads, middleware, resources, extensions, metrics."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from aioparallel import Extension, Record, in_threads, resource
from aioparallel.config.handling import CallNext
from aioparallel.observe.metrics import PrometheusMetrics
from aioparallel.web import ConsumerService
from tests.support.share_group import FakeShareClient, ShareGroup
from tests.unit.queues.share.conftest import Handler, consumer_of, running, until

VALUES = [b"%d" % number for number in range(10)]


def test_a_plain_function_in_threads() -> None:
    """On a real event loop: threads need real time."""
    threads = set[int]()

    def handle(record: Record) -> None:
        threads.add(threading.get_ident())

    async def run() -> ShareGroup:
        group = ShareGroup()
        group.produce(VALUES)
        async with running(consumer_of(group), in_threads(handle)):
            await until(lambda: group.states() == ["accepted"] * 10, 30)
        return group

    assert set(asyncio.run(run()).counts()) == {1}
    assert threading.get_ident() not in threads


async def test_middleware_and_resources(group: ShareGroup) -> None:
    """Middleware gets the record, and a resource is open while handlers run."""
    group.produce(VALUES)
    seen: list[Any] = []

    @asynccontextmanager
    async def opened() -> Any:
        yield "open"

    async def middleware(record: Record, call_next: CallNext) -> object:
        seen.append((record.value, record.delivery_count, resource("it")))
        return await call_next(record)

    async with running(consumer_of(group, middleware=[middleware], resources={"it": opened}), Handler()):
        await until(lambda: group.states() == ["accepted"] * 10)
    assert sorted(seen) == [(value, 1, "open") for value in VALUES]


class Listening(Extension):
    """Notes what the engine reports."""

    def __init__(self) -> None:
        self.attempts = 0
        self.outcomes: list[str] = []
        self.failures: list[str] = []
        self.begun: list[str] = []

    async def start(self) -> None:
        self.begun.append("start")

    async def finish(self) -> None:
        self.begun.append("finish")

    async def stop(self) -> None:
        self.begun.append("stop")

    def attempts_ended(
        self, records: Sequence[Record[Any, Any]], calls: int, began: float, seconds: float, error: BaseException | None
    ) -> None:
        self.attempts += calls

    def attempt_failed(self, record: Record[Any, Any], error: BaseException, follows: str, delay: float | None) -> None:
        self.failures.append(follows)

    def records_ended(self, records: Sequence[Record[Any, Any]], outcome: str) -> None:
        self.outcomes += [outcome] * len(records)


async def test_extensions_hear_of_attempts_and_ends(group: ShareGroup) -> None:
    """As in a consumer group."""
    group.produce([b"a", b"b"])
    listening = Listening()

    def does(record: Record) -> None:
        if record.value == b"a" and record.delivery_count == 1:
            raise ValueError

    async with running(consumer_of(group, extensions=[listening]), Handler(does)):
        await until(lambda: group.states() == ["accepted"] * 2)
    assert (listening.attempts, listening.failures) == (3, ["released"])
    assert sorted(listening.outcomes) == ["released", "succeeded", "succeeded"]
    assert listening.begun == ["start", "finish", "stop"]


async def test_metrics(group: ShareGroup) -> None:
    """Acknowledgements are counted by type."""
    group.produce(VALUES)
    registry = CollectorRegistry()
    async with running(consumer_of(group, extensions=[PrometheusMetrics(registry=registry)]), Handler()) as consumer:
        await until(lambda: consumer.stats().share.accepted == 10)
        text = generate_latest(registry).decode()
    assert 'type="accept"' in text
    assert any(
        line.startswith("aioparallel_share_acknowledged_total") and "accept" in line and line.endswith(" 10.0")
        for line in text.splitlines()
    )


async def test_a_task_for_each_record(group: ShareGroup) -> None:
    """A lost lock cancels the handler's task."""
    group.produce([b"a"])
    group.may_renew, group.limit = False, 1
    tasks = set[Any]()
    client = FakeShareClient(group)

    async def handle(record: Record) -> None:
        tasks.add(asyncio.current_task())
        await asyncio.sleep(100)

    async with running(consumer_of(group, client=client, isolation="task"), handle):
        await until(lambda: group.states() == ["given up"])
    assert [task.cancelled() for task in tasks] == [True]


async def test_deferred_records(group: ShareGroup) -> None:
    """A record that is completed later keeps its lock until then."""
    group.produce([b"a"])
    handles: list[Callable[[], bool]] = []

    async def handle(record: Record) -> None:
        handles.append(record.defer(1_000).complete)

    async with running(consumer_of(group), handle):
        await asyncio.sleep(100)
        assert group.states() == ["acquired"]
        handles[0]()
        await until(lambda: group.states() == ["accepted"])
    assert group.counts() == [1]


async def test_in_a_web_application(group: ShareGroup) -> None:
    """It is a service like any other consumer."""
    group.produce(VALUES)
    service = ConsumerService(lambda: consumer_of(group), Handler())
    async with service:
        await until(lambda: group.states() == ["accepted"] * 10)
        assert service.health().ready
