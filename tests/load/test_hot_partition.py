"""One hot partition beside seven trickles. Takes about half a minute: ``make load-hot``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import psutil
import pytest

from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker

from .consumer_process import ConsumerProcess, number
from .job import Job
from .producing import Message, fill
from .trickle import trickle

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(180)]

TRICKLE = range(1, 8)
PER_SECOND = 140.0
WARM_UP = 7


def hot_backlog(records: int) -> Iterator[tuple[int, Message]]:
    """Small records of 1,009 keys, all in partition 0."""
    for serial in range(records):
        yield 0, Message(key=b"key-%04d" % (serial % 1009), value=b"x" * 90)


def rate(hot: Mapping[str, int], since: float, until: float) -> float:
    """Hot records that ended a second, in the whole tenths of a second between two moments."""
    first, last = int(since * 10) + 1, int(until * 10)
    return sum(hot.get(str(tenth), 0) for tenth in range(first, last)) / (last - first) * 10


async def test_a_hot_partition_keeps_its_rate_and_the_trickles_stay_quick(
    local_kafka: LocalKafka, kafka_topic: TopicMaker, tell: Callable[[str], None]
) -> None:
    """One partition with a backlog keeps 90 % of its rate while seven others get 20 records a second each; those have a
    p99 below 20 ms from produce to handler. Handlers of 5 ms, 100 in flight: 20,000/s is the most there can be."""
    servers, topic = local_kafka.bootstrap_servers, await kafka_topic(8)
    fill(servers, topic, hot_backlog(450_000))
    job = Job(
        bootstrap_servers=servers,
        topic=topic,
        group_id=f"{topic}-group",
        handler_seconds=0.005,
        probe="latency",
    )
    assert local_kafka.pid is not None
    broker = psutil.Process(local_kafka.pid)
    with ConsumerProcess(job) as consumer:
        consumer.wait_for(lambda sample: number(sample["succeeded"]) > 10_000, 30)
        # Connections and first fetches of the trickle are no part of the measurement.
        await asyncio.to_thread(trickle, servers, topic, TRICKLE, per_second=7 * WARM_UP, seconds=1)
        began = time.monotonic()
        await asyncio.sleep(5)
        between = time.monotonic()
        broker_cpu, consumer_cpu = cpu_seconds(broker), consumer.cpu_seconds()
        sent = await asyncio.to_thread(trickle, servers, topic, TRICKLE, per_second=PER_SECOND, seconds=8)
        ended = time.monotonic()
        broker_cpu, consumer_cpu = cpu_seconds(broker) - broker_cpu, consumer.cpu_seconds() - consumer_cpu
        in_backlog = number(consumer.samples[-1]["succeeded"])
        report = consumer.end()
    hot = cast("Mapping[str, int]", report["hot"])
    latencies = sorted(cast("list[float]", report["latencies"])[7 * WARM_UP :])
    alone, beside = rate(hot, began, between), rate(hot, between, ended)
    p50, p99 = latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100]
    tell(
        f"hot partition {alone:.0f}/s alone, {beside:.0f}/s with the trickle ({beside / alone:.2f}); trickle of "
        f"{len(latencies)}: median {p50:.1f} ms, p99 {p99:.1f}, max {latencies[-1]:.1f}; CPU of a core: consumer "
        f"{consumer_cpu / (ended - between):.0%}, broker {broker_cpu / (ended - between):.0%}"
    )
    assert in_backlog < 440_000  # the backlog lasted
    assert sent - 5 <= len(latencies) <= sent  # the last ones may not have been handled when it was stopped
    assert beside >= 0.9 * alone
    assert p99 < 20
    assert report["violations"] == 0


def cpu_seconds(process: psutil.Process) -> float:
    """CPU time a process took so far."""
    times = process.cpu_times()
    return float(times.user + times.system)
