"""Reads the current records of some partitions once, without a group."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, cast

import aiokafka.errors as kafka
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as Place  # required by aiokafka's assign() and seek()

from aioparallel.clients.aiokafka.aiokafka_errors import deadline, translated
from aioparallel.clients.aiokafka.broker_watch import BrokerWatch
from aioparallel.clients.aiokafka.connecting import find_broker
from aioparallel.clients.aiokafka.fetching import FetchWalk
from aioparallel.clients.aiokafka.internals import Consumer, Fetcher
from aioparallel.clients.aiokafka.log_identity import FetchedEpochs
from aioparallel.clients.aiokafka.metadata_updates import REBOOTSTRAP_AFTER
from aioparallel.clients.aiokafka.settings import aiokafka_options, connection_options
from aioparallel.group.client import Fetched, Span
from aioparallel.records.errors import BrokerUnreachable, ClientError
from aioparallel.records.record import TopicPartition

__all__ = ["read_spans"]

MOST_AT_ONCE: Final = 500
"""Most records of one batch. Replay sends these before it marks them."""

POLL: Final = 0.5
"""Seconds between checks of positions while there is no data."""
STALLED: Final = 30.0
"""Seconds without progress before reading fails."""

STOP_TIMEOUT: Final = 5.0
KNOCK_AGAIN: Final = 0.1
"""Seconds before the brokers are tried again if none accepts a connection."""


async def read_spans(
    spans: Mapping[TopicPartition, Span | list[Span]],
    bootstrap_servers: str,
    options: Mapping[str, object],
    *,
    rebootstrap_after: float = REBOOTSTRAP_AFTER,
    cluster_id: str | None = None,
) -> AsyncGenerator[Fetched, None]:
    """Read each partition from the start to the end of its spans, and then stop.

    ``options``: options of ``aiokafka.AIOKafkaConsumer``. ``rebootstrap_after``: seconds without metadata before the
    client rebootstraps. ``cluster_id``: the expected cluster; None accepts any. See :meth:`Client.read
    <aioparallel.group.client.Client.read>`.

    Raises ClusterChanged if the cluster is another one. Raises FetchFailed for a record that cannot be read, after the
    records before it. Raises TimeoutError if a request is not answered for 30 seconds.
    """
    left: dict[Place, deque[Span]] = {}
    ends: dict[Place, int] = {}  # reported even if the last span is empty
    for partition, given in spans.items():
        each = [given] if isinstance(given, Span) else given
        if some := deque(span for span in each if span.start < span.end):
            left[Place(*partition)], ends[Place(*partition)] = some, each[-1].end
        elif each:
            yield Fetched(partition, [], each[-1].end)
    if not left:
        return
    what = ", ".join(sorted({place.topic for place in left}))
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        **{
            **aiokafka_options(options),
            "group_id": None,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",  # skips what retention has deleted meanwhile
            "isolation_level": "read_committed",
        },
    )
    broker_watch = BrokerWatch(
        cast("Consumer", consumer)._client,
        bootstrap_servers,
        STALLED,
        rebootstrap_after=rebootstrap_after,
        cluster_id=cluster_id,
    )
    try:
        await _start(consumer, what, bootstrap_servers, options)
        consumer.assign(list(left))
        for tp, some in left.items():
            consumer.seek(tp, some[0].start)
        async for read in _read(consumer, broker_watch, left, ends):
            yield read
    except kafka.KafkaError as error:
        raise translated(error, f"reading {what}") from error
    finally:
        await _stop(consumer)


async def _start(consumer: Any, what: str, bootstrap_servers: str, options: Mapping[str, object]) -> None:
    """Connect to a broker that answers, rather than wait for one that hangs."""
    try:
        server = await find_broker(bootstrap_servers, connection_options(options), STALLED, KNOCK_AGAIN)
    except TimeoutError as error:
        raise BrokerUnreachable(bootstrap_servers, STALLED, str(error)) from None
    cast("Consumer", consumer)._client._bootstrap_servers = server
    async with deadline(STALLED, f"connecting to read {what}"):
        await consumer.start()


async def _read(
    consumer: Any, broker_watch: BrokerWatch, left: dict[Place, deque[Span]], ends: Mapping[Place, int]
) -> AsyncGenerator[Fetched, None]:
    loop = asyncio.get_running_loop()
    positions = {tp: some[0].start for tp, some in left.items()}
    fetcher = cast("Fetcher", cast("Consumer", consumer)._fetcher)
    # Not getmany(): at a damaged batch it loses the records before it, and does not report its position.
    walk = FetchWalk(fetcher, cast("Consumer", consumer)._subscription, FetchedEpochs(), read_committed=True)
    moved = loop.time()
    while left:
        if broker_watch.failure is not None:
            raise broker_watch.failure
        # Takes no records or errors of partitions that are complete.
        quotas = {TopicPartition(*tp): MOST_AT_ONCE for tp in left}
        found = {one.partition: one.records for one in walk.take(quotas, MOST_AT_ONCE)}
        if not found:
            await _data(fetcher, POLL)
            found = {one.partition: one.records for one in walk.take(quotas, MOST_AT_ONCE)}
        for tp, some in list(left.items()):
            span = some[0]
            # Also without records: at the end of a span there may be only gaps, which move just the position.
            next_offset = min(await _position(consumer, tp), span.end)
            if next_offset == positions[tp]:
                continue
            positions[tp], moved = next_offset, loop.time()
            if next_offset >= span.end:
                some.popleft()
                if some:
                    positions[tp] = some[0].start
                    consumer.seek(tp, some[0].start)
                else:
                    del left[tp]
                    consumer.pause(tp)
            partition = TopicPartition(*tp)
            reported = next_offset if tp in left else ends[tp]
            yield Fetched(partition, [one for one in found.get(partition, ()) if one.offset < span.end], reported)
            moved = loop.time()  # without the time that the caller took
        if loop.time() - moved > STALLED:
            at = ", ".join(f"{tp} at offset {positions[tp]}" for tp in sorted(left))
            raise ClientError(f"no record has come for {STALLED:g} s ({at}); is the cluster reachable?")


async def _position(consumer: Any, tp: Place) -> int:
    """The position. aiokafka waits for ever when it must query the position after retention has deleted it."""
    async with deadline(STALLED, f"asking where {tp.topic}-{tp.partition} begins"):
        return int(await consumer.position(tp))


async def _data(fetcher: Fetcher, timeout: float) -> None:
    """Wait up to ``timeout`` seconds for fetched data."""
    waiter = fetcher._create_fetch_waiter()
    try:
        await asyncio.wait([waiter], timeout=timeout)
        if waiter.done():
            waiter.result()  # raises a fatal error of aiokafka
    finally:
        waiter.cancel()


async def _stop(consumer: Any) -> None:
    """Stop the consumer, ignoring errors. Raises only CancelledError.

    Runs as a task, because aiokafka's ``stop`` may raise a CancelledError of its own.
    """
    stopping = asyncio.create_task(consumer.stop())
    stopping.add_done_callback(lambda task: task.cancelled() or task.exception())
    await asyncio.wait([stopping], timeout=STOP_TIMEOUT)
    stopping.cancel()
