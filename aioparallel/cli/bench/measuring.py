"""Measures a plain loop and the parallel consumer on one topic, and checks what the latter did."""

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
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from rich.console import Console

from aioparallel import ParallelConsumer, Record
from aioparallel.cli.bench.command import BenchSettings
from aioparallel.cli.bench.showing import Seen, show
from aioparallel.clients import AiokafkaClient
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.errors import AioparallelError, TopicNotFound
from aioparallel.records import TopicPartition
from aioparallel.testing import DeliveryChecker, EmbeddedBroker, OrderChecker
from aioparallel.testing.event_log import EventKind, EventLog, read_events, replay
from aioparallel.testing.filling import Message, fill

__all__ = ["measure"]

_TIMEOUT: Final = 60.0
"""Seconds for one conversation with the brokers."""
_STALL: Final = 30.0
"""Seconds without a handled record after which a run is given up."""
_PLAIN_SECONDS: Final = 5.0
"""The plain loop may take so long; its rate shows before."""
_PACED_SECONDS: Final = 5.0
_TICK: Final = 0.005
"""Seconds between two looks at how late the event loop is, and at the lag."""


async def measure(settings: BenchSettings, console: Console) -> bool:
    """Measure, show, and remove what was made. Whether all checks hold.

    Best run on uvloop, as the consumer is. Raises AioparallelError when the brokers cannot be used.
    """
    async with _place(settings) as (servers, topic):
        if settings.topic is None:
            console.print(f"Filling {topic}: {settings.records:,} records, {settings.keys:,} keys")
            await asyncio.to_thread(fill, servers, topic, _messages(settings))
        console.print(f"A plain loop, for {_PLAIN_SECONDS:g} s at most")
        plain = await _plain_rate(settings, servers, topic)
        console.print("ParallelConsumer")
        async with _group(settings, servers) as group:
            seen = await _parallel(settings, servers, topic, group)
    show(settings, plain, seen, console)
    return not seen.problems


def _messages(settings: BenchSettings) -> Iterator[tuple[int, Message]]:
    for number in range(settings.records):
        key = b"key-%d" % (number % settings.keys)
        yield crc32(key) % settings.partitions, {"key": key, "value": b"." * 100}


# -- what is made, and gone afterwards ----------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _place(settings: BenchSettings) -> AsyncIterator[tuple[str, str]]:
    """Brokers, and the topic to read; what is made here is gone afterwards."""
    servers, name = settings.bootstrap_servers, f"aioparallel-bench-{uuid.uuid4().hex[:8]}"
    if servers is None:
        async with EmbeddedBroker() as broker:
            await broker.create_topic(name, settings.partitions)
            yield broker.bootstrap_servers, name
    elif settings.topic is not None:
        yield servers, settings.topic
    else:
        async with Admin(servers) as admin:
            await admin.create_topic(name, settings.partitions)
            try:
                yield servers, name
            finally:
                await admin.delete_topics(name)


@contextlib.asynccontextmanager
async def _group(settings: BenchSettings, servers: str) -> AsyncIterator[str]:
    """The name of a new group, gone afterwards. Raises AioparallelError where it stays."""
    name = f"aioparallel-bench-{uuid.uuid4().hex[:8]}"
    try:
        yield name
    finally:
        if settings.bootstrap_servers is not None:  # the embedded broker ends with all it has
            admin = AdminClient({"bootstrap.servers": servers, "log_level": 3})  # aiokafka has no request for it
            (deleted,) = admin.delete_consumer_groups([name]).values()
            try:
                await asyncio.to_thread(deleted.result, _TIMEOUT)
            except (KafkaException, TimeoutError) as error:
                # It is not there when the consumer never came so far.
                if not (isinstance(error, KafkaException) and error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND):
                    raise AioparallelError(
                        f"group {name} could not be removed, remove it by hand: {error!r}"
                    ) from error


# -- the plain loop ---------------------------------------------------------------------------------------


async def _plain_rate(settings: BenchSettings, servers: str, topic: str) -> float:
    """Records a second, one after the other; commits nothing."""
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest")
    count, began, over = 0, 0.0, 0.0
    async with consumer:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STALL) as limit:
                async for _ in consumer:
                    if not count:
                        began = time.perf_counter()
                        limit.reschedule(asyncio.get_running_loop().time() + _PLAIN_SECONDS)
                    if settings.handler_ms:
                        await asyncio.sleep(settings.handler_ms / 1e3)
                    count, over = count + 1, time.perf_counter()
                    if count == settings.records or over - began > _PLAIN_SECONDS:
                        break
    return count / (over - began) if over > began else 0.0


# -- the parallel consumer --------------------------------------------------------------------------------


async def _parallel(settings: BenchSettings, servers: str, topic: str, group: str) -> Seen:
    seen, sleep, is_paced = Seen(), settings.handler_ms / 1e3, False
    records = min(settings.records, sum((await _ends(servers, topic, group)).values()))
    if not records:
        raise AioparallelError(f"there are no records in {topic} at {servers}")
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
            if seen.handled < records:  # of your topic more may be under way
                seen.handled += 1
                seen.seconds = time.perf_counter() - began
                if seen.handled == records:
                    seen.cpu = time.thread_time() - cpu

        consumer = ParallelConsumer(
            topic, bootstrap_servers=servers, group_id=group, max_concurrency=settings.concurrency
        )
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
    if settings.topic is None:
        seen.problems += await _uncommitted(servers, topic, group)
    return seen


async def _until(running: asyncio.Task[None], count: Callable[[], int], wanted: int) -> None:
    """Until so many are counted, or no more come: your topic may have gaps. Raises what ends the consumer."""
    before, changed = -1, time.monotonic()
    while (now := count()) < wanted and time.monotonic() - changed < _STALL:
        if now != before:
            before, changed = now, time.monotonic()
        await asyncio.wait([running], timeout=_TICK)
        if running.done():
            await running


async def _watch_loop(seen: Seen) -> None:
    """How late the loop is at most: what else it does holds it so long."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _TICK
        await asyncio.sleep(_TICK)
        seen.hold = max(seen.hold, loop.time() - due)


async def _paced(settings: BenchSettings, servers: str, topic: str, consumer: ParallelConsumer, seen: Seen) -> None:
    """New records at half of the rate, each with the time at which it is sent as its value."""
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


# -- the checks -------------------------------------------------------------------------------------------


def _check(settings: BenchSettings, log: Path, seen: Seen) -> None:
    """The order of each key, and completeness: of your topic nobody knows which offsets it has, only what repeats."""
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
    for check in (order.check, lambda: delivery.check(max_duplicates=0)):
        try:
            check()
        except AssertionError as error:
            seen.problems.append(str(error))


async def _ends(servers: str, topic: str, group: str, *, committed: bool = False) -> dict[TopicPartition, int]:
    """For each partition how many offsets it has; with ``committed`` how many of them the group has not committed."""
    client = AiokafkaClient(servers, group)
    try:
        await client.start(_TIMEOUT)
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


async def _uncommitted(servers: str, topic: str, group: str) -> list[str]:
    left = await _ends(servers, topic, group, committed=True)
    return [f"{place}: the last {count} offsets are not committed" for place, count in left.items() if count]
