"""What a scrape finds, from the start of a consumer to its end."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge

from aioparallel import (
    ConfigurationError,
    FailurePolicy,
    Outgoing,
    ParallelConsumer,
    ProblemKind,
    Record,
    RetryLater,
    RetryPolicy,
    Stats,
    TopicPartition,
    Transactions,
    batches,
)
from aioparallel.group.assignment import Assignment
from aioparallel.observe.metrics import INSTRUMENTS, Kind, PrometheusMetrics, measurements
from aioparallel.observe.metrics.measurements import Distribution
from aioparallel.observe.stats import PartitionCounts, PartitionStats
from aioparallel.testing.memory import Fault, InMemoryBroker, Request
from tests.support.extensions import broker_of, consumer_of, nothing
from tests.support.scraping import Scraped, scrape
from tests.support.waiting import until

Handler = Callable[[Any], Awaitable[Any]]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def fill(broker: InMemoryBroker, count: int, partitions: int = 1, age: float = 0.0, first: int = 0) -> None:
    written = int((time.time() - age) * 1000)
    for number in range(first, first + count):
        key = b"key-%d" % (number % 20)
        broker.append("t", b"v" * 10, key=key, partition=number % partitions, timestamp=written)


@asynccontextmanager
async def running(consumer: ParallelConsumer[Any, Any], handler: Handler) -> AsyncIterator[None]:
    async with consumer:
        task = asyncio.create_task(consumer.run(handler))
        await until(lambda: consumer.health().ready)
        yield
        consumer.stop()
        await task


async def test_figures_are_what_the_handlers_saw(registry: CollectorRegistry) -> None:
    """Counts by partition and outcome, handler times, waits and ages of quick, slow, failing and given-up records."""
    broker = broker_of(2)
    fill(broker, 400, partitions=2, age=100.0)
    calls: Counter[str] = Counter()

    async def handle(record: Record) -> Outgoing | None:
        calls["all"] += 1
        if record.offset == 3:
            raise ValueError("no")
        if record.offset == 4 and calls["delayed"] < 2:
            calls["delayed"] += 1
            raise RetryLater(0.01)
        if record.offset % 10 == 0:
            calls["slow"] += 1
            await asyncio.sleep(0.03)
        if record.offset == 5:
            return Outgoing("out", b"v")
        return None

    policy = FailurePolicy(retry=RetryPolicy(first_delay=0.01, max_attempts=3), give_up="skip")
    consumer = consumer_of(broker, PrometheusMetrics(registry=registry), failures=policy)
    async with running(consumer, handle):
        await until(lambda: consumer.stats().ended == 400 and consumer.stats().partitions[0].committed == 200)
        found = scrape(registry)
        assert found.sum("records_admitted_total") == 400
        assert found.sum("records_ended_total", outcome="succeeded") == 398
        assert found.sum("records_ended_total", outcome="succeeded", topic="t", partition="1") == 199
        assert found.sum("records_ended_total", outcome="skipped") == 2
        assert found.sum("attempts_failed_total") == 6
        assert found.sum("attempts_failed_total", partition="0") == 3
        assert calls["all"] == 400 + 4 + 2
        assert found.sum("handler_duration_seconds_count") == calls["all"]
        assert found.sum("handler_duration_seconds_count", outcome="failed") == 6
        assert found.sum("handler_duration_seconds_count", outcome="delayed") == calls["delayed"]
        assert found.sum("handler_duration_seconds_bucket", outcome="succeeded", le="0.025") <= 400 - calls["slow"]
        assert found.sum("handler_duration_seconds_sum", outcome="succeeded") >= calls["slow"] * 0.03
        assert found.sum("record_wait_seconds_count") == 400
        assert found.sum("record_age_seconds_count", outcome="succeeded") == 398
        assert found.sum("record_age_seconds_count", outcome="skipped") == 2
        assert found.sum("record_age_seconds_bucket", outcome="succeeded", le="60.0") == 0
        assert found.sum("record_age_seconds_bucket", outcome="succeeded", le="300.0") == 398
        assert found.sum("partition_committed") == 400
        assert found.sum("partition_position", partition="0") == 200
        assert found.sum("partition_highest_completed", partition="0") == 199
        assert found.sum("partition_lag") == found.sum("partition_incomplete") == 0
        assert found.sum("commits_total") >= 1
        assert found.sum("commit_duration_seconds_count", outcome="accepted") == found.sum("commits_total")
        assert found.sum("health_ready") == found.sum("health_live") == found.sum("health_running") == 1
        assert found.sum("health_problems") == 0
        assert found.values("health_problems", "kind") == set(ProblemKind)
        assert found.values("records_admitted_total", "group") == {"g"}


async def test_gauges_while_records_run_and_wait(registry: CollectorRegistry) -> None:
    """Records in flight, parked and buffered, the hot key, and what of the log is not read yet."""
    broker, release = broker_of(), asyncio.Event()
    fill(broker, 200)

    async def handle(record: Record) -> None:
        if record.offset == 0:
            raise ValueError
        await release.wait()

    policy = FailurePolicy(retry=RetryPolicy(first_delay=60))
    consumer = consumer_of(
        broker, PrometheusMetrics(registry=registry), failures=policy, max_concurrency=7, max_buffered=100
    )
    async with running(consumer, handle):
        await until(lambda: consumer.stats().in_flight == 7 and consumer.stats().parked == 1)
        found = scrape(registry)
        assert found.sum("handlers_running") == found.sum("partition_in_flight") == found.sum("handlers_limit") == 7
        assert found.sum("partition_parked") == 1
        stats = consumer.stats()
        assert found.sum("partition_buffered") == stats.buffered
        assert found.sum("buffered_bytes") == stats.buffered_bytes > 0
        assert found.sum("partition_lag") == 200
        assert found.sum("lanes") == stats.lanes
        assert stats.longest_lane is not None
        assert found.sum("lanes_longest") == stats.longest_lane.length
        assert found.sum("handlers_oldest_seconds") > 0
        assert found.sum("retrying_failures") == 1
        assert found.sum("partitions", state="open") == 1
        assert len(found.values("intake", "state")) == 1
        release.set()
        await until(lambda: consumer.stats().succeeded == 190)  # those behind the failed one wait
        await until(lambda: consumer.stats().partitions[0].map_characters > 0)
        found = scrape(registry)
        assert found.sum("partition_map") == consumer.stats().partitions[0].map_characters
        assert found.sum("partition_map_used_ratio") == pytest.approx(found.sum("partition_map") / 4096)
        assert found.sum("partition_map_cut") == 0
        assert found.sum("maps_written_total") > 0
        consumer.stop(drain=False)


async def test_nothing_is_left_after_the_end(registry: CollectorRegistry) -> None:
    """Series exist from the start of the run to the end of the block. Others of the registry stay."""
    Gauge("other", "of the application", registry=registry).set(1)
    broker = broker_of()
    consumer = consumer_of(broker, PrometheusMetrics(registry=registry))
    async with consumer:
        assert {sample.name for sample in scrape(registry).samples} == {"other"}
        task = asyncio.create_task(consumer.run(nothing))
        await until(lambda: consumer.health().ready)
        assert scrape(registry).sum("health_ready") == 1
        consumer.stop()
        await task
        assert scrape(registry).sum("health_running") == 0
    assert {sample.name for sample in scrape(registry).samples} == {"other"}


async def test_a_failed_run_is_reported_until_the_consumer_is_left(registry: CollectorRegistry) -> None:
    """``health_live`` is 0 and the problem is ``failed``."""
    broker = broker_of()
    fill(broker, 1)

    async def handle(record: Record) -> None:
        raise ValueError

    policy = FailurePolicy(retry=RetryPolicy(max_attempts=1), give_up="stop")
    consumer = consumer_of(broker, PrometheusMetrics(registry=registry), failures=policy)
    async with consumer:
        with pytest.raises(Exception, match="failed for good"):
            await consumer.run(handle)
        found = scrape(registry)
        assert found.sum("health_live") == found.sum("health_running") == 0
        assert found.sum("health_problems", kind="failed") == 1
    assert not scrape(registry).samples


async def test_several_consumers_of_one_registry(registry: CollectorRegistry) -> None:
    """Consumers of one group have numbers, and names where they were given; a name that is taken gets a number."""
    broker = broker_of(2)
    given = ["", "", "orders", "orders"]
    consumers = [consumer_of(broker, PrometheusMetrics(name, registry=registry)) for name in given]
    async with asyncio.TaskGroup() as tasks:
        for consumer in consumers:
            tasks.create_task(_run(consumer))
        await until(lambda: _names(registry) == {"1", "2", "orders", "orders-2"})
        scrape(registry)
        consumers[0].stop()
        await until(lambda: _names(registry) == {"2", "orders", "orders-2"})
        again = consumer_of(broker, PrometheusMetrics(registry=registry))
        tasks.create_task(_run(again))
        await until(lambda: _names(registry) == {"1", "2", "orders", "orders-2"})
        for consumer in (*consumers, again):
            consumer.stop()
    assert not scrape(registry).samples


async def _run(consumer: ParallelConsumer[Any, Any]) -> None:
    async with consumer:
        await consumer.run(nothing)


def _names(registry: CollectorRegistry) -> set[str]:
    return scrape(registry).values("health_running", "consumer")


async def test_partitions_that_go_to_another_member(registry: CollectorRegistry) -> None:
    """Gauges go with the partition. Counters stay, and their sums over both members are exact."""
    broker = broker_of(2)
    fill(broker, 400, partitions=2)

    async def handle(record: Record) -> None:
        await asyncio.sleep(0.001)

    one, two = (consumer_of(broker, PrometheusMetrics(name, registry=registry)) for name in ("one", "two"))
    async with running(one, handle):
        await until(lambda: one.stats().ended == 400)
        assert scrape(registry).values("partition_lag", "partition") == {"0", "1"}
        async with running(two, handle):
            await until(lambda: len(one.stats().partitions) == len(two.stats().partitions) == 1)
            fill(broker, 400, partitions=2)
            await until(lambda: one.stats().ended + two.stats().ended == 800)
            found = scrape(registry)
            held = str(two.stats().partitions[0].partition)
            assert {s.labels["partition"] for s in _of(found, "partition_lag", "two")} == {held}
            assert {s.labels["partition"] for s in _of(found, "partition_lag", "one")} == {"0", "1"} - {held}
            assert found.sum("records_ended_total", consumer="one", partition=held) == 200
            assert found.sum("records_ended_total", outcome="succeeded") == 800
            assert found.sum("records_admitted_total") == 800
            assert found.sum("records_dropped_total") == 0


def _of(found: Scraped, name: str, consumer: str) -> list[Any]:
    return [s for s in found.samples if s.name == f"aioparallel_{name}" and s.labels["consumer"] == consumer]


async def test_records_dropped_when_a_partition_is_lost(registry: CollectorRegistry) -> None:
    """What is buffered or runs when a session expires is dropped, and read again."""
    broker = broker_of()
    fill(broker, 50)
    release = asyncio.Event()

    async def handle(record: Record) -> None:
        if record.offset < 10 or release.is_set():
            return
        await release.wait()

    consumer = consumer_of(broker, PrometheusMetrics(registry=registry), max_concurrency=5)
    async with running(consumer, handle):
        await until(lambda: consumer.stats().in_flight == 5)
        seen = consumer.stats()
        member = next(iter(broker.group("g").members))
        broker.expire_session("g", member, asyncio.get_running_loop().time())
        await until(lambda: consumer.stats().dropped > 0)
        found = scrape(registry)
        assert found.sum("records_dropped_total") == 50 - seen.succeeded
        release.set()
        await until(lambda: consumer.stats().partitions and consumer.stats().partitions[0].committed == 50)
        found = scrape(registry)
        counts = consumer.stats().counts[0]
        assert found.sum("records_admitted_total") == counts.admitted == counts.succeeded + counts.dropped
        assert found.sum("partition_epoch") == 2


async def test_a_broker_that_does_not_answer(registry: CollectorRegistry) -> None:
    """Unanswered commits are counted with their time; the series and the exporter go on."""
    broker = broker_of()
    fill(broker, 10)
    consumer = consumer_of(broker, PrometheusMetrics(registry=registry), commit_timeout=0.2)
    async with running(consumer, nothing):
        await until(lambda: consumer.stats().commits > 0)
        broker.faults.always(Request.COMMIT, Fault(is_request_lost=True))
        fill(broker, 10)
        await until(lambda: consumer.stats().failed_commits > 0)
        found = scrape(registry)
        assert found.sum("commits_failed_total") >= 1
        assert found.sum("commit_duration_seconds_count", outcome="retriable") >= 1
        assert found.sum("commit_duration_seconds_bucket", outcome="retriable", le="0.05") == 0
        assert found.sum("contact_seconds", request="commit") > 0
        broker.faults.heal()
        await until(lambda: consumer.stats().partitions[0].committed == 20)


async def test_batches(registry: CollectorRegistry) -> None:
    """A call of a batch handler is one call; waits and ages are those of its records."""
    broker = broker_of()
    fill(broker, 300)
    sizes: list[int] = []

    async def handle(records: Any) -> None:
        sizes.append(len(records))
        await asyncio.sleep(0.01)

    consumer = consumer_of(broker, PrometheusMetrics(registry=registry))
    async with running(consumer, batches(handle, size=50, linger=0.01)):
        await until(lambda: consumer.stats().ended == 300)
        found = scrape(registry)
        assert found.sum("handler_duration_seconds_count") == len(sizes)
        assert found.sum("batch_size_count") == sum(size > 1 for size in sizes)
        assert found.sum("batch_size_sum") == sum(size for size in sizes if size > 1)
        assert found.sum("record_wait_seconds_count") == found.sum("record_age_seconds_count") == 300


async def test_outputs_count_as_ended_when_they_are_acknowledged(registry: CollectorRegistry) -> None:
    """The age of a record whose output is sent is taken when the broker has it."""
    broker = broker_of()
    fill(broker, 100)

    async def handle(record: Record) -> Outgoing:
        return Outgoing("out", b"v")

    consumer = consumer_of(broker, PrometheusMetrics(registry=registry))
    async with running(consumer, handle):
        await until(lambda: consumer.stats().ended == 100)
        found = scrape(registry)
        assert found.sum("record_age_seconds_count") == found.sum("handler_duration_seconds_count") == 100


async def test_transactions(registry: CollectorRegistry) -> None:
    """Transactions by outcome, and their time as that of the commits."""
    broker = broker_of()
    fill(broker, 100)

    async def handle(record: Record) -> Outgoing:
        return Outgoing("out", b"v")

    consumer = consumer_of(broker, PrometheusMetrics(registry=registry), commits=Transactions())
    async with running(consumer, handle):
        await until(lambda: consumer.stats().partitions and consumer.stats().partitions[0].committed == 100)
        found = scrape(registry)
        stats = consumer.stats().transactions
        assert stats is not None
        assert found.sum("transactions_total", outcome="committed") == stats.committed
        assert found.sum("commit_duration_seconds_count", outcome="accepted") >= 1
        assert found.sum("record_age_seconds_count") == 100
        assert found.sum("transactions_in_doubt") == 0


async def test_slow_handlers_that_do_not_suspend_are_measured_one_by_one(registry: CollectorRegistry) -> None:
    """Quick handlers share the time of their turn, but a slow one does not hide among them for long."""
    broker = broker_of()
    fill(broker, 200)

    async def handle(record: Record) -> None:
        if record.offset >= 100 and record.offset % 2:
            time.sleep(0.004)  # noqa: ASYNC251 - it blocks

    consumer = consumer_of(broker, PrometheusMetrics(registry=registry))
    async with running(consumer, handle):
        await until(lambda: consumer.stats().ended == 200)
        found = scrape(registry)
        assert found.sum("handler_duration_seconds_count") == 200
        assert found.sum("handler_duration_seconds_sum") >= 0.2
        slow = 200 - found.sum("handler_duration_seconds_bucket", le="0.0025")
        assert 30 <= slow <= 70  # at most a turn of 16 at a time is a mean


async def test_scrapes_from_another_thread(registry: CollectorRegistry) -> None:
    """As by ``prometheus_client.start_http_server``."""
    broker = broker_of()
    fill(broker, 1000)
    found: list[Scraped] = []
    consumer = consumer_of(broker, PrometheusMetrics(registry=registry))
    async with running(consumer, nothing):
        await until(lambda: consumer.stats().ended > 0)
        thread = threading.Thread(target=lambda: found.extend(scrape(registry) for _ in range(5)))
        thread.start()
        await until(lambda: not thread.is_alive())
    assert len(found) == 5


def test_fetches_that_are_noted_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a record does not progress, fetches go on for days."""
    clock = [0.0]
    monkeypatch.setattr(measurements, "perf_counter", lambda: clock[0])
    wait, other = Distribution((1.0, 100_000.0)), Distribution((1.0,))
    partition = measurements._Partition(Assignment(TopicPartition("t", 0)), other, wait, other)
    for offset in range(20_000):
        clock[0] += 1
        partition.select([Record("t", 0, offset, None, b"")])
    assert len(partition._firsts) == len(partition._times) <= 1024
    for offset in (19_999, 19_700, 3):
        partition.count_wait(Record("t", 0, offset, None, b""), clock[0] + 0.5, 1)
    assert wait.sum == pytest.approx(0.5 + 299.5 + 19_996.5, abs=3)


async def test_labels_and_buckets(registry: CollectorRegistry) -> None:
    """Labels with one value on every series; bounds of a histogram."""
    broker = broker_of()
    fill(broker, 10)
    metrics = PrometheusMetrics(
        "c", registry=registry, labels={"region": "eu"}, buckets={"handler.duration": (0.5, 1, float("inf"))}
    )
    consumer = consumer_of(broker, metrics)
    async with running(consumer, nothing):
        await until(lambda: consumer.stats().ended == 10)
        found = scrape(registry)
        assert {sample.labels["region"] for sample in found.samples} == {"eu"}
        assert found.values("handler_duration_seconds_bucket", "le") == {"0.5", "1.0", "+Inf"}


@pytest.mark.parametrize(
    "options",
    [
        {"consumer": 1},
        {"registry": "x"},
        {"labels": {"topic": "x"}},
        {"labels": {"a-b": "x"}},
        {"labels": {"le": "x"}},
        {"buckets": {"nothing": (1,)}},
        {"buckets": {"handler.duration": (2, 1)}},
        {"buckets": {"handler.duration": ()}},
        {"buckets": {"handler.duration": ("x",)}},
        {"port": 70_000},
        {"port": True},
        {"port": 1, "host": ""},
    ],
)
def test_wrong_options_are_named(options: dict[str, Any]) -> None:
    """ConfigurationError has the option's name."""
    with pytest.raises(ConfigurationError):
        PrometheusMetrics(**options)


async def test_a_foreign_metric_of_the_same_name_is_named(registry: CollectorRegistry) -> None:
    """The run ends with prometheus_client's error, and nothing stays registered."""
    Gauge("aioparallel_lanes", "foreign", registry=registry)
    consumer = consumer_of(broker_of(), PrometheusMetrics(registry=registry))
    async with consumer:
        with pytest.raises(ValueError, match="aioparallel_lanes"):
            await consumer.run(nothing)
    assert {sample.name for sample in scrape(registry).samples} == {"aioparallel_lanes"}


def test_each_statistic_has_an_instrument() -> None:
    """Fields of Stats and of its partitions that no instrument reads are listed here, with the reason."""
    elsewhere = {
        # sums over partitions
        "Stats.admitted", "Stats.succeeded", "Stats.dead_lettered", "Stats.skipped", "Stats.released", "Stats.dropped",
        "Stats.failed_attempts", "Stats.buffered", "Stats.parked", "Stats.producing", "Stats.lag", "Stats.lag_age",
        # labels, and what contains others
        "PartitionStats.topic", "PartitionStats.partition", "PartitionCounts.topic", "PartitionCounts.partition",
        "Stats.partitions", "Stats.counts", "Stats.members",
        "Stats.positions_in",  # a word
    }  # fmt: skip
    read = set()
    for instrument in INSTRUMENTS:
        of = ""
        for part in instrument.source.split(", "):
            of, name = part.split(".") if "." in part else (of, part)
            read.add(f"{of}.{name}")
    for kind in (Stats, PartitionStats, PartitionCounts):
        fields = {f"{kind.__name__}.{field.name}" for field in dataclasses.fields(kind)}
        assert fields - read - elsewhere == set()
        assert {name for name in read | elsewhere if name.startswith(f"{kind.__name__}.")} <= fields


def test_names() -> None:
    """Names are unique, and as Prometheus wants them: base units, ``_total`` for counters only."""
    names = [instrument.prometheus_name for instrument in INSTRUMENTS]
    assert len(set(names)) == len(names)
    for instrument in INSTRUMENTS:
        assert instrument.prometheus_name.endswith("_total") == (instrument.kind is Kind.COUNTER)
        assert bool(instrument.bounds) == (instrument.kind is Kind.HISTOGRAM) == (instrument.read is None)
        assert instrument.description.endswith(".")
        assert not {"key", "offset", "value"} & set(instrument.labels)
