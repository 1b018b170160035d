"""The run of a share consumer: from acquired records to acknowledged ones.

It takes the place of a :class:`~aioparallel.group.run.GroupRun`. A share group has no positions, no commits and no
rebalances: each record is acknowledged by itself, and a partition that is assigned no more just brings nothing new.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from aioparallel.config.policies import RetryBudget
from aioparallel.engine.outcomes.failure_log import FailureLog
from aioparallel.engine.outcomes.failures import Decision
from aioparallel.engine.run.processor import Processor
from aioparallel.engine.signals import Signals
from aioparallel.event_loop.left_behind import LeftBehind
from aioparallel.event_loop.waiting import unless
from aioparallel.group.join_log import JoinLog
from aioparallel.group.membership import RunParts
from aioparallel.group.rebalancer import CANCEL_GRACE
from aioparallel.group.run_tasks import RunTasks
from aioparallel.group.share_client import ShareClient
from aioparallel.group.snapshot import problems_of
from aioparallel.observe.health import Problem
from aioparallel.observe.stats import BrokerOutputs, Stats
from aioparallel.queues.share.acknowledging import Acknowledgements, OnLate
from aioparallel.queues.share.acquiring import ON_ITS_WAY, Acquirer
from aioparallel.queues.share.deliveries import Deliveries
from aioparallel.queues.share.ends import ShareEnds
from aioparallel.queues.share.keeping import LockKeeper
from aioparallel.queues.share.locks import Locks
from aioparallel.queues.share.redelivery import Redelivery, ShareRetry
from aioparallel.queues.share.snapshot import share_stats
from aioparallel.queues.share.sources import NotedLetters, ShareSource, ShareSources, lock_of, stage_of
from aioparallel.records.errors import LastDelivery, NotCommitted, NotSkipped
from aioparallel.records.record import Record, TopicPartition
from aioparallel.records.skipped import Skipped

__all__ = ["ShareRun"]

_HURRY: Final = 0.01
"""Seconds in which a hurried stop takes what has come already."""
_REJECTED: Final = "REJECTED: no more attempts, and it is not delivered again"
_RELEASED: Final = "no more attempts here: it is delivered again, unless this was its last delivery"
_SKIPS_NOTHING: Final = (
    "a share group has no positions in which an offset could be skipped. Raise Reject in the handler: then the record "
    "is not delivered again"
)


class ShareRun:
    """Runs handlers for the records that one member acquires. Make it within a running event loop, and use it once."""

    def __init__(
        self,
        client: ShareClient,
        parts: RunParts,
        retry: ShareRetry,
        deliveries: Deliveries,
        on_late: OnLate | None,
    ) -> None:
        self._client = client
        self._group_id, self._options, self._state = parts.group_id, parts.options, parts.state
        self._extensions = extensions = parts.extensions
        self._tasks = RunTasks(parts.state, self.follow)
        self.fail = self._tasks.fail
        """End the run, which raises this error. A later one is logged."""
        extensions.on_failure = self._tasks.fail_at_end
        signals = Signals()
        locks = Locks(stage_of, deliveries.is_last)
        redelivery = Redelivery(retry, deliveries, locks, may_renew=self._may_renew, may_retry=self._may_retry)
        letters = None if parts.dead_letter_sink is None else NotedLetters(parts.dead_letter_sink)
        self._letters = letters if deliveries.has_letters else None
        self._log = FailureLog({"group_id": self._group_id}, _REJECTED, _RELEASED)
        self._processor = Processor(
            parts.stack,
            self._options,
            RetryBudget(
                redelivery,
                "dead_letter" if deliveries.has_letters else "skip",
                redelivers=True,
                may_retry=redelivery.may_run_alone,
                option="retry",
            ),
            signals,
            output_sink=parts.output_sink,
            dead_letter_sink=letters,
            log=self._log,
        )
        self._processor.scheduler.pauses_of = self._state.pauses.of
        self._keeper = LockKeeper(locks, self._processor, self._per_second, self._may_renew, deliveries)
        self._acknowledgements = Acknowledgements(
            client,
            locks,
            on_late,
            on_settled=self._changed,
            on_renewed=self._keeper.set_timer,
            on_lost=self._keeper.lose,
            fatal=self.fail,
        )
        self._keeper.acknowledgements = self._acknowledgements
        self._sources = ShareSources(self._new_source)
        batchings = parts.stack.batchings
        self._acquirer = Acquirer(
            client,
            self._options,
            self._state,
            self._processor,
            self._sources,
            self._keeper,
            1 if batchings is None else batchings.largest,
            self._changed,
        )
        self._ends: ShareEnds | None = None
        if self._options.until is not None:
            self._ends = ShareEnds(
                client, self._acquirer, self._acknowledgements, locks, self._is_idle, self._end_reached
            )
        self._join_log = JoinLog(self._group_id)
        self._fetching: asyncio.Task[None] | None = None
        self._pauses_followed = self._state.pauses.version
        self._was_paused = False
        self._has_assignment = False
        self._owing = Counter[TopicPartition]()
        signals.taken, signals.idle, signals.fatal = self._acquirer.replan, self._acquirer.replan, self.fail
        signals.attempted = extensions.listener("attempts_ended")
        signals.completed = extensions.listener("records_ended")
        signals.failed = extensions.listener("attempt_failed")

    def _new_source(self, partition: TopicPartition) -> ShareSource:
        return ShareSource(partition, self._acknowledgements, self._keeper.missed)

    def _may_renew(self) -> bool:
        return self._client.may_renew

    def _may_retry(self, record: Record[Any, Any]) -> bool:
        source, scheduler = record._source, self._processor.scheduler
        return not (source.stopped or scheduler.paused or source.is_paused(record))

    def _per_second(self) -> float:
        return self._acquirer.per_second

    def _is_idle(self) -> bool:
        return not self._processor.scheduler.unfinished

    # -- running ----------------------------------------------------------------------------------------

    async def run(self, topics: Collection[str] | re.Pattern[str]) -> None:
        """Join the group, and run until a stop is requested, nothing is left (``until="end"``), or a failure, which is
        raised.

        After a stop everything is settled when this returns. After a failure or a cancellation nothing new starts, and
        :meth:`close` settles the rest.
        """
        assert not isinstance(topics, re.Pattern)
        self._join_log.start()
        self._client.subscribe(topics, self._assigned)
        self._fetching = self._tasks.spawn(self._acquirer.run(), "fetcher")
        working = [self._tasks.spawn(work(), "extension") for work in self._extensions.hooks("work")]
        if self._ends is not None:
            self._tasks.spawn(self._ends.run(), "ends")
        self.follow()
        try:
            await self._state.ending.wait()
        except asyncio.CancelledError as error:
            self._state.fail(error)
            self.follow()
            raise
        finally:
            self._join_log.stop()
        if self._state.failure is not None:
            raise self._state.failure
        await self.settle()
        await self._tasks.end(working)  # before extensions are stopped
        if self._tasks.failed_at_end is not None:
            raise self._tasks.failed_at_end
        if self._ends is not None and self._owing:
            raise self._not_acknowledged(self._owing)

    def _assigned(self, partitions: Collection[TopicPartition]) -> None:
        """The assignment has changed. Records of partitions that are assigned no more go on: their locks are held."""
        self._acquirer.assign(partitions)
        self._has_assignment = True
        if partitions:
            self._join_log.stop()

    def follow(self) -> None:
        """Start records, or start no more, after the state has changed. What is paused is released: its locks would end
        here. Only what is in its last delivery stays."""
        state, scheduler = self._state, self._processor.scheduler
        has_new_pauses = self._pauses_followed != state.pauses.version
        if has_new_pauses:
            self._pauses_followed = state.pauses.version
            scheduler.follow_pauses(self._sources.all)
        if state.is_running:
            self._acquirer.exclude()
        if scheduler.slots != state.max_concurrency:
            self._processor.set_max_concurrency(state.max_concurrency)
        if state.may_start:
            scheduler.resume()
            self._was_paused = False
            if has_new_pauses:
                self._keeper.release(lambda source, record: source.is_paused(record))
        else:
            scheduler.pause()
            if not self._was_paused:
                self._was_paused = True
                self._keeper.release(lambda source, record: True)
            if not state.is_running and self._fetching is not None:
                self._fetching.cancel()
        self._changed()

    def _changed(self) -> None:
        self._acquirer.replan()
        self._processor.notify()

    def _end_reached(self) -> None:
        self._state.stop(drain=True)
        self.follow()

    async def commit_now(self) -> None:
        """Wait until everything that has ended is acknowledged. Raises NotCommitted if that takes longer than
        ``commit_timeout`` seconds."""
        self._processor.scheduler.flush_counters()  # a handler may ask
        owing = await self._acknowledgements.settled(self._processor.time() + self._options.commit_timeout)
        if owing:
            raise self._not_acknowledged(owing)

    def _not_acknowledged(self, owing: Mapping[TopicPartition, int]) -> NotCommitted:
        reasons = {partition: f"{count:,} acknowledgements without an answer" for partition, count in owing.items()}
        return NotCommitted(self._group_id, reasons)

    async def skip(self, partition: TopicPartition, offsets: Sequence[int], *, dry_run: bool) -> list[Skipped]:
        """Raises NotSkipped."""
        raise NotSkipped(TopicPartition(*partition), sorted(offsets), _SKIPS_NOTHING)

    # -- ending -----------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Release what was not begun, drain (unless the stop is hurried), release the rest, and wait for the answers to
        all acknowledgements. A second call does nothing."""
        self._join_log.stop()
        if self._state.is_settled:
            return
        self._state.stop(drain=True)
        self.follow()
        # Also after a pause, during which handlers may have been put back.
        self._keeper.release_all()
        rest = self._tasks.spawn(self._acquirer.take_rest(), "fetcher")
        sources, processor = list(self._sources.all), self._processor
        try:
            await self._drain(sources)
            await asyncio.wait([rest], timeout=_HURRY if self._state.hurried.is_set() else ON_ITS_WAY)
        finally:  # also if run() is cancelled now: close() settles the rest
            await self._tasks.end([rest])
        ends = processor.time() + self._options.commit_timeout
        await unless(self._state.hurried, self._dead_letter_rest(ends))
        self._keeper.release_rest(lock for source in self._sources.all for lock in source.locks.values())
        for source in sources:
            processor.scheduler.drop(source)
        self._owing = await self._acknowledgements.settled(ends)
        self._state.settle()

    async def _drain(self, sources: Sequence[ShareSource]) -> None:
        afterwards = "at any member, unless this was their last delivery"
        drain = self._processor.drain(sources, self._options.drain_timeout, CANCEL_GRACE, afterwards=afterwards)
        await unless(self._state.hurried, drain)
        if self._state.hurried.is_set():
            self._processor.log_hurried(afterwards)
        await self._processor.drain(sources, 0, CANCEL_GRACE)  # a hurried stop cancels what still runs
        try:
            await unless(self._state.hurried, self._extensions.finish())
        except Exception as error:  # what is left is released in any case
            self._tasks.fail_at_end(error)

    async def _dead_letter_rest(self, ends: float) -> None:
        """Dead-letter what was cut off in its last delivery, and wait for all dead letters of last deliveries, until
        ``ends`` on the loop's clock."""
        if self._letters is None:
            return
        last = self._keeper.last_ones()
        left, scheduler = set(last), self._processor.scheduler

        def done(record: Record[Any, Any], error: Exception | None) -> None:
            if record not in left:
                return  # too late: it was released meanwhile
            left.remove(record)
            if error is None and lock_of(record) is not None:
                record._source.complete(record.offset)
                scheduler.count_dropped_as_dead_letter(record)

        decision = Decision(end="dead_letter")
        for record in last:
            error = LastDelivery()
            self._log.decided(record, error, decision, time.monotonic())
            self._letters.dispose(record, error, None, done)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(ends):
                    await self._letters.last_written()
        finally:
            left.clear()

    async def close(self) -> None:
        """Settle, then end every coroutine of the run."""
        try:
            await self.settle()
        finally:
            tasks = self._tasks.cancel()
            self._keeper.close()
            await self._processor.close(CANCEL_GRACE)
            await self._tasks.end(tasks)

    # -- statistics and health --------------------------------------------------------------------------

    def stats(self, outputs: Sequence[BrokerOutputs]) -> Stats:
        """Return a snapshot. ``outputs``: of the producer."""
        self._processor.scheduler.flush_counters()  # a handler may ask
        found = share_stats(
            self._client.contact(),
            self._processor,
            self._state,
            self._acquirer,
            self._keeper,
            self._acknowledgements,
            tuple(outputs),
        )
        return self._extensions.through("stats", found)

    def problems(self, undelivered: Mapping[Record[Any, Any], str]) -> tuple[Problem, ...]:
        """Return all health problems. ``undelivered``: records that cannot be dead-lettered, and why."""
        return (
            *problems_of(self._client.contact(), self._processor, (), undelivered, self._options.stuck_after),
            *self._acquirer.problems(),
            *self._keeper.problems(),
            *self._extensions.problems(),
        )

    @property
    def left_behind(self) -> Sequence[LeftBehind]:
        """After :meth:`close`: handlers that still run."""
        return self._processor.left_behind

    @property
    def held(self) -> Collection[TopicPartition]:
        """The partitions from which this member acquires records."""
        return self._acquirer.assigned

    @property
    def has_joined(self) -> bool:
        """Whether the group has sent an assignment."""
        return self._has_assignment
