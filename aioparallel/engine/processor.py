"""Scheduler, workers, failures and retry timer together: all that is needed to run records, from wherever they come.

A Kafka partition feeds it through the fetcher; a test, or a task of another engine, through ``process.py``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from aioparallel.engine.failure_log import FailureLog
from aioparallel.engine.failures import Decision, Failures, NotDue
from aioparallel.engine.handlers import Handler
from aioparallel.engine.isolation import Ended
from aioparallel.engine.outlets import Abandoned, Disposal, NoOutlet, Outlet
from aioparallel.engine.retries import RetryQueue
from aioparallel.engine.scheduler import AnyRecord, Outcome, Scheduler
from aioparallel.engine.sources import Source
from aioparallel.engine.watch import Stuck
from aioparallel.engine.workers import WorkerPool
from aioparallel.errors import RecordStopped
from aioparallel.options import Options

__all__ = ["Processor"]

logger = logging.getLogger(__name__)


# Parked records that one turn of the event loop makes ready, at most (about half a millisecond).
_AT_ONCE = 1_000
# Entries of dropped sources that the retry queue may hold beside as many as are parked.
_FORGOTTEN = 1_000


class _DrainWait(NamedTuple):
    sources: Sequence[Source]
    done: asyncio.Future[None]


class Processor:
    """Runs admitted records under the options' order, bounds and failure policy.

    ``outlet`` takes what handlers return, ``disposal`` the records whose patience has ended. It hears itself what
    became of the former: it is their :class:`~aioparallel.engine.outlets.Receipts`.
    ``on_fatal(error)`` hears what must end everything; ``on_idle()`` that there may be nothing more to do.
    """

    def __init__(
        self,
        handler: Handler,
        options: Options,
        *,
        outlet: Outlet | None = None,
        disposal: Disposal | None = None,
        on_fatal: Callable[[BaseException], None],
        on_idle: Callable[[], None],
    ) -> None:
        # All that is in flight may fail at once and be parked beyond the bound that is looked at before starts.
        self.scheduler = Scheduler(
            options.ordering,
            options.order_by,
            slots=options.max_concurrency,
            max_parked=options.parked_bound - options.max_concurrency,
        )
        self.scheduler.on_drained = self._look_at_drains
        self.scheduler.on_full = self._fullness_changed
        self._outlet: Outlet = outlet or NoOutlet()
        self._disposal: Disposal = disposal or NoOutlet()
        self._on_fatal = on_fatal
        self._on_idle = on_idle
        self._failures = Failures(options.failures)
        self._failure_log = FailureLog()
        self._retries = RetryQueue()
        # uvloop gives a handle without a time for a time that has come, so ours is kept beside it.
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        # A rebalance and a close may drain the same sources at once: each has its own wait.
        self._drains: list[_DrainWait] = []
        self._pool = WorkerPool(
            self.scheduler,
            handler,
            options.max_concurrency,
            hand_over=self._hand_over,
            on_returned=self._returned,
            on_failed=self._failed,
            on_fatal=on_fatal,
            on_idle=on_idle,
            timeout=options.handler_timeout,
            task_per_record=options.isolation == "task",
        )

    def admit(self, source: Source, records: Sequence[AnyRecord]) -> None:
        """Run these records, ascending by offset within their source."""
        if records:
            self.scheduler.admit(source, records)
            self._pool.notify()

    def notify(self) -> None:
        """Something may have become ready: let a worker look."""
        if self.scheduler.has_ready:
            self._pool.notify()

    @property
    def stuck(self) -> list[Stuck]:
        """Handlers that ignore the cancellation at their deadline."""
        return self._pool.stuck

    async def drain(self, sources: Sequence[Source], seconds: float, cancel_grace: float) -> None:
        """Start nothing more of these sources and wait for what is in flight.

        After ``seconds`` the handlers still running are cancelled, and get ``cancel_grace`` seconds to end.
        """
        for source in sources:
            self.scheduler.stop(source)
        if seconds > 0 and await self._drained(sources, seconds):
            return
        if self.cancel(sources):
            await self._drained(sources, cancel_grace)

    def cancel(self, sources: Sequence[Source]) -> int:
        """Cancel the handlers in flight of these sources. Returns how many."""
        wanted = set(sources)
        return self._pool.cancel(lambda record: record._source in wanted)

    async def _drained(self, sources: Sequence[Source], seconds: float) -> bool:
        wait = _DrainWait(sources, asyncio.get_running_loop().create_future())
        self._drains.append(wait)
        self._look_at_drains()
        try:
            await asyncio.wait([wait.done], timeout=seconds)
        finally:
            self._drains.remove(wait)
        return wait.done.done()

    def _look_at_drains(self) -> None:
        for wait in self._drains:
            if not wait.done.done() and not any(s.draining and s.current for s in wait.sources):
                wait.done.set_result(None)

    async def close(self, timeout: float) -> None:
        """End the workers; names the handlers that do not end within ``timeout`` seconds."""
        if self._timer is not None:
            self._timer.cancel()
        for record in await self._pool.close(timeout):
            logger.warning(
                "handler for %s offset %d did not end after it was cancelled; it is left behind",
                record.topic_partition,
                record.offset,
                extra={"action": "handler_abandoned", "offset": record.offset},
            )

    # -- outcomes ---------------------------------------------------------------------------------------

    def _hand_over(self, record: AnyRecord, outcome: object) -> bool:
        """Let outputs leave in one step where that is possible; what is not goes through :meth:`_returned`."""
        if type(outcome) is not Ended or not outcome.is_plain or record._source.dropped:
            return False
        if not self._outlet.offer(record, outcome.value, self):
            return False
        outcome.value = None  # or the worker would keep it until its next record
        return True

    async def _returned(self, record: AnyRecord, value: object) -> None:
        """The handler has returned: let its outputs leave. Within the worker's slot until there is room for them."""
        outputs = self._outlet.collect(record, value)
        if outputs is None:
            self.scheduler.succeed(record)
            return
        while (room := self._outlet.room()) is not None:
            self.notify()  # this worker waits, others need not
            await room
        if not record._source.dropped:
            self.scheduler.produce(record)
            self._outlet.deliver(record, outputs, self)
        else:
            self.scheduler.put_back(record)  # dropped while it waited; its next owner runs it

    def delivered(self, records: Sequence[AnyRecord]) -> None:
        """See :class:`~aioparallel.engine.outlets.Receipts`."""
        worker_comes = self.scheduler.has_ready
        self.scheduler.end_produced(records)
        self._after_end(worker_comes)

    def undelivered(self, record: AnyRecord, error: Exception) -> None:
        """See :class:`~aioparallel.engine.outlets.Receipts`."""
        if isinstance(error, Abandoned) or not record._source.current:
            self.scheduler.put_back(record)
            self._look_around()
            return
        decision = self._decide(record, error)
        if decision is None or decision.delay is not None:
            self._park(record, decision)
        else:
            self._end(record, error, decision)

    async def _failed(self, record: AnyRecord, error: Exception) -> None:
        """An attempt has failed. Within the worker's slot until there is room for a dead letter."""
        decision = self._decide(record, error)
        if decision is None or decision.delay is not None:
            self._park(record, decision)
            return
        if decision.retry_topic or decision.end == "dead_letter":
            while (room := self._disposal.room()) is not None:
                self.notify()
                await room
            if not record._source.current:
                self.scheduler.put_back(record)
                return
            self.scheduler.produce(record)
        self._end(record, error, decision)

    def _decide(self, record: AnyRecord, error: Exception) -> Decision | None:
        """None when the decision itself failed, which ends the run."""
        try:
            decision = self._failures.decide(record, error, time.time())
        except Exception as broken:
            broken.add_note(f"while deciding what becomes of {record!r}, which failed with {error!r}")
            self._on_fatal(broken)
            return None
        if not decision.waits:
            self.scheduler.failed_attempts += 1
        if not isinstance(error, NotDue):
            self._failure_log.decided(record, error, decision, time.monotonic())
        return decision

    def _end(self, record: AnyRecord, error: Exception, decision: Decision) -> None:
        """No more attempts here. The record is in flight, or producing if it is to be put away."""
        if decision.end == "skip":
            self._end_record(record, Outcome.SKIPPED)
        elif decision.end == "stop":
            self._park(record, None)
            stopped = RecordStopped(
                f"{record.topic_partition} offset {record.offset} failed for good (attempt {record.attempt - 1}): "
                f"{error!r}; its offset is not committed. Mend the cause and start again, or tell the failure policy "
                'where such records go: FailurePolicy(dead_letter="a topic"), or give_up="skip"'
            )
            stopped.__cause__ = error
            self._on_fatal(stopped)
        else:
            self._disposal.dispose(record, error, decision.retry_topic, self._disposed)

    def _disposed(self, record: AnyRecord, error: Exception | None) -> None:
        if error is None:
            self._end_record(record, Outcome.DEAD_LETTERED)
        else:
            self._park(record, None)  # given up because its source is stopped
            self._look_around()

    def _end_record(self, record: AnyRecord, outcome: Outcome) -> None:
        worker_comes = self.scheduler.has_ready
        self.scheduler.end(record, outcome)
        self._after_end(worker_comes)

    def _after_end(self, worker_comes: bool) -> None:
        """``worker_comes``: something was ready before, so a worker was woken for it and will wake others."""
        if not worker_comes:
            self.notify()
        if not self.scheduler.producing:
            self._on_idle()

    def _look_around(self) -> None:
        self.notify()
        if not self.scheduler.producing:
            self._on_idle()

    # -- retries ----------------------------------------------------------------------------------------

    def _park(self, record: AnyRecord, decision: Decision | None) -> None:
        """Park until the decision's time; without one for good, because the run ends."""
        if self.scheduler.park(record) and decision is not None and decision.delay is not None:
            retries = self._retries
            retries.add(record, asyncio.get_running_loop().time() + decision.delay)
            if len(retries) > 2 * self.scheduler.parked + _FORGOTTEN:
                # Records of dropped sources would stay until their time, which may be far away.
                retries.keep(lambda one: one._source.current)
            self._set_timer()

    def _fullness_changed(self, source: Source) -> None:
        if source.full:
            logger.warning(
                "%s: starts retries only, until fewer records wait for one: max_parked leaves this partition no more "
                "room (%d of its records wait, %d of all)",
                source.name,
                source.parked,
                self.scheduler.parked,
                extra={"action": "max_parked", "parked": source.parked},
            )
        else:
            logger.info("%s: starts new records again", source.name, extra={"action": "max_parked_over"})
            self.notify()

    def _set_timer(self) -> None:
        when = self._retries.next_time
        if when is None or (self._timer is not None and self._timer_at <= when):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = asyncio.get_running_loop().call_at(when, self._unpark_due), when

    def _unpark_due(self) -> None:
        self._timer = None
        # A timer may fire within the clock's resolution before its time; half a millisecond early is on time.
        for record in self._retries.due(asyncio.get_running_loop().time() + 0.0005, _AT_ONCE):
            self.scheduler.unpark(record)
        self._set_timer()  # at once, if more are due: each turn of the event loop takes some
        self.notify()
