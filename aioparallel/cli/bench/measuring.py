"""Measures a plain loop and the parallel or share consumer on one topic, and checks the consumer's work."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final
from zlib import crc32

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from rich.console import Console

from aioparallel import ParallelConsumer, Record
from aioparallel.cli.bench.command import BenchSettings
from aioparallel.cli.bench.showing import Seen, show
from aioparallel.cli.console import say
from aioparallel.clients import AiokafkaClient
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.clients.aiokafka.aiokafka_errors import deadline
from aioparallel.clients.aiokafka.share_admin import ShareAdmin
from aioparallel.queues.share import ShareConsumer
from aioparallel.records.errors import AioparallelError, TopicNotFound
from aioparallel.records.record import TopicPartition
from aioparallel.testing import DeliveryChecker, EmbeddedBroker, OrderChecker
from aioparallel.testing.event_log import EventKind, EventLog, read_events, replay
from aioparallel.testing.filling import Message, fill

__all__ = ["measure", "unacknowledged", "unfinished"]

_TIMEOUT: Final = 60.0
"""Seconds for a request to the brokers."""
_ANSWER: Final = 10.0
"""Seconds for fast requests: connecting, deleting a group."""
_STALL: Final = 30.0
"""Seconds without a handled record after which a run is given up."""
_PLAIN_SECONDS: Final = 5.0
"""Longest run of the plain loop, which is enough for its rate."""
_PACED_SECONDS: Final = 5.0
_START: Final = "share.auto.offset.reset"
_TICK: Final = 0.005
"""Seconds between two measurements of the event loop's delay, and of the lag."""


async def measure(settings: BenchSettings, console: Console) -> bool:
    """Measure, show the results, and remove what was created. Returns whether all checks pass.

    Run it on uvloop, like the consumer. Raises AioparallelError if the brokers cannot be used.
    """
    name = f"aioparallel-bench-{uuid.uuid4().hex[:8]}"  # of the topic and the group
    if settings.share and settings.bootstrap_servers is not None:
        async with ShareAdmin(settings.bootstrap_servers, timeout=_ANSWER) as admin:
            await admin.require_share_groups()
    async with _place(settings, name) as (servers, topic):
        if settings.topic is None:
            console.print(f"Filling {topic}: {settings.records:,} records, {settings.keys:,} keys")
            await asyncio.to_thread(fill, servers, topic, _messages(settings))
        records = min(settings.records, sum((await _ends(servers, topic, name)).values()))
        if not records:
            raise AioparallelError(f"there are no records in {topic} at {servers}")
        console.print(f"A plain loop, for {_PLAIN_SECONDS:g} s at most")
        plain = await _plain_rate(settings, servers, topic, records)
        console.print(settings.consumer)
        try:
            if settings.share:
                await _start_at_the_beginning(servers, name)
            seen = await _parallel(settings, servers, topic, name, records)
            show(settings, plain, seen, console)
        finally:
            if settings.bootstrap_servers is not None:  # the embedded broker ends with all its groups
                await _delete_group(servers, name, is_share=settings.share)
    return not seen.problems


def _messages(settings: BenchSettings) -> Iterator[tuple[int, Message]]:
    for number in range(settings.records):
        key = b"key-%d" % (number % settings.keys)
        yield crc32(key) % settings.partitions, {"key": key, "value": b"." * 100}


@contextlib.asynccontextmanager
async def _place(settings: BenchSettings, name: str) -> AsyncIterator[tuple[str, str]]:
    """Brokers and the topic to read. What was created is removed afterwards, or a warning printed."""
    servers = settings.bootstrap_servers
    if servers is None:
        async with EmbeddedBroker() as broker:
            await broker.create_topic(name, settings.partitions)
            yield broker.bootstrap_servers, name
    elif settings.topic is not None:
        yield servers, settings.topic
    else:
        async with Admin(servers, timeout=_ANSWER):
            pass  # fails soon if no broker answers; creating a topic has a longer timeout
        async with Admin(servers) as admin:
            await admin.create_topic(name, settings.partitions)
            try:
                yield servers, name
            finally:
                try:
                    await admin.delete_topics(name)
                except (AioparallelError, TimeoutError) as error:
                    _warn_of_rest(f"topic {name}", error)


async def _start_at_the_beginning(servers: str, group: str) -> None:
    async with ShareAdmin(servers, timeout=_ANSWER) as admin:
        await admin.set_group_configs(group, {_START: "earliest"})


async def _delete_group(servers: str, name: str, *, is_share: bool) -> None:
    try:
        async with ShareAdmin(servers, timeout=_ANSWER) as admin:
            await admin.delete_group(name)
            if is_share:  # configs of a group outlive it
                await admin.set_group_configs(name, {_START: None})
    except (AioparallelError, TimeoutError) as error:
        _warn_of_rest(f"group {name}", error)


def _warn_of_rest(what: str, error: Exception) -> None:
    """Only a warning: the measurement itself has succeeded."""
    say(f"WARNING {what} could not be removed, remove it by hand: {error}")


async def _plain_rate(settings: BenchSettings, servers: str, topic: str, records: int) -> float:
    """Records per second, handled one after the other without commits."""
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest")
    count, began, over, loop = 0, 0.0, 0.0, asyncio.get_running_loop()
    try:
        async with deadline(_STALL, f"reading {topic} with a plain loop"), asyncio.timeout(None) as limit, consumer:
            async for _ in consumer:
                if not count:
                    began = time.perf_counter()
                    limit.reschedule(loop.time() + _PLAIN_SECONDS)
                if settings.handler_ms:
                    await asyncio.sleep(settings.handler_ms / 1e3)
                count, over = count + 1, time.perf_counter()
                if count == records or over - began > _PLAIN_SECONDS:
                    break
    except TimeoutError:
        if not count:
            raise
    return count / (over - began) if over > began else 0.0


async def _parallel(settings: BenchSettings, servers: str, topic: str, group: str, records: int) -> Seen:
    seen, sleep, is_paced = Seen(), settings.handler_ms / 1e3, False
    with tempfile.TemporaryDirectory() as folder, EventLog(Path(folder, "events"), room=3 * records) as log:
        began = cpu = 0.0

        async def handle(record: Record) -> None:
            nonlocal began, cpu
            if is_paced:
                seen.latencies.append(time.time() - float(record.value or b"0"))
                if sleep:
                    await asyncio.sleep(sleep)
                return
            if not began:
                began, cpu = time.perf_counter(), time.thread_time()
            seen.keys[record.partition, record.offset] = record.key
            called = time.perf_counter()
            with log.handling(record):
                if sleep:
                    await asyncio.sleep(sleep)
            seen.busy += time.perf_counter() - called
            if seen.handled < records:  # the user's topic may have more
                seen.handled += 1
                seen.seconds = time.perf_counter() - began
                if seen.handled == records:
                    seen.cpu = time.thread_time() - cpu

        kind = ShareConsumer if settings.share else ParallelConsumer
        consumer = kind(topic, bootstrap_servers=servers, group_id=group, max_concurrency=settings.concurrency)
        async with consumer:
            running = asyncio.create_task(consumer.run(handle))
            watching = asyncio.create_task(_watch_loop(seen))
            try:
                await _until(running, lambda: seen.handled, records)
                seen.cpu = seen.cpu or time.thread_time() - cpu
                watching.cancel()
                if settings.topic is None and seen.handled == records:
                    is_paced = True
                    await _paced(settings, servers, topic, consumer, seen)
            finally:
                watching.cancel()
                consumer.stop(drain=settings.topic is None)
                await running
        _check(settings, Path(folder, "events"), seen)
    if settings.topic is None or seen.handled < records:
        left = await (unacknowledged(servers, group) if settings.share else unfinished(servers, topic, group))
        if left and seen.handled < records:
            left.insert(0, f"{seen.handled:,} of {records:,} records were handled, and then none for {_STALL:g} s")
        seen.problems += left
    return seen


async def _until(running: asyncio.Task[None], count: Callable[[], int], wanted: int) -> None:
    """Wait until ``count()`` reaches ``wanted`` or stalls, as a topic may have gaps. Raises errors of the consumer."""
    before, changed = -1, time.monotonic()
    while (now := count()) < wanted and time.monotonic() - changed < _STALL:
        if now != before:
            before, changed = now, time.monotonic()
        await asyncio.wait([running], timeout=_TICK)
        if running.done():
            await running


async def _watch_loop(seen: Seen) -> None:
    """Measure the longest delay of the event loop."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _TICK
        await asyncio.sleep(_TICK)
        seen.hold = max(seen.hold, loop.time() - due)


async def _paced(settings: BenchSettings, servers: str, topic: str, consumer: ParallelConsumer, seen: Seen) -> None:
    """Send new records at half of the rate, each with its time of sending as the value."""
    seen.paced_rate, sent = seen.rate / 2, 0
    async with AIOKafkaProducer(bootstrap_servers=servers, linger_ms=5) as producer:
        began = time.perf_counter()
        while (passed := time.perf_counter() - began) < _PACED_SECONDS:
            for number in range(sent, int(passed * seen.paced_rate)):
                key = b"key-%d" % (number % settings.keys)
                await producer.send(topic, b"%.6f" % time.time(), key, partition=crc32(key) % settings.partitions)
                sent += 1
            seen.lag = max(seen.lag, consumer.stats().lag or 0)
            await asyncio.sleep(_TICK)
        await producer.flush()
    ends = time.monotonic() + _STALL
    while len(seen.latencies) < sent and time.monotonic() < ends:
        await asyncio.sleep(_TICK)
    if len(seen.latencies) != sent:
        seen.problems.append(f"{sent:,} records were sent at a pace, {len(seen.latencies):,} handled")


def _check(settings: BenchSettings, log: Path, seen: Seen) -> None:
    """Check the order of keys, if there is one, and completeness. In the user's topic the offsets are unknown: only
    repeats are found."""
    order, delivery, events = OrderChecker(), DeliveryChecker[tuple[int, int]](), read_events(log)
    if settings.topic is None:
        offsets = Counter[int]()
        for partition, _ in _messages(settings):
            delivery.produced((partition, offsets[partition]))
            offsets[partition] += 1
    else:
        for event in events:
            if event.kind is EventKind.ENDED:
                delivery.produced((event.partition, event.offset))
    replay(events, lambda partition, offset: seen.keys[partition, offset], order, delivery)
    for check in (order.check, lambda: delivery.check(max_duplicates=0))[settings.share :]:
        try:
            check()
        except AssertionError as error:
            seen.problems.append(str(error))


async def _ends(servers: str, topic: str, group: str, *, committed: bool = False) -> dict[TopicPartition, int]:
    """Number of offsets by partition; with ``committed`` only those that the group has not committed."""
    client = AiokafkaClient(servers, group)
    try:
        await client.start(_ANSWER)
        places = await client.partitions([topic], _TIMEOUT)
        if not places:
            raise TopicNotFound([topic], servers)
        ends = await client.end_offsets(places, _TIMEOUT)
        begins = dict(await client.beginning_offsets(places, _TIMEOUT))
        if committed:
            begins |= {place: found.offset for place, found in (await client.committed(places, _TIMEOUT)).items()}
    finally:
        await client.stop(_TIMEOUT)
    return {place: ends[place] - begins[place] for place in places}


async def unfinished(servers: str, topic: str, group: str) -> list[str]:
    """Partitions where the group has not committed everything. Gaps count as offsets and are committed, too."""
    left = await _ends(servers, topic, group, committed=True)
    return [f"{place}: the last {count} offsets are not committed" for place, count in sorted(left.items()) if count]


async def unacknowledged(servers: str, group: str) -> list[str]:
    """Partitions where the share group has not ended everything."""
    async with ShareAdmin(servers, timeout=_ANSWER) as admin:
        offsets = await admin.offsets(group)
    return [
        f"{place}: {one.lag} offsets are not acknowledged"
        for place, one in sorted(offsets.items())
        if one.lag not in (0, None)
    ]
