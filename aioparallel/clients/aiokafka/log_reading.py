"""Reads the current records of some partitions once, without a group."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any, Final

import aiokafka.errors as kafka
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as Place  # required by aiokafka's assign() and seek()

from aioparallel.clients.aiokafka.aiokafka_errors import translated
from aioparallel.clients.aiokafka.broker_watch import BrokerWatch
from aioparallel.clients.aiokafka.connecting import close, start_client
from aioparallel.clients.aiokafka.fetching import FetchWalk
from aioparallel.clients.aiokafka.internals import Fetcher
from aioparallel.clients.aiokafka.metadata_updates import REBOOTSTRAP_AFTER
from aioparallel.group.client import Fetched, Span
from aioparallel.records.errors import ClientError
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
    only_committed: bool = True,
) -> AsyncGenerator[Fetched, None]:
    """Read each partition from the start to the end of its spans, and then stop.

    ``options``: options of ``aiokafka.AIOKafkaConsumer``; those about groups are not used. ``rebootstrap_after``:
    seconds without metadata before the client rebootstraps. ``cluster_id``: the expected cluster; None accepts any.
    ``only_committed``: whatever ``options`` say. See
    :meth:`Client.read <aioparallel.group.client.Client.read>`.

    Raises ClusterChanged if the cluster is another one. Raises FetchFailed for a record that cannot be read, after the
    records before it. Raises BrokerUnreachable if no broker answers for 30 seconds, and ClientError if nothing comes
    for as long.
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
        **{
            **options,
            "bootstrap_servers": bootstrap_servers,
            "group_id": None,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",  # skips what retention has deleted meanwhile
            **({"isolation_level": "read_committed"} if only_committed else {}),
        },
    )
    broker_watch = BrokerWatch(
        consumer._client,
        bootstrap_servers,
        STALLED,
        rebootstrap_after=rebootstrap_after,
        cluster_id=cluster_id,
    )
    stop = partial(close, consumer, STOP_TIMEOUT)
    await start_client(consumer._client, consumer.start, stop, STALLED, KNOCK_AGAIN)
    try:
        consumer.assign(list(left))
        for tp, some in left.items():
            consumer.seek(tp, some[0].start)
        async for read in _read(consumer, broker_watch, left, ends):
            yield read
    except kafka.KafkaError as error:
        raise translated(error, f"reading {what}") from error
    finally:
        await stop()


async def _read(
    consumer: Any, broker_watch: BrokerWatch, left: dict[Place, deque[Span]], ends: Mapping[Place, int]
) -> AsyncGenerator[Fetched, None]:
    loop = asyncio.get_running_loop()
    positions = {tp: some[0].start for tp, some in left.items()}
    # Not getmany(): at a damaged batch it loses the records before it, and does not report its position.
    walk = FetchWalk(consumer._fetcher, consumer._subscription, read_committed=True)
    moved = loop.time()
    while left:
        if broker_watch.failure is not None:
            raise broker_watch.failure
        # Takes no records or errors of partitions that are complete.
        quotas = {TopicPartition(*tp): MOST_AT_ONCE for tp in left}
        found = {one.partition: one for one in walk.take(quotas, MOST_AT_ONCE)}
        if not found:
            await _data(consumer._fetcher, POLL)
            found = {one.partition: one for one in walk.take(quotas, MOST_AT_ONCE)}
        for tp, some in list(left.items()):
            span, partition = some[0], TopicPartition(*tp)
            # Also without records: at the end of a span there may be only gaps, which move the position. It is None
            # while aiokafka asks for another one, after retention.
            if (position := walk.position(partition)) is None or min(position, span.end) == positions[tp]:
                continue
            next_offset = min(position, span.end)
            positions[tp], moved = next_offset, loop.time()
            if next_offset >= span.end:
                some.popleft()
                if some:
                    positions[tp] = some[0].start
                    consumer.seek(tp, some[0].start)
                else:
                    del left[tp]
                    consumer.pause(tp)
            reported = next_offset if tp in left else ends[tp]
            taken = found.get(partition, Fetched(partition, [], reported))
            records = [one for one in taken.records if one.offset < span.end]
            yield Fetched(partition, records, reported, taken.leader_epochs)
            moved = loop.time()  # without the time that the caller took
        if loop.time() - moved > STALLED:
            at = ", ".join(f"{tp} at offset {positions[tp]}" for tp in sorted(left))
            raise ClientError(f"no record has come for {STALLED:g} s ({at}); is the cluster reachable?")


async def _data(fetcher: Fetcher, timeout: float) -> None:
    waiter = fetcher._create_fetch_waiter()
    try:
        await asyncio.wait([waiter], timeout=timeout)
        if waiter.done():
            waiter.result()  # raises a fatal error of aiokafka
    finally:
        waiter.cancel()
