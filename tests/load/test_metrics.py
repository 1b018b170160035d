"""What Prometheus has of a worker against what its handlers have counted, on Apache Kafka: ``make load-metrics``.

The text is parsed by prometheus_client. If ``prometheus`` and ``promtool`` are installed, the real server scrapes each
second, and its figures are compared, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client import CollectorRegistry

from aioparallel.observe.metrics import serve_metrics
from aioparallel.observe.metrics.prometheus import exposition
from aioparallel.testing import LocalKafka
from tests.load.metrics_others import others
from tests.load.metrics_run import FOLLOWERS, GROUP, KEYS, PARTITIONS, Worker
from tests.load.metrics_server import Prometheus, check_metrics, prometheus
from tests.support.kafka.reading import committed, read_all
from tests.support.scraping import Scraped
from tests.support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(600)]

Tell = Callable[[str], None]
LEAST = float("inf")


class Row(NamedTuple):
    """A figure. ``slack``: by how much they may differ; infinite: ``seen`` is the least."""

    name: str
    scraped: float
    seen: float
    slack: float = 0.0

    @property
    def is_right(self) -> bool:
        return (self.slack == LEAST and self.scraped >= self.seen) or abs(
            self.scraped - self.seen
        ) <= self.slack < LEAST


def table(title: str, rows: list[Row]) -> str:
    """As text; what differs is marked."""
    lines = [
        f"{row.name:<66}{row.scraped:>14,.3f}{row.seen:>14,.3f}{'' if row.is_right else '   WRONG'}" for row in rows
    ]
    return "\n".join([title, f"{'instrument':<66}{'scraped':>14}{'seen':>14}", *lines])


async def test_figures_are_what_the_handlers_have_counted(mortal_kafka: LocalKafka, tmp_path: Path, tell: Tell) -> None:
    """Through start, load, a storm of retries, a stuck record, a rebalance, and a broker that dies and comes back."""
    registry = CollectorRegistry()
    for topic, partitions in (("orders", PARTITIONS), ("orders-out", 1), ("orders-dead", 1)):
        await mortal_kafka.create_topic(topic, partitions)
    worker = Worker(mortal_kafka, registry)
    await worker.write(2_000)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serve_metrics(0, registry=registry))
        real = await stack.enter_async_context(prometheus(server.port, tmp_path))
        sampling = asyncio.create_task(worker.sample())
        phases: dict[str, float] = {}
        held: list[Row] = []
        async with others(mortal_kafka, registry) as three, worker.member("1"):
            held += [Row(*one) for one in await three.throttled()]
            await _day(worker, phases, held)
            figures = [Row(*one) for one in await three.ended()]
            quiet = worker.scrape()
            assert not sampling.done(), sampling.result()
            sampling.cancel()
            problems = await check_metrics(exposition("", registry)[0])
        for name, at in phases.items():
            print(f"{at:.3f} {name}")
        rows = await _rows(worker, quiet) + figures
        tell(table("while a record is stuck", held))
        tell(table("at the end", rows))
        tell(f"the slowest scrape took {worker.slowest * 1000:.0f} ms")
        tell(f"{worker.samples} samples of what runs and fails; {len(worker.wrong)} differ: {worker.wrong[:20]}")
        tell(f"promtool: {problems}")
        if real is not None:
            kept = await _rows_of_prometheus(real, worker)
            tell(table("Prometheus", kept))
            assert all(row.is_right for row in kept)
    assert not worker.wrong
    assert all(row.is_right for row in held + rows)


async def _day(worker: Worker, phases: dict[str, float], held: list[Row]) -> None:
    async def done(left: int = 0) -> None:
        await until(lambda: worker.left <= left, what=lambda: f"{worker.left} of {len(worker.written)} records left")

    def phase(name: str) -> None:
        phases[name] = time.time()

    phase("start")
    await done()
    phase("load")
    await worker.write(4_000)
    await done()
    phase("storm")
    worker.storm = 0.5
    await worker.write(2_000)
    await asyncio.sleep(4)
    worker.storm = 0.0
    await done()
    phase("stuck")
    await worker.write(KEYS * FOLLOWERS, b"stuck", b"stubborn")
    await done(2 * FOLLOWERS)
    await asyncio.sleep(6)
    held += await _held(worker)
    worker.release.set()
    await done()
    phase("blocked")
    await worker.write(1_000, b"block", b"block", b"block")
    await done()
    phase("rebalance")
    worker.rebalances = True
    writing = asyncio.create_task(worker.write(5_000, b"first"))
    await asyncio.sleep(1)
    async with worker.member("2"):
        await until(lambda: worker.books["2"].begun > 300)
        await writing
        await asyncio.sleep(3)
    await done()
    worker.rebalances = False
    phase("broker")
    await worker.write(3_000)
    await asyncio.sleep(0.5)
    worker.kafka.kill()
    await asyncio.sleep(8)
    held += _away(worker)
    await asyncio.to_thread(worker.kafka.restart)
    phase("back")
    await done()
    await worker.write(400)
    await done()
    phase("quiet")
    await until(lambda: worker.scrape().sum("partition_lag", group=GROUP) == 0)
    await asyncio.sleep(2)


def _away(worker: Worker) -> list[Row]:
    """The gauges eight seconds after the broker was killed."""
    found, where = worker.scrape(), {"group": GROUP, "consumer": "1"}
    return [
        Row("away: health_ready", found.sum("health_ready", **where), 0),
        Row("away: health_live", found.sum("health_live", **where), 1),
        Row("away: health_problems{broker_unreachable}",
            found.sum("health_problems", kind="broker_unreachable", **where), 1),
        Row("away: contact_seconds{heartbeat}", found.sum("contact_seconds", request="heartbeat", **where), 7, 1.5),
        Row("away: contact_seconds{fetch}", found.sum("contact_seconds", request="fetch", **where), 7, LEAST),
        Row("away: broker_owes_seconds", found.sum("broker_owes_seconds", **where), 7, 1.5),
        Row("away: outputs", found.sum("outputs", **where), 1, LEAST),
        Row("away: outputs_oldest_seconds", found.sum("outputs_oldest_seconds", **where), 5, LEAST),
        Row("away: commits_failed_total", found.sum("commits_failed_total", **where), 1, LEAST),
        Row("away: partition_producing", found.sum("partition_producing", **where), 1, LEAST),
    ]  # fmt: skip


async def _held(worker: Worker) -> list[Row]:
    """The gauges while one record is stuck and another one fails again and again."""
    places = await committed(worker.kafka.bootstrap_servers, GROUP)
    found = worker.scrape()
    left = [n for n in range(len(worker.written)) if (n % PARTITIONS, n // PARTITIONS) not in worker.done]
    stuck, stubborn = (next(n for n in left if worker.written[n][2] == kind) for kind in (b"stuck", b"stubborn"))
    written = [
        min((worker.written[n][1] for n in left if n % PARTITIONS == partition), default=None)
        for partition in range(PARTITIONS)
    ]
    ages = [0 if one is None else worker.scraped_at - one / 1000 for one in written]
    book = worker.books["1"]
    _, times = book.failing[stubborn % PARTITIONS, stubborn // PARTITIONS]
    buffered = [n for n in left if n not in (stuck, stubborn)]
    size = sum(len(b"k%d" % worker.written[n][0]) + len(b"%d %s" % (n, worker.written[n][2])) for n in buffered)
    rows = [
        Row("partition_lag", found.sum("partition_lag", group=GROUP), len(left)),
        Row("partition_incomplete", found.sum("partition_incomplete", group=GROUP), len(left)),
        Row("partition_buffered", found.sum("partition_buffered", group=GROUP), len(buffered), 1),
        Row("buffered_bytes", found.sum("buffered_bytes", group=GROUP), size, 20),
        Row("partition_parked", found.sum("partition_parked", group=GROUP), 1, 1),
        Row("lanes", found.sum("lanes", group=GROUP), 2),
        Row("lanes_longest", found.sum("lanes_longest", group=GROUP), FOLLOWERS),
        Row("handlers_limit", found.sum("handlers_limit", group=GROUP), 50),
        Row("retrying_failures", found.sum("retrying_failures", group=GROUP), times),
        Row("partitions{open}", found.sum("partitions", group=GROUP, state="open"), PARTITIONS),
        Row("intake{fetching}", found.sum("intake", group=GROUP, state="fetching"), 1),
        Row("health_problems{long_handler}", found.sum("health_problems", group=GROUP, kind="long_handler"), 1),
        Row("health_problems{retrying}", found.sum("health_problems", group=GROUP, kind="retrying"), 1),
        Row("health_ready", found.sum("health_ready", group=GROUP), 1),
    ]
    for partition, age in enumerate(ages):
        labels = {"group": GROUP, "partition": str(partition)}
        completed = max(offset for number, offset in worker.done if number == partition)
        seen = {
            "partition_oldest_seconds": age,
            "partition_committed": places[partition].offset,
            "partition_map": len(places[partition].metadata),
            "partition_position": len(worker.written) // PARTITIONS,
            "partition_highest_completed": completed,
        }
        rows += [
            Row(f"{name}{{{partition}}}", found.sum(name, **labels), value, worker.slowest * name.endswith("seconds"))
            for name, value in seen.items()
        ]
    return rows


async def _rows(worker: Worker, quiet: Scraped) -> list[Row]:
    """The counters and histograms of each member when it has ended."""
    rows = []
    for name, book in worker.books.items():
        assert set(book.began) <= set(range(PARTITIONS))
        found, where = worker.last[name], {"group": GROUP, "consumer": name}
        parts = sorted(map(int, found.values("records_admitted_total", "partition", **where)))
        for outcome, count in sorted(book.calls.items()):
            labels = where | {"outcome": outcome}
            counted = found.sum("handler_duration_seconds_count", **labels)
            took = found.sum("handler_duration_seconds_sum", **labels)
            rows += [
                Row(f"{name}: handler_duration_seconds_count{{{outcome}}}", counted, count),
                Row(f"{name}: handler_duration_seconds_sum{{{outcome}}}", took, book.seconds[outcome],
                    0.05 + 0.02 * book.seconds[outcome]),
            ]  # fmt: skip
        for partition in parts:
            labels = where | {"partition": str(partition)}
            rows += [
                Row(f"{name}: records_ended_total{{succeeded,{partition}}}",
                    found.sum("records_ended_total", outcome="succeeded", **labels), book.succeeded[partition]),
                Row(f"{name}: attempts_failed_total{{{partition}}}", found.sum("attempts_failed_total", **labels),
                    book.failed[partition]),
                Row(f"{name}: records_admitted_total{{{partition}}} - ended - dropped",
                    found.sum("records_admitted_total", **labels) - found.sum("records_dropped_total", **labels)
                    - found.sum("records_ended_total", **labels), 0),
            ]  # fmt: skip
        rows += [
            Row(f"{name}: record_wait_seconds_count", found.sum("record_wait_seconds_count", **where), book.first),
            Row(f"{name}: record_age_seconds_count{{succeeded}}",
                found.sum("record_age_seconds_count", outcome="succeeded", **where), book.calls["succeeded"]),
            Row(f"{name}: record_age_seconds_sum{{succeeded}}",
                found.sum("record_age_seconds_sum", outcome="succeeded", **where), book.age_seconds,
                0.01 * book.age_seconds),
            Row(f"{name}: commit_duration_seconds_count{{accepted}}",
                found.sum("commit_duration_seconds_count", outcome="accepted", **where),
                found.sum("commits_total", **where)),
        ]  # fmt: skip
    where = {"group": GROUP}
    both = [worker.last[name] for name in worker.books]
    servers = worker.kafka.bootstrap_servers
    dead, outputs = await read_all(servers, "orders-dead"), await read_all(servers, "orders-out")
    rows += [
        Row("records_ended_total{dead_lettered}",
            sum(one.sum("records_ended_total", outcome="dead_lettered", consumer=name, **where)
                for name, one in zip(worker.books, both, strict=True)), worker.given_up.total()),
        Row("dead letters in their topic", len(dead), worker.given_up.total()),
        Row("outputs in their topic", len(outputs), worker.outputs),
        Row("loop_blockages_total", both[0].sum("loop_blockages_total", consumer="1", **where),
            len(worker.blocked), LEAST),
        Row("loop_blocked_seconds_total", both[0].sum("loop_blocked_seconds_total", consumer="1", **where),
            sum(worker.blocked), 0.07 * len(worker.blocked)),
        Row("partition_lag", quiet.sum("partition_lag", **where), 0),
        Row("partition_committed", quiet.sum("partition_committed", **where),
            sum(one.offset for one in (await committed(servers, GROUP)).values())),
        Row("partition_position", quiet.sum("partition_position", **where), len(worker.written)),
    ]  # fmt: skip
    return rows


async def _rows_of_prometheus(real: Prometheus, worker: Worker) -> list[Row]:
    """The last figures of Prometheus against those of the last scrape: each counter and histogram."""
    rows = []
    for name, found in worker.last.items():
        for sample in found.samples:
            if "_loop_lag_" in sample.name or sample.labels.get("consumer") != name:
                continue  # the timer goes on between two scrapes
            if sample.name.endswith(("_total", "_count", "_sum", "_bucket")):
                where = ", ".join(f'{key}="{value}"' for key, value in sample.labels.items())
                value = await real.value(f"max_over_time({sample.name}{{{where}}}[1h])")
                rows.append(Row(f"{sample.name}{{{where}}}", value, sample.value))
    differ = [row for row in rows if not row.is_right]
    return [Row("series alike", len(rows) - len(differ), len(rows)), *differ]
