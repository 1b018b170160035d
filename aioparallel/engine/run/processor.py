"""Puts scheduler, workers, endings and retries together: everything needed to run records.

The fetcher feeds it with records from Kafka, ``engine/flow/flow.py`` with any other items.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Collection, Hashable, Sequence

from aioparallel.config.handling import Handling
from aioparallel.config.policies import RetryBudget
from aioparallel.engine.outcomes.batch_endings import BatchEndings
from aioparallel.engine.outcomes.endings import Endings
from aioparallel.engine.outcomes.failure_log import FailureLog
from aioparallel.engine.outcomes.failures import Failures
from aioparallel.engine.outcomes.retries import Retries
from aioparallel.engine.outcomes.shortages import Shortages
from aioparallel.engine.run.workers import WorkerPool
from aioparallel.engine.schedule.counters import EndState
from aioparallel.engine.schedule.fairness import MakeTurnQueue, round_robin
from aioparallel.engine.schedule.scheduler import AnyRecord, Scheduler
from aioparallel.engine.signals import Signals
from aioparallel.engine.sinks import DeadLetterSink, NoOutputs, OutputSink
from aioparallel.engine.sources import Source
from aioparallel.engine.watch.deadlines import Watch
from aioparallel.engine.watch.lingering import Lingering
from aioparallel.event_loop.left_behind import LeftBehind
from aioparallel.handlers.batches import Call
from aioparallel.handlers.stack import Stack
from aioparallel.observe.record_logging import coordinates

__all__ = ["Processor"]

logger = logging.getLogger(__name__)

# Seconds between two log lines about one partition that is full.
_FULL_LOG_PAUSE = 60.0
# Seconds that a handler has to end after its second cancellation. After that the event loop ends without it.
_LAST_GRACE = 0.2


class Processor:
    """Runs admitted records with the order and bounds of ``handling`` and with ``retry_budget``. Make it within a
    running event loop.

    ``output_sink`` takes what handlers return, ``dead_letter_sink`` the records that failed for good. The owner sets
    the functions of ``signals``. ``turns``: makes the queue in which sources take turns.
    """

    def __init__(
        self,
        stack: Stack,
        handling: Handling,
        retry_budget: RetryBudget,
        signals: Signals,
        *,
        output_sink: OutputSink | None = None,
        dead_letter_sink: DeadLetterSink | None = None,
        log: FailureLog | None = None,
        turns: MakeTurnQueue = round_robin,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._drained = asyncio.Event()  # a source that drains has nothing in flight or producing any more
        # The bound on parked records is checked before starts. All records in flight may fail afterwards and be parked
        # as well, so it is lower by their number.
        self.scheduler = Scheduler(
            handling.ordering,
            handling.order_by,
            slots=handling.max_concurrency,
            max_parked=handling.parked_bound - handling.max_concurrency,
            signals=signals,
            on_drained=lambda source: self._drained.set(),
            on_full=self._fullness_changed,
            batchings=stack.batchings,
            turns=turns,
        )
        self._handling = handling
        self._full_logged: dict[Hashable, float] = {}
        self.left_behind: Sequence[LeftBehind] = ()
        """After :meth:`close`: handlers that still run."""
        self.retries = Retries(self.scheduler, self.notify)
        self.has_deadlines = handling.handler_timeout is not None
        """Whether handlers have a timeout."""
        watch = None if handling.handler_timeout is None else Watch(handling.handler_timeout)
        log = log or FailureLog()
        self.shortages = Shortages(log.fields)
        """Resources of the process that were exhausted recently."""
        self._endings = endings = Endings(
            self.scheduler,
            Failures(retry_budget),
            output_sink or NoOutputs(),
            dead_letter_sink or NoOutputs(),
            self.retries,
            signals,
            self.notify,
            watch,
            log,
            self.shortages,
        )
        assembler = self.scheduler.assembler
        self._lingering = None if assembler is None else Lingering(assembler, self.notify)
        self.pool = WorkerPool(
            self.scheduler,
            stack.handler,
            handling.max_concurrency,
            endings,
            signals,
            watch,
            None if assembler is None else BatchEndings(self.scheduler, endings),
            task_per_record=handling.isolation == "task",
        )

    def set_max_concurrency(self, most: int) -> None:
        """Run at most so many handlers at once from now on. Those that run go on. The bound of parked records follows,
        if ``max_parked`` is not set."""
        if most == self.scheduler.slots:
            return
        # Ends the turn, if a handler sets it: its worker may be one too many.
        self.scheduler.flush_counters()
        handling = dataclasses.replace(self._handling, max_concurrency=most)
        self.scheduler.set_bounds(most, handling.parked_bound - most)
        self.pool.set_size(most)

    def admit(self, source: Source, records: Sequence[AnyRecord]) -> None:
        """Run these records. Offsets ascend within a source."""
        if records:
            self.scheduler.admit(source, records)
            self.pool.notify()

    def skip(self, source: Source, records: Collection[AnyRecord]) -> None:
        """End buffered or parked records of a source without their handlers."""
        self.scheduler.skip(source, records)
        self.retries.forget(records)
        self.notify()

    def release(self, source: Source, records: Collection[AnyRecord]) -> None:
        """Release buffered or parked records of a source: they will be delivered again."""
        self.scheduler.skip(source, records, EndState.RELEASED)
        self.retries.forget(records)
        self.notify()

    def dead_letter(self, source: Source, records: Collection[AnyRecord], error: Exception) -> None:
        """Dead-letter buffered or parked records of a source without their handlers. ``error``: why."""
        self.scheduler.skip(source, records, None)
        self.retries.forget(records)
        for record in sorted(records, key=lambda one: one.offset):
            self._endings.give_up(record, error)
        self.notify()

    def notify(self) -> None:
        """Wake a worker if a record is ready."""
        if self.scheduler.has_ready:
            self.pool.notify()

    @property
    def has_batches(self) -> bool:
        """Whether some records are handled in batches."""
        return self.scheduler.assembler is not None

    def set_no_more_input(self, source: Source, no_more_input: bool) -> None:
        """Set whether the source brings nothing until some of its records start or end, so batches need not wait."""
        assembler = self.scheduler.assembler
        if assembler is not None and no_more_input is not source.no_more_input:
            assembler.set_no_more_input(source, no_more_input)
            self.notify()

    def time(self) -> float:
        """The loop's time. Any thread may call this."""
        return self._loop.time()

    def only_waits(self, until: float) -> bool:
        """Whether all unfinished records are paused, or parked and not due before ``until``, on the loop's clock."""
        scheduler = self.scheduler
        if scheduler.ready:  # due records count as parked until a worker takes them
            return False
        paused = sum([source.buffered for source in scheduler.sources if source.paused])
        return scheduler.unfinished == scheduler.parked + paused and self.retries.next_time >= until

    async def drain(
        self,
        sources: Sequence[Source],
        seconds: float,
        cancel_grace: float,
        *,
        lasted: float | None = None,
        afterwards: str = "at the next owner of the partition",
    ) -> None:
        """Start nothing more of these sources, and wait for their records in flight.

        After ``seconds`` the handlers that still run are cancelled. They get ``cancel_grace`` seconds to end. If an
        earlier drain has cancelled them, their grace began then.

        One line is logged about those that are cancelled, unless the drain had no time from the beginning. ``lasted``:
        the seconds in the line, of the whole drain; None: ``seconds``. ``afterwards``: when their records run again.
        """
        for source in sources:
            self.scheduler.stop(source)
        self.notify()  # batches shared with other sources may be due now
        if seconds > 0 and await self._have_drained(sources, seconds):
            return
        if lasted := seconds if lasted is None else lasted:
            self._log_cut_off(sources, lasted, afterwards)
        cancelled_at = self.cancel(sources)
        if cancelled_at is not None:
            await self._have_drained(sources, max(0.0, cancelled_at + cancel_grace - self._loop.time()))

    async def _have_drained(self, sources: Sequence[Source], seconds: float) -> bool:
        """Wait until nothing of these stopped sources is in flight or producing. False: not within ``seconds``. A
        rebalance and a close may drain the same sources at once."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while left := [source for source in sources if source.begun and not source.dropped]:
                    sources = left
                    self._drained.clear()
                    await self._drained.wait()
                return True
        return False

    def cancel(self, sources: Sequence[Source]) -> float | None:
        """Cancel the running handlers of these sources, each once. Returns when the last of them was cancelled, on the
        loop's clock; None: none of them runs."""
        wanted = set(sources)
        return self.pool.cancel(lambda record: record._source in wanted)

    def _log_cut_off(self, sources: Sequence[Source], seconds: float, afterwards: str) -> None:
        of_these = set(sources)
        running = self.pool.running(lambda record: record._source in of_these)
        if not running:
            return
        first = min(running, key=lambda one: (*one.topic_partition, one.offset))
        what = "1 handler that still runs is" if len(running) == 1 else f"{len(running)} handlers that still run are"
        logger.warning(
            "The drain has lasted %g s (drain_timeout): %s cancelled, the first of them for %s. Records that do not "
            "end now run again %s",
            seconds,
            what,
            first.place,
            afterwards,
            extra={"action": "drain_over", "handlers": len(running), "seconds": seconds, **coordinates(first)},
        )

    def log_hurried(self, afterwards: str = "at the next owner of the partition") -> None:
        """Log one line about the handlers that a hurried stop cancels, if there are any. ``afterwards``: as in
        :meth:`drain`."""
        running = self.pool.running(lambda record: True)
        if not running:
            return
        first = min(running, key=lambda one: (*one.topic_partition, one.offset))
        logger.warning(
            "The stop is hurried (a second signal, a cancellation, or drain=False): %d running handlers are cancelled, "
            "the first of them for %s. Records that do not end now run again %s",
            len(running),
            first.place,
            afterwards,
            extra={"action": "stop_hurried", "handlers": len(running), **coordinates(first)},
        )

    async def close(self, timeout: float) -> None:
        """End the workers. Handlers that do not end within ``timeout`` seconds are cancelled a second time. The event
        loop does not wait for those that still run after that. One line is logged for each of both."""
        self.retries.close()
        if self._lingering is not None:
            self._lingering.close()
        late = await self.pool.close(timeout)
        self.left_behind = tuple(await self.pool.leave(_LAST_GRACE))
        still_run = {left.record for left in self.left_behind}
        for record in late:
            if (record.records[0] if isinstance(record, Call) else record) in still_run:
                continue  # logged below
            logger.warning(
                "handler for %s did not end after it was cancelled; it is left behind",
                record.place,
                extra={"action": "handler_abandoned", **coordinates(record)},
            )
        for left in self.left_behind:
            logger.error(
                "handler for %s still runs although it was cancelled twice: its event loop ends without it. "
                "It is at:\n%s",
                left.record.place,
                left.stack,
                extra={"action": "handler_not_stopped", **coordinates(left.record)},
            )

    def _fullness_changed(self, source: Source) -> None:
        if source.full:
            if not self._may_log_full(source):
                return
            logger.warning(
                "%s: starts retries only, until fewer records wait for a retry: it has reached its part of max_parked "
                "(%d of its records wait, %d in all)",
                source.name,
                len(source.parked),
                self.scheduler.parked,
                extra={"action": "max_parked", "parked": len(source.parked)},
            )
        else:
            logger.debug("%s: starts new records again", source.name, extra={"action": "max_parked_over"})
            self.notify()

    def _may_log_full(self, source: Source) -> bool:
        """A partition may become full again every second, as retries come back."""
        now = time.monotonic()
        if now - self._full_logged.get(source.name, -math.inf) < _FULL_LOG_PAUSE:
            return False
        self._full_logged[source.name] = now
        return True
