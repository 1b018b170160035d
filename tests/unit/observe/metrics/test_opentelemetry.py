"""What a reader of OpenTelemetry gets, from the start of a consumer to its end."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from aioparallel import ConfigurationError, FailurePolicy, HandlerTimeout, ParallelConsumer, Record, RetryPolicy
from aioparallel.observe.metrics import INSTRUMENTS, OpenTelemetryMetrics
from aioparallel.observe.metrics import opentelemetry as exporter
from aioparallel.testing.memory import InMemoryBroker
from tests.support.extensions import broker_of, consumer_of, nothing
from tests.support.waiting import until


class Reading:
    """One collection."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        self.metrics: dict[str, Any] = {}
        self.scopes = set()
        data = reader.get_metrics_data()
        for resource in () if data is None else data.resource_metrics:
            for scope in resource.scope_metrics:
                self.scopes.add((scope.scope.name, scope.scope.schema_url))
                self.metrics |= {metric.name: metric for metric in scope.metrics}

    def points(self, name: str, **attributes: object) -> list[Any]:
        """The points of a metric that have these attributes (a dot is written as two underscores)."""
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}
        points = self.metrics[name].data.data_points if name in self.metrics else []
        return [point for point in points if wanted.items() <= point.attributes.items()]

    def sum(self, name: str, **attributes: object) -> float:
        return math.fsum(point.value for point in self.points(name, **attributes))

    def count(self, name: str, **attributes: object) -> int:
        return sum(point.count for point in self.points(name, **attributes))


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def provider(reader: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(exporter, "_FRESH", -1.0)  # each reading has figures of its own
    provider = MeterProvider([reader])
    yield provider
    provider.shutdown()


def fill(broker: InMemoryBroker, count: int, partitions: int = 1) -> None:
    for number in range(count):
        key = b"key-%d" % (number % 20)
        broker.append("t", b"v", key=key, partition=number % partitions, timestamp=int(time.time() * 1000))


@asynccontextmanager
async def running(
    consumer: ParallelConsumer[Any, Any], handler: Callable[[Any], Awaitable[Any]] = nothing
) -> AsyncIterator[None]:
    async with consumer:
        task = asyncio.create_task(consumer.run(handler))
        await until(lambda: consumer.health().ready)
        yield
        consumer.stop()
        await task


async def test_names_of_the_semantic_conventions(reader: InMemoryMetricReader, provider: MeterProvider) -> None:
    """Messages, handler time and commit time have the names and attributes of the conventions for messaging."""
    broker, calls = broker_of(2), Counter[str]()
    fill(broker, 100, partitions=2)

    async def handle(record: Record) -> None:
        await asyncio.sleep(0)
        calls["all"] += 1
        if record.offset == 3:
            raise ValueError("no")

    policy = FailurePolicy(retry=RetryPolicy(first_delay=0.01, max_attempts=3), give_up="skip")
    consumer = consumer_of(broker, OpenTelemetryMetrics(meter_provider=provider), failures=policy)
    async with running(consumer, handle):
        await until(lambda: consumer.stats().ended == 100 and consumer.stats().partitions[0].committed == 50)
        found = Reading(reader)
    assert found.scopes == {("aioparallel", exporter.SCHEMA)}
    kafka = {"messaging__system": "kafka", "messaging__consumer__group__name": "g"}
    topic = kafka | {"messaging__destination__name": "t"}
    name = "messaging.client.consumed.messages"
    assert found.sum(name, **topic, messaging__operation__name="poll") == 100
    assert found.sum(name, **topic, messaging__destination__partition__id="1") == 50
    assert (found.metrics[name].unit, found.metrics[name].data.is_monotonic) == ("{message}", True)
    name = "messaging.process.duration"
    assert found.metrics[name].unit == "s"
    assert calls["all"] == 104
    assert found.count(name, **topic, messaging__operation__name="process", error__type="ValueError") == 6
    assert found.points(name)[0].explicit_bounds == exporter.ADVISED
    successes = [point for point in found.points(name) if "error.type" not in point.attributes]
    assert 1 <= sum(point.count for point in successes) <= 98  # of those that are counted together, some are recorded
    name = "messaging.client.operation.duration"
    assert found.count(name, **kafka, messaging__operation__name="commit", messaging__operation__type="settle") >= 1
    assert found.sum("aioparallel.records.ended", **topic, aioparallel__outcome="succeeded") == 98
    assert found.sum("aioparallel.attempts.failed", **topic) == 6
    assert found.sum("aioparallel.partition.committed", **topic) == 100
    assert 3 <= found.count("aioparallel.record.age") <= 100
    assert found.sum("aioparallel.health.ready") == 1


async def test_the_same_instruments_as_for_prometheus(reader: InMemoryMetricReader, provider: MeterProvider) -> None:
    """Every name is an instrument with its unit."""
    broker = broker_of()
    fill(broker, 50)
    consumer = consumer_of(broker, OpenTelemetryMetrics(meter_provider=provider))
    async with running(consumer):
        await until(lambda: consumer.stats().ended == 50)
        found = Reading(reader).metrics
    units = {one.otel_name: "{message}" if one.otel_name.endswith("messages") else one.unit for one in INSTRUMENTS}
    assert {name: metric.unit for name, metric in found.items()}.items() <= units.items()
    assert len(found) > 40


async def test_nothing_is_reported_after_the_end(reader: InMemoryMetricReader, provider: MeterProvider) -> None:
    """Gauges and counters of a consumer end with it; those of another one stay."""
    broker = broker_of(2)
    one, two = (consumer_of(broker, OpenTelemetryMetrics(name, meter_provider=provider)) for name in ("one", "two"))
    async with running(one):
        async with running(two):
            found = Reading(reader)
            for name in ("one", "two"):
                assert found.sum("aioparallel.health.running", aioparallel__consumer=name) == 1
        found = Reading(reader)
        assert [p.attributes["aioparallel.consumer"] for p in found.points("aioparallel.health.running")] == ["one"]
        assert [p.attributes["aioparallel.consumer"] for p in found.points("aioparallel.commits")] == ["one"]
    assert not Reading(reader).points("aioparallel.health.running")


async def test_quick_records_are_sampled(reader: InMemoryMetricReader, provider: MeterProvider) -> None:
    """Counts of records are exact, but of records whose handlers return at once only some times are recorded."""
    broker = broker_of()
    fill(broker, 2_000)
    consumer = consumer_of(broker, OpenTelemetryMetrics(meter_provider=provider))
    async with running(consumer):
        await until(lambda: consumer.stats().ended == 2_000)
        found = Reading(reader)
    assert found.sum("messaging.client.consumed.messages") == 2_000
    assert 1 <= found.count("messaging.process.duration") < 1_000


async def test_attributes(reader: InMemoryMetricReader, provider: MeterProvider) -> None:
    """More attributes are on every point."""
    metrics = OpenTelemetryMetrics(meter_provider=provider, attributes={"deployment.name": "blue"})
    consumer = consumer_of(broker_of(), metrics)
    async with running(consumer):
        found = Reading(reader)
    points = [point for name in found.metrics for point in found.points(name)]
    assert {point.attributes["deployment.name"] for point in points} == {"blue"}


def test_error_types_are_bounded() -> None:
    """After fifty types the others are ``_OTHER``."""
    metrics = OpenTelemetryMetrics()
    found = [metrics.outcome_of(type(f"Error{number}", (Exception,), {})()) for number in range(60)]
    assert len(set(found)) == 51
    assert found[-1] == "_OTHER"
    assert metrics.outcome_of(type("Error3", (Exception,), {})()) == found[3]


@pytest.mark.parametrize("options", [{"consumer": 1}, {"meter_provider": "x"}, {"attributes": {"a b": "c"}}])
def test_wrong_options_are_named(options: dict[str, Any]) -> None:
    """ConfigurationError has the option's name."""
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        OpenTelemetryMetrics(**options)


def test_one_reading_asks_a_blocked_event_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each instrument is read by itself. After a late answer the others do not wait for another one."""
    clock = [100.0]
    monkeypatch.setattr(exporter, "monotonic", lambda: clock[0])
    metrics, asked = OpenTelemetryMetrics(), list[float]()

    def late() -> object:
        asked.append(clock[0])
        clock[0] += 5
        return object()

    monkeypatch.setattr(metrics, "figures", late)
    assert metrics._figures() is metrics._figures()
    assert asked == [100.0]
    clock[0] += 1
    metrics._figures()
    assert asked == [100.0, 106.0]


def test_errors_of_the_library_have_the_names_of_traces() -> None:
    """As in dead letters: independent of the file of the class."""
    assert OpenTelemetryMetrics().outcome_of(HandlerTimeout(1)) == "aioparallel.errors.HandlerTimeout"


async def test_counters_of_a_restarted_consumer_go_on(reader: InMemoryMetricReader, provider: MeterProvider) -> None:
    """They must not fall, unlike those of Prometheus: then their differences would be negative."""
    broker = broker_of()
    for count, ended in ((30, 30), (20, 50)):
        fill(broker, count)
        consumer = consumer_of(broker, OpenTelemetryMetrics(meter_provider=provider))
        async with running(consumer):
            await until(lambda wanted=count, one=consumer: one.stats().ended == wanted)  # type: ignore[misc]
            found = Reading(reader)
        assert found.sum("aioparallel.records.ended") == ended
        assert found.points("aioparallel.records.dropped")[0].value == 0
