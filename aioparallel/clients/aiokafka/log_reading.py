"""One pass over the records that some partitions hold now, without a group."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, cast

import aiokafka.errors as kafka
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as Place  # its own: it takes no other

from aioparallel.clients.aiokafka.broker_watch import BrokerWatch
from aioparallel.clients.aiokafka.connecting import find_broker
from aioparallel.clients.aiokafka.errors import deadline, translated
from aioparallel.clients.aiokafka.fetching import FetchWalk
from aioparallel.clients.aiokafka.internals import Consumer, Fetcher
from aioparallel.clients.aiokafka.log_identity import FetchedEpochs
from aioparallel.clients.aiokafka.metadata_updates import REBOOTSTRAP_AFTER
from aioparallel.clients.aiokafka.settings import aiokafkas, connection_options
from aioparallel.errors import BrokerUnreachable, ClientError
from aioparallel.group.client import Fetched, Span
from aioparallel.records import TopicPartition

__all__ = ["read_spans"]

MOST_AT_ONCE: Final = 500
"""Records in one portion; replay sends so many before it marks them."""

POLL: Final = 0.5
"""Seconds until it is looked again, without data, where a partition stands."""
STALLED: Final = 30.0
"""Seconds without any progress after which reading is given up."""

STOP_TIMEOUT: Final = 5.0
KNOCK_AGAIN: Final = 0.1
"""Seconds until the brokers are tried again of which none takes a connection."""


async def read_spans(
    spans: Mapping[TopicPartition, Span | list[Span]],
    bootstrap_servers: str,
    options: Mapping[str, object],
    *,
    rebootstrap_after: float = REBOOTSTRAP_AFTER,
    cluster_id: str | None = None,
) -> AsyncGenerator[Fetched, None]:
    """Read each partition from the start of its span, or of each of them, to its end, and then stop.

    ``options``: of ``aiokafka.AIOKafkaConsumer``. See :meth:`Client.read <aioparallel.group.client.Client.read>`.
    ``rebootstrap_after``: seconds without metadata. ``cluster_id``: of the cluster to read from; None: of any.
    Raises ClusterChanged where it is another one; FetchFailed where a record cannot be read, after those before it; and
    TimeoutError as well, when a request is not answered for 30 seconds.
    """
    left: dict[Place, deque[Span]] = {}
    ends: dict[Place, int] = {}  # the last span may be empty: its end is told all the same
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
            **aiokafkas(options),
            "group_id": None,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",  # what retention took away meanwhile is passed
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
    """Connect to a broker that answers, and do not wait for one that hangs where another can tell."""
    try:
        server = await find_broker(bootstrap_servers, connection_options(options), STALLED, KNOCK_AGAIN)
    except TimeoutError as error:
        raise BrokerUnreachable(bootstrap_servers, STALLED, str(error)) from error
    cast("Consumer", consumer)._client._bootstrap_servers = server
    async with deadline(STALLED, f"connecting to read {what}"):
        await consumer.start()


async def _read(
    consumer: Any, broker_watch: BrokerWatch, left: dict[Place, deque[Span]], ends: Mapping[Place, int]
) -> AsyncGenerator[Fetched, None]:
    loop = asyncio.get_running_loop()
    positions = {tp: some[0].start for tp, some in left.items()}
    fetcher = cast("Fetcher", cast("Consumer", consumer)._fetcher)
    # And no getmany(): where a batch is damaged that loses what came before it, and does not say where it stands.
    walk = FetchWalk(fetcher, cast("Consumer", consumer)._subscription, FetchedEpochs(), read_committed=True)
    moved = loop.time()
    while left:
        if broker_watch.failure is not None:
            raise broker_watch.failure
        # Of a partition that is read nothing more is taken, and no error either.
        quotas = {TopicPartition(*tp): MOST_AT_ONCE for tp in left}
        found = {one.partition: one.records for one in walk.take(quotas, MOST_AT_ONCE)}
        if not found:
            await _data(fetcher, POLL)
            found = {one.partition: one.records for one in walk.take(quotas, MOST_AT_ONCE)}
        for tp, some in list(left.items()):
            span = some[0]
            # Also where nothing was delivered: what lies behind may be gaps only, and just the position tells.
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
            told = next_offset if tp in left else ends[tp]
            yield Fetched(partition, [one for one in found.get(partition, ()) if one.offset < span.end], told)
            moved = loop.time()  # what was done with it took its own time
        if loop.time() - moved > STALLED:
            at = ", ".join(f"{tp} at offset {positions[tp]}" for tp in sorted(left))
            raise ClientError(f"no record has come for {STALLED:g} s ({at}); is the cluster reachable?")


async def _position(consumer: Any, tp: Place) -> int:
    """aiokafka waits for ever when the position has to be asked for: where retention has taken it away."""
    async with deadline(STALLED, f"asking where {tp.topic}-{tp.partition} begins"):
        return int(await consumer.position(tp))


async def _data(fetcher: Fetcher, timeout: float) -> None:
    """Wait until something was fetched, or for so long."""
    waiter = fetcher._create_fetch_waiter()
    try:
        await asyncio.wait([waiter], timeout=timeout)
        if waiter.done():
            waiter.result()  # what aiokafka cannot go on after
    finally:
        waiter.cancel()


async def _stop(consumer: Any) -> None:
    """Never raises but when cancelled: what was read is what counts.

    As a task of its own: aiokafka's ``stop`` can end with a CancelledError that nobody sent.
    """
    stopping = asyncio.create_task(consumer.stop())
    stopping.add_done_callback(lambda task: task.cancelled() or task.exception())
    await asyncio.wait([stopping], timeout=STOP_TIMEOUT)
    stopping.cancel()
