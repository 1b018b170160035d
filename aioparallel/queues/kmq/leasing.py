"""The extension that makes a consumer one of a queue: leases by start markers, and a tracker beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from functools import partial
from math import ceil
from typing import Any

from aioparallel.config.extension import ConsumerContext, Extension
from aioparallel.engine.run.processor import Processor
from aioparallel.event_loop.waiting import why_ended
from aioparallel.handlers.stack import deserialise
from aioparallel.observe.health import Problem
from aioparallel.queues.kmq.leases import Lease, check_lease
from aioparallel.queues.kmq.marking import Marking
from aioparallel.queues.kmq.topics import QueueTopics
from aioparallel.queues.kmq.tracker import RedeliveryTracker
from aioparallel.records.errors import ConfigurationError, ConsumerStateError
from aioparallel.records.record import Record, TopicPartition

__all__ = ["Leasing"]


class Leasing(Extension):
    """Leases records. ``new_tracker``: makes the tracker that runs with the consumer; None: there is none."""

    _consumer: ConsumerContext

    def __init__(
        self,
        topics: QueueTopics,
        lease: Lease,
        new_tracker: Callable[[ConsumerContext], RedeliveryTracker] | None,
    ) -> None:
        self._topics = topics
        self._lease = lease
        self._new_tracker = new_tracker
        self._marking: Marking | None = None
        self._tracking: asyncio.Task[None] | None = None
        self.tracker: RedeliveryTracker | None = None

    def attach(self, consumer: ConsumerContext) -> None:
        """Make the tracker."""
        if consumer.producer is None:
            raise ConfigurationError("producer", None, "is needed beside a client of your own: markers are produced")
        self._consumer = consumer
        if self._new_tracker is not None:
            self.tracker = self._new_tracker(consumer)

    async def check(self, partitions: Collection[TopicPartition], timeout: float) -> None:
        """Check that the topics of the queue fit each other."""
        self._topics.check(await self._consumer.client.partitions(self._topics.names, timeout), self._consumer.servers)

    def may_attempt(self, record: Record[Any, Any]) -> None:
        """Check the lease. Raises LeaseOver, LeaseFailed."""
        check_lease(record)

    def admission(self, processor: Processor) -> Marking:
        """Records run when their start markers are acknowledged."""
        assert self._consumer.producer is not None
        options = self._consumer.options
        prepare = partial(deserialise, options.key_deserializer, options.value_deserializer)
        # After so many leases, each record that was read before this one has had a handler for one lease.
        leases = 1 + ceil(options.max_buffered / options.max_concurrency)
        self._marking = Marking(
            processor,
            self._consumer.fail,
            self._consumer.producer,
            self._topics.markers,
            self._lease,
            prepare,
            leases,
        )
        return self._marking

    async def start(self) -> None:
        """Start the tracker."""
        if self.tracker is None:
            return
        await self.tracker.__aenter__()
        self._tracking = asyncio.create_task(self.tracker.run(), name="aioparallel-tracker")
        self._tracking.add_done_callback(self._tracker_ended)

    async def stop(self) -> None:
        """Stop the tracker."""
        if self.tracker is None or self._tracking is None:
            return
        self.tracker.stop()
        try:
            await asyncio.wait([self._tracking])
        except asyncio.CancelledError:  # its time is over
            self.tracker.stop(drain=False)
            raise
        finally:
            await self.tracker.__aexit__(None, None, None)

    def _tracker_ended(self, task: asyncio.Task[None]) -> None:
        """End the run: without a tracker nothing is delivered again."""
        error = why_ended(task, is_wanted=self._consumer.is_running())
        if error is not None:
            self._consumer.fail(error)

    async def extend(self, record: Record[Any, Any], seconds: float) -> None:
        """See :meth:`KmqConsumer.extend <aioparallel.queues.kmq.KmqConsumer.extend>`."""
        if self._marking is None:
            raise ConsumerStateError("this consumer does not run, so there is no lease to be extended")
        await self._marking.extend(record, seconds)

    def problems(self) -> Iterable[Problem]:
        """Partitions without start markers, and what the tracker says."""
        if not self._consumer.is_running() or self._marking is None:
            return ()
        of_tracker = () if self.tracker is None else self.tracker.health().problems
        return (*self._marking.problems(self._consumer.partitions()), *of_tracker)
