"""KmqConsumer: records of a queue, acknowledged one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from inspect import iscoroutinefunction
from math import ceil
from typing import Any, Unpack

from aioparallel.consumer import ParallelConsumer
from aioparallel.delivery.producer import Producer
from aioparallel.engine.processor import Processor
from aioparallel.engine.waiting import why_ended
from aioparallel.errors import ConfigurationError, ConsumerStateError
from aioparallel.group.client import Client
from aioparallel.group.run import GroupRun
from aioparallel.handlers import deserialise
from aioparallel.handling import Ordering
from aioparallel.observe.health import Health
from aioparallel.options import PlainFields
from aioparallel.policies import FailurePolicy, RetryBudget, RetryPolicy, TooLargeLetters
from aioparallel.queues.kmq.leases import Lease, Redelivery, check_lease, check_seconds
from aioparallel.queues.kmq.marking import Marking
from aioparallel.queues.kmq.topics import QueueTopics
from aioparallel.queues.kmq.tracker import RedeliveryTracker
from aioparallel.records import K_co, Record, V_co

__all__ = ["KmqConsumer"]

# What stands for an option here, and why.
_REFUSED: Mapping[str, str] = {
    "order_by": "has no meaning in a queue: what is delivered again comes behind what was sent after it",
    "failures": "is not the queue's way: give retry= for tries within the lease, and dead_letter=",
    "state": "cannot stand in a queue, which knows no order of keys",
    "deduplicate": "cannot stand in a queue, whose records have no source",
    "when_map_is_full": "has no meaning in a queue, which writes no offset maps worth the name",
}


class _Released(FailurePolicy):
    """Of a queue: what fails is left to be delivered again."""

    @property
    def retry_budget(self) -> RetryBudget:
        return super().retry_budget._replace(redelivers=True)


class KmqConsumer(ParallelConsumer[K_co, V_co]):
    """A consumer of a queue: each record is somebody's for the time of a lease, and is delivered again, to anybody,
    where its handler has not succeeded by then. One slow or failing record holds up no other, not even of its key.

    ::

        async with KmqConsumer("jobs", bootstrap_servers="localhost:9092", group_id="workers", lease=30) as consumer:
            await consumer.run(work)

    ``topic``: the queue, one topic. Neither it nor the two beside it are created.
    ``marker_topic``: where start and end of each record are noted, by default its name with ``-markers``; as many
    partitions, ``message.timestamp.type=LogAppendTime`` is advised.
    ``dead_letter``: a topic for records that were delivered too often, and for what a handler rejects; by default its
    name with ``__undelivered``.
    ``dead_letter_too_large``: what becomes of a record that it does not take for its size, as in
    :class:`~aioparallel.FailurePolicy`.
    ``lease``: seconds, or a quick function of the record, deserialised, that gives them; where that raises, the record
    fails, and comes again after 30 s. It begins when the record is read, and anew when its handler is called. Meanwhile
    it is renewed, for as long as handlers of a lease each may take to come to it; what was not begun by then is left to
    others (by default after three leases, for ``max_buffered`` is twice ``max_concurrency``).
    ``retry``: tries of this consumer within the lease; by default one. Then, and where the lease would end before the
    next try, the record is left alone, and is delivered again when its lease is over.
    ``max_redeliveries``: of one record, by the tracker.
    ``tracker``: whether a :class:`RedeliveryTracker` runs here too, in group ``"<group_id>-redelivery"``; None: yes,
    unless there is a ``client`` of your own, which is a member of one group only. Without any tracker nothing is ever
    delivered again.

    All else as in :class:`~aioparallel.ParallelConsumer`, which has no order here: ``ordering`` other than UNORDERED is
    refused. A rebalance ends no handler. Markers are those of softwaremill's KMQ 0.3.2: consumers and trackers of both
    work together. Raises ConfigurationError.
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
                "cannot be kept in a queue: what is delivered again comes behind what was sent after it, and to "
                "anybody; leave it out, or use ParallelConsumer",
            )
        if options.get("commits") is not None:
            raise ConfigurationError(
                "commits",
                options["commits"],
                "cannot be told of a queue: its records are delivered again by their markers, at least once",
            )
        self._queue = QueueTopics(topic, marker_topic, dead_letter)
        retry = retry or RetryPolicy(max_attempts=1)
        _check_lease_option(lease, retry, options.get("handler_timeout"))
        options.setdefault("max_buffered", 2 * options.get("max_concurrency", 100))
        options["ordering"] = Ordering.UNORDERED
        options["failures"] = _Released(
            retry=Redelivery(retry),
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
        if self._producer is None:
            raise ConfigurationError("producer", None, "is needed beside a client of your own: markers are produced")
        self._lease = lease
        self._before = (check_lease,)
        self._admission = self._mark
        self._marking: Marking | None = None
        self._tracker = None
        if tracker and client is not None:
            raise ConfigurationError(
                "tracker",
                tracker,
                "cannot run beside a client of your own, which is a member of one group: run a RedeliveryTracker with "
                "another one",
            )
        if tracker is not False and client is None:
            self._tracker = RedeliveryTracker(
                topic,
                group_id=f"{group_id}-redelivery",
                bootstrap_servers=self._servers,
                marker_topic=self._queue.markers,
                dead_letter=self._queue.dead_letter,
                dead_letter_too_large=dead_letter_too_large,
                max_redeliveries=max_redeliveries,
                security=self.options.security,
                client_options=self.options.client_options,
                producing=self.options.producing,
                skip_unreadable=self.options.skip_unreadable,
                session_timeout=self.options.session_timeout,
                heartbeat_interval=self.options.heartbeat_interval,
            )

    def _mark(self, processor: Processor, fatal: Callable[[BaseException], None]) -> Marking:
        assert self._producer is not None
        prepare = partial(deserialise, self.options.key_deserializer, self.options.value_deserializer)
        # So many leases it takes until all that was read before a record has had a handler for a lease.
        retry_budget = 1 + ceil(self.options.max_buffered / self.options.max_concurrency)
        self._marking = Marking(
            processor, fatal, self._producer, self._queue.markers, self._lease, prepare, retry_budget
        )
        return self._marking

    async def _connect(self) -> None:
        await super()._connect()
        found = await self._client.partitions(self._queue.names, self.options.connect_timeout)
        self._queue.check(found, self._servers)

    async def _run_group(self, engine: GroupRun) -> None:
        if self._tracker is None:
            await super()._run_group(engine)
            return
        async with self._tracker as tracker:
            tracking = asyncio.create_task(tracker.run(), name="aioparallel-tracker")
            tracking.add_done_callback(self._tracker_ended)
            try:
                await super()._run_group(engine)
            finally:
                tracker.stop()
                await asyncio.wait([tracking])

    def _tracker_ended(self, task: asyncio.Task[None]) -> None:
        """Without it nothing would be delivered again, and nobody would know."""
        error = why_ended(task, is_wanted=self._state.is_running)
        if error is not None:
            self._state.fail(error)
            self._follow()

    async def extend(self, record: Record[Any, Any], seconds: float) -> None:
        """From now on the lease of this record, whose handler calls this, ends in so many seconds; returns when that is
        acknowledged. KMQ's own tracker delivers it again at the end of the first lease all the same.

        Raises ConsumerStateError where it has no lease any more, ProduceFailed where it is not known to be extended.
        """
        check_seconds("seconds", seconds)
        if self._marking is None:
            raise ConsumerStateError("this consumer does not run, so there is no lease to be extended")
        await self._marking.extend(record, seconds)

    @property
    def tracker(self) -> RedeliveryTracker | None:
        """The one that runs here: for its ``stats()``."""
        return self._tracker

    def _health(self) -> Health:
        health = super()._health()
        if not health.running:
            return health
        beside = [] if self._marking is None or self._engine is None else self._marking.problems(self._engine.held)
        if self._tracker is not None:
            beside += self._tracker.health().problems
        return Health(running=health.running, problems=(*health.problems, *beside), joined=health.joined)


def _check_lease_option(lease: Any, retry: Any, handler_timeout: float | None) -> None:
    if not isinstance(retry, RetryPolicy):
        raise ConfigurationError("retry", retry, "must be a RetryPolicy")
    if iscoroutinefunction(lease):
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
                f"must fit the lease of {lease:g} s: give it max_attempts, or a max_elapsed below that. What is not "
                "handled by then is delivered again anyway",
            )
        return
    waits = [retry.delay(Exception(), attempt, 0) or 0.0 for attempt in range(1, attempts)] if attempts < 1_000 else []
    needed = sum(waits) + attempts * (handler_timeout or 0)
    if attempts >= 1_000 or needed >= lease:
        raise ConfigurationError(
            "retry", retry, f"has tries that take {needed:g} s or more, and the lease is {lease:g} s: make them fit"
        )
