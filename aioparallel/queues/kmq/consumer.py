"""KmqConsumer: consumes a queue and acknowledges each record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Unpack

from aioparallel.config.callables import is_async
from aioparallel.config.extension import ConsumerContext
from aioparallel.config.handling import Ordering, check_choice, check_count, check_time
from aioparallel.config.option_docs import takes_options
from aioparallel.config.options import Options, PlainFields, checked_extensions
from aioparallel.config.policies import FailurePolicy, RetryBudget, RetryPolicy, TooLargeLetters
from aioparallel.consumer import ParallelConsumer
from aioparallel.delivery.producer import Producer
from aioparallel.group.client import Client
from aioparallel.queues.kmq.leases import Lease, Redelivery, check_seconds
from aioparallel.queues.kmq.leasing import Leasing
from aioparallel.queues.kmq.topics import QueueTopics
from aioparallel.queues.kmq.tracker import RedeliveryTracker
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import K_co, Record, V_co

__all__ = ["KmqConsumer"]

# Options that a queue refuses, and why.
_REFUSED: Mapping[str, str] = {
    "order_by": "does not apply to a queue: redelivered records come after newer ones",
    "failures": "does not apply to a queue: set retry= for attempts within the lease, and dead_letter=",
    "state": "does not work with a queue, which does not keep the order of keys",
    "deduplicate": "does not work with a queue, whose records do not name a source",
    "when_map_is_full": "does not apply to a queue, whose offset maps stay nearly empty",
}


class _Released(FailurePolicy):
    """Failed records are released, and redelivered later."""

    @property
    def retry_budget(self) -> RetryBudget:
        assert isinstance(self.retry, RetryPolicy)
        return super().retry_budget._replace(retry=Redelivery(self.retry), redelivers=True)


@takes_options(Options, without=(*_REFUSED, "ordering", "commits"), defaults={"max_buffered": "2 * max_concurrency"})
class KmqConsumer(ParallelConsumer[K_co, V_co]):
    """A consumer of a queue: each record is leased to one consumer for a time.

    If its handler has not succeeded by then, the record is redelivered to any consumer. A slow or failing record delays
    no other, not even of its key.

    ::

        async with KmqConsumer("jobs", bootstrap_servers="localhost:9092", group_id="workers", lease=30) as consumer:
            await consumer.run(work)

    ``topic``: the queue, one topic. No topic is created: neither the queue nor the two others.
    ``marker_topic``: the topic of the start and end markers of records. None: the name of the queue with ``-markers``.
    It needs as many partitions as the queue; ``message.timestamp.type=LogAppendTime`` is advised.
    ``dead_letter``: the topic for records that were delivered too often or that a handler rejects. None: the name of
    the queue with ``__undelivered``.
    ``dead_letter_too_large``: what happens to a record that is too large for that topic, as in
    :class:`~aioparallel.FailurePolicy`.
    ``lease``: seconds, or a quick function that returns them for a deserialised record. If the function raises, the
    record fails, and is redelivered after 30 s. The lease starts when the record is read, and again when its handler is
    called. While the record waits, its lease is renewed for ``1 + max_buffered / max_concurrency`` leases (rounded up;
    three by default). Records that have not started by then are released to other consumers.
    ``retry``: attempts of this consumer within the lease; by default one. After them, or if the lease would end before
    the next attempt, the record is released, and is redelivered when its lease has ended.
    ``max_redeliveries``: maximum number of redeliveries of one record by the tracker.
    ``tracker``: whether a :class:`RedeliveryTracker` runs in this consumer, in group ``"<group_id>-redelivery"``. None:
    yes, unless ``client`` is given, which is a member of one group only. Without any tracker nothing is redelivered.

    All else is as in :class:`~aioparallel.ParallelConsumer`, but without order: an ``ordering`` other than UNORDERED is
    refused. Handlers continue during a rebalance. Markers are those of softwaremill's KMQ 0.3.2: consumers and trackers
    of both work together. Raises ConfigurationError.
    """

    def __init__(
        self,
        topic: str,
        *,
        bootstrap_servers: str = "localhost:9092",
        group_id: str,
        marker_topic: str | None = None,
        dead_letter: str | None = None,
        dead_letter_too_large: TooLargeLetters = "drop_value",
        lease: Lease = 30.0,
        retry: RetryPolicy | None = None,
        max_redeliveries: int = 3,
        tracker: bool | None = None,
        client: Client | None = None,
        producer: Producer | None = None,
        key_deserializer: Callable[[bytes], K_co] | None = None,
        value_deserializer: Callable[[bytes], V_co] | None = None,
        **options: Unpack[PlainFields],
    ) -> None:
        given: Mapping[str, Any] = options
        for name, why in _REFUSED.items():
            if name in given:
                raise ConfigurationError(name, given[name], why)
        ordering = options.pop("ordering", Ordering.UNORDERED)
        if ordering is not Ordering.UNORDERED:
            raise ConfigurationError(
                "ordering",
                ordering,
                "does not apply to a queue: redelivered records come after newer ones, and to any consumer; leave it "
                "out, or use ParallelConsumer",
            )
        if options.get("commits") is not None:
            raise ConfigurationError(
                "commits",
                options["commits"],
                "does not apply to a queue: its records are redelivered by their markers, at least once",
            )
        check_choice("tracker", tracker, (None, True, False))
        check_count("max_redeliveries", max_redeliveries, 0)
        check_count("max_concurrency", options.get("max_concurrency", 1))
        if options.get("handler_timeout") is not None:
            check_time("handler_timeout", options["handler_timeout"])
        if tracker and client is not None:
            raise ConfigurationError(
                "tracker",
                tracker,
                "cannot run with a client of your own, which is a member of one group: run a RedeliveryTracker with "
                "another client",
            )
        self._queue = QueueTopics(topic, marker_topic, dead_letter)
        self._too_large: TooLargeLetters = dead_letter_too_large
        self._max_redeliveries = max_redeliveries
        has_tracker = tracker is not False and client is None
        self._leasing = Leasing(self._queue, lease, self._new_tracker if has_tracker else None)
        retry = RetryPolicy(max_attempts=1) if retry is None else retry
        _check_lease_option(lease, retry, options.get("handler_timeout"))
        options.setdefault("max_buffered", 2 * options.get("max_concurrency", 100))
        options["ordering"] = Ordering.UNORDERED
        options["extensions"] = (self._leasing, *checked_extensions(options.get("extensions", ())))
        options["failures"] = _Released(
            retry=retry,
            dead_letter=self._queue.dead_letter,
            dead_letter_too_large=dead_letter_too_large,
        )
        super().__init__(
            self._queue.queue,
            bootstrap_servers=bootstrap_servers,
            group_id=group_id,
            client=client,
            producer=producer,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            **options,
        )

    def _new_tracker(self, consumer: ConsumerContext) -> RedeliveryTracker:
        options = consumer.options
        return RedeliveryTracker(
            self._queue.queue,
            group_id=f"{consumer.group_id}-redelivery",
            bootstrap_servers=consumer.servers,
            marker_topic=self._queue.markers,
            dead_letter=self._queue.dead_letter,
            dead_letter_too_large=self._too_large,
            max_redeliveries=self._max_redeliveries,
            security=options.security,
            client_options=options.client_options,
            producing=options.producing,
            skip_unreadable=options.skip_unreadable,
            session_timeout=options.session_timeout,
            heartbeat_interval=options.heartbeat_interval,
            group_protocol=options.group_protocol,
            group_remote_assignor=options.group_remote_assignor,
        )

    async def extend(self, record: Record[Any, Any], seconds: float) -> None:
        """Set the lease of a record to end ``seconds`` from now; call it in the record's handler.

        Returns when the extension is acknowledged. KMQ's own tracker ignores it, and redelivers the record at the end
        of the first lease. Raises ConsumerStateError if the record has no lease any more, and ProduceFailed if it is
        not known whether the lease is extended.
        """
        check_seconds("seconds", seconds)
        await self._leasing.extend(record, seconds)

    @property
    def tracker(self) -> RedeliveryTracker | None:
        """The tracker that runs in this consumer, or None."""
        return self._leasing.tracker


def _check_lease_option(lease: Any, retry: Any, handler_timeout: float | None) -> None:
    if not isinstance(retry, RetryPolicy):
        raise ConfigurationError("retry", retry, "must be a RetryPolicy")
    if is_async(lease):
        raise ConfigurationError(
            "lease", lease, "must be a plain function: it is called as records are read, not awaited"
        )
    if callable(lease):
        return
    check_seconds("lease", lease)
    attempts = retry.max_attempts
    if attempts is None:
        if retry.max_elapsed is None or retry.max_elapsed >= lease:
            raise ConfigurationError(
                "retry",
                retry,
                f"must fit the lease of {lease:g} s: set max_attempts, or a max_elapsed below the lease. A record that "
                "is not handled by then is redelivered anyway",
            )
        return
    waits = [retry.delay(Exception(), attempt, 0) or 0.0 for attempt in range(1, attempts)] if attempts < 1_000 else []
    needed = sum(waits) + attempts * (handler_timeout or 0)
    if attempts >= 1_000 or needed >= lease:
        raise ConfigurationError(
            "retry", retry, f"has attempts that take {needed:g} s or more, and the lease is {lease:g} s: make them fit"
        )
