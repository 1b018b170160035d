"""From a handler's end to its record's outcome.

A handler that returned None needs nothing from this module. A plain output is sent in one step
(:meth:`Endings.hand_over`). Everything else goes through :meth:`Endings.finish` while the record still holds its
worker:

* The handler returned: a deferral is awaited, outputs are collected, and they wait for capacity before they are sent.
* The attempt failed: the failure policy decides what happens next.

Delivery results come later: for outputs through :meth:`Endings.delivered` and :meth:`Endings.undelivered`, for dead
letters through :meth:`Endings.disposed`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Final

from aioparallel.engine.isolation import Ended, drive, resume
from aioparallel.engine.outcomes.failure_log import FailureLog
from aioparallel.engine.outcomes.failures import Decision, Failures, NotDue
from aioparallel.engine.outcomes.gates import Refused, give_back_of
from aioparallel.engine.outcomes.retries import Retries
from aioparallel.engine.outcomes.shortages import Shortages
from aioparallel.engine.schedule.counters import EndState
from aioparallel.engine.schedule.scheduler import AnyRecord, Scheduler
from aioparallel.engine.signals import Signals
from aioparallel.engine.sinks import Abandoned, DeadLetterSink, Offered, OutputSink, Unfit
from aioparallel.engine.watch.cancellation import CancelReason, Worker
from aioparallel.engine.watch.deadlines import Watch
from aioparallel.handlers.batches import Call
from aioparallel.handlers.running_out import out_of_resources
from aioparallel.handlers.stack import collect
from aioparallel.records.errors import HandlerCancelled, HandlerTimeout, LockLost, OutOfResources, RecordStopped
from aioparallel.records.history import Skip, history_of
from aioparallel.records.user_errors import repr_of

__all__ = ["Endings"]

logger = logging.getLogger(__name__)

# What follows after the last attempt, for Signals.failed.
_ENDS: Final = {"dead_letter": "dead-lettered", "skip": "skipped", "release": "released", "stop": "stopped"}
_NOT_COMMITTED: Final = (
    "its offset is not committed. Fix the cause and start again, or let the failure policy handle such records: "
    'FailurePolicy(dead_letter="a topic"), or give_up="skip"'
)
_STAYS: Final = (
    "it is delivered again. Fix the cause and start again, or let the retry function return something else than "
    '"stop" for such records'
)


@dataclass(eq=False, repr=False)
class Endings:
    """Gives each started record its outcome, or parks it, or puts it back.

    It is the :class:`~aioparallel.engine.sinks.DeliveryListener` of all records. ``notify()`` wakes a worker if a
    record is ready; it is called when the current worker is about to wait.
    """

    _scheduler: Scheduler
    _failures: Failures
    output_sink: OutputSink
    dead_letter_sink: DeadLetterSink
    _retries: Retries
    _signals: Signals
    _notify: Callable[[], None]
    _watch: Watch | None
    _log: FailureLog
    _shortages: Shortages

    # -- in the worker ----------------------------------------------------------------------------------

    def hand_over(self, record: AnyRecord, ended: Ended) -> Offered | None:
        """Send a plain output in one step. None: call :meth:`finish`."""
        if not ended.is_plain or record._source.dropped:
            return None
        offered = self.output_sink.offer(record, ended.value, self)
        if offered is not None:
            ended.value = None  # or the worker would keep it until its next record
        return offered

    async def finish(self, worker: Worker, record: AnyRecord, context: Context, ended: Ended) -> None:
        """Take a record from in flight to its outcome. Raises what must end the worker."""
        failure = ended.error
        if failure is None:
            try:
                await self._conclude(worker, record, context, ended.value)
            except BaseException as error:
                failure = error
        if failure is not None:
            if _is_to_skip(record) and not isinstance(failure, KeyboardInterrupt | SystemExit):
                self._skip_cancelled(record, failure)
            else:
                await self._failed(worker, record, failure)
        if record._history is not None:
            record._history.deferral = None
        await worker.take_back_cancels()

    async def _conclude(self, worker: Worker, record: AnyRecord, context: Context, value: object) -> None:
        """The handler has returned: await a deferral, collect outputs, send them when there is capacity."""
        # The handler succeeded: a late cancellation must not reach the code below.
        await worker.take_back_cancels()
        _refuse_skipped(record)
        if isinstance(value, AsyncIterable):
            value = await self.collected(worker, record, context, value)
        history = record._history
        if history is not None and history.deferral is not None:
            self._notify()
            value = await history.deferral.wait(value)
            if isinstance(value, AsyncIterable):
                value = await self.collected(worker, record, context, value)
        _refuse_skipped(record)
        outputs = self.output_sink.collect(record, value)
        if outputs is None:
            self._scheduler.succeed(record)
            return
        await self.wait_for_capacity(self.output_sink.room)
        _refuse_skipped(record)
        if record._source.dropped:
            self._scheduler.put_back(record)  # dropped meanwhile: the next owner runs it
            return
        self._scheduler.produce(record)
        self.output_sink.deliver(record, outputs, self)

    async def collected(
        self, worker: Worker, record: AnyRecord | Call, context: Context, outputs: AsyncIterable[object]
    ) -> object:
        """Return the outputs of an async iterator. Iterating runs the handler's code, so it has a deadline as well."""
        self._notify()
        driver = drive(lambda _: collect(outputs), worker.task.cancelling)
        driver.send(None)
        first = context.run(driver.send, record)
        if self._watch is not None:
            self._watch.enter(worker)
        try:
            ended = await resume(driver, context, first)
        finally:
            if self._watch is not None:
                self._watch.leave(worker)
        assert isinstance(ended, Ended)  # not ENDED: a list is never None
        if ended.error is not None:
            raise ended.error
        return ended.value

    async def wait_for_capacity(self, room: Callable[[], Awaitable[None] | None]) -> None:
        """Wait until the sink has capacity, which ``room()`` reports by returning None."""
        while (waiter := room()) is not None:
            self._notify()  # this worker waits, so another one must take what is ready
            await waiter

    async def _failed(self, worker: Worker, record: AnyRecord, error: BaseException) -> None:
        history = record._history
        if history is not None and history.deferral is not None:
            history.deferral.forget()
            history.deferral = None  # or the next attempt would find it
        failure = self.failure_of(worker, record, error)
        if failure is None:
            return
        try:
            await worker.take_back_cancels()
            _refuse_skipped(record)
            await self._decided(record, failure)
        except asyncio.CancelledError as cancelled:
            # By a skip, by a drain, or from outside, while the record waited for capacity.
            if _is_to_skip(record):
                self._skip_cancelled(record, cancelled)
                return
            self._scheduler.put_back(record)
            if worker.cancel_reason is None:
                raise

    def failure_of(self, worker: Worker, handled: AnyRecord | Call, error: BaseException) -> Exception | None:
        """Return the failure of the record, or of the records of a call, whose handler ended with ``error``.

        None: a drain has cancelled the handler. That is no failure, even if the handler turned the CancelledError into
        another error. The records are put back, and dropped if their sources are stopped. Errors that must end the
        worker are raised, and the records are put back as well.
        """
        if worker.cancel_reason is CancelReason.DRAIN and not isinstance(error, KeyboardInterrupt | SystemExit):
            self._put_back(handled, error)
            return None
        if isinstance(error, asyncio.CancelledError):
            if (failure := self._cancelled(worker, handled, error)) is not None:
                return failure
        elif isinstance(error, Exception):
            return error
        else:
            logger.error(
                "%s: its handler raised %s, which ends the run; its offset is not committed. Only an Exception fails a "
                "record: do not call code in a handler that calls sys.exit(), such as argparse",
                handled.place,
                repr_of(error),
                extra={"action": "handler_exit"},
            )
        self._put_back(handled, error)
        raise error

    def _cancelled(self, worker: Worker, handled: AnyRecord | Call, error: asyncio.CancelledError) -> Exception | None:
        """Return the failure of a cancelled handler; None for a stray cancellation."""
        if worker.cancel_reason is CancelReason.DEADLINE:
            assert self._watch is not None
            return HandlerTimeout(self._watch.seconds)
        if worker.cancel_reason is CancelReason.LOST:
            return LockLost()
        failure = HandlerCancelled()
        failure.__cause__ = error
        if not worker.task.cancelling():
            return failure  # the handler raised it itself
        # A stray cancellation: from outside, from the handler's own task.cancel(), or from a timeout that an earlier
        # record left behind. The record starts again at once. The second stray in a row is the record's failure.
        records = handled.records if isinstance(handled, Call) else (handled,)
        are_first = [_is_first_stray(record) for record in records]  # a list: each record must note it
        return None if all(are_first) else failure

    def _put_back(self, handled: AnyRecord | Call, error: BaseException) -> None:
        if self._signals.failed is not None:
            for record in handled.records if isinstance(handled, Call) else (handled,):
                self._signals.failed(record, error, "put back", None)
        if isinstance(handled, Call):
            self._scheduler.put_back_together(handled)
        else:
            self._scheduler.put_back(handled)

    async def _decided(self, record: AnyRecord, error: Exception) -> None:
        decision = self.decide(record, error)
        if decision is not None and (decision.retry_topic or decision.end == "dead_letter"):
            await self.wait_for_capacity(self.dead_letter_sink.room)
            if record._source.dropped:
                self._scheduler.put_back(record)
                return
            _refuse_skipped(record)
            self._scheduler.produce(record)
        self.follow(record, error, decision)

    def _skip_cancelled(self, record: AnyRecord, error: BaseException) -> None:
        """End a record whose handler was cancelled because the record is skipped."""
        history = history_of(record)
        if history.deferral is not None:
            history.deferral.forget()
        give_back_of(record)
        if self._signals.failed is not None:
            self._signals.failed(record, error, "skipped", None)
        self._skip(record)

    def skip_put_back(self, call: Call) -> None:
        """End the records of a failed call that are to be skipped, and are parked behind others of their lanes."""
        for source, records in call.parts.items():
            gone = {record for record in records if _is_to_skip(record) and record in source.parked}
            if gone and not source.stopped:
                self._scheduler.skip(source, gone)
                for record in gone:
                    history_of(record).skip = Skip.DONE

    def _skip(self, record: AnyRecord) -> None:
        history_of(record).skip = Skip.DONE
        self._end(record, EndState.SKIPPED)

    # -- failures ---------------------------------------------------------------------------------------

    def decide(self, record: AnyRecord, error: Exception, others: int = 0, *, quiet: bool = False) -> Decision | None:
        """Decide what happens to a failed record. None: the decision itself failed, which ends the run.

        ``others``: how many other records of its batch failed with the same error. ``quiet``: do not log.
        """
        give_back_of(record)
        error = out_of_resources(error) or error
        if isinstance(error, OutOfResources):
            self._shortages.note(record, error)
        if isinstance(error, Refused):
            self._retries.watch(error.gate)
        try:
            decision = self._failures.decide(
                record, error, asyncio.get_running_loop().time(), time.time(), others=others
            )
        except BaseException as error_in_it:
            # The user's function awaits nothing, so it raised the CancelledError itself. Raised by run(), that would
            # look like a cancellation of run(). Other errors are raised by run() as well, and not by the worker: its
            # record would stay in flight without one.
            is_cancelled = isinstance(error_in_it, asyncio.CancelledError)
            broken = RuntimeError("it raised CancelledError") if is_cancelled else error_in_it
            broken.add_note(f"while deciding what becomes of {record!r}, which failed with {repr_of(error)}")
            if self._signals.failed is not None:
                self._signals.failed(record, error, "stopped", None)
            self._signals.fatal(broken)
            return None
        if not decision.waits:
            self._scheduler.counters.failed_attempts += 1
            record._source.counts.failed_attempts += 1
        if not isinstance(error, NotDue) and decision.no_room is None and not quiet:
            self._log.decided(record, error, decision, time.monotonic(), others)
        if self._signals.failed is not None and not isinstance(error, NotDue):
            self._signals.failed(record, error, _followed_by(decision), decision.delay)
        return decision

    def follow(self, record: AnyRecord, error: Exception, decision: Decision | None, now: float | None = None) -> None:
        """Apply a decision on a record in flight, or producing if it is dead-lettered. ``now``: when a delay begins."""
        if _is_to_skip(record):
            self._skip(record)
            return
        if decision is not None and decision.no_room is not None:
            self._retries.wait_at(decision.no_room, record, decision.delay)
        elif decision is None or decision.delay is not None:
            self._retries.park(record, None if decision is None else decision.delay, now)
        elif decision.end == "skip":
            self._end(record, EndState.SKIPPED)
        elif decision.end == "release":
            self._end(record, EndState.RELEASED)
        elif decision.end == "stop":
            self._retries.park(record, None)
            then = _STAYS if self._failures.redelivers else _NOT_COMMITTED
            stopped = RecordStopped(
                f"{record.place} failed for good (attempt {record.attempt - 1}): {repr_of(error)}; {then}"
            )
            stopped.__cause__ = error
            self._signals.fatal(stopped)
        else:
            try:
                self.dead_letter_sink.dispose(record, error, decision.retry_topic, self.disposed)
            except Exception as broken:  # its handler may have replaced its bytes with any object
                broken.add_note(f"while dead-lettering {record!r}")
                self._retries.park(record, None)
                self._signals.fatal(broken)

    def give_up(self, record: AnyRecord, error: Exception) -> None:
        """Dead-letter a producing record that was not handled, or is not handled again."""
        decision = Decision(end="dead_letter")
        self._log.decided(record, error, decision, time.monotonic())
        if self._signals.failed is not None:
            self._signals.failed(record, error, _followed_by(decision), None)
        self.follow(record, error, decision)

    # -- delivery results -------------------------------------------------------------------------------

    def delivered(self, records: Sequence[AnyRecord]) -> None:
        """All outputs of these records are acknowledged."""
        worker_comes = self._scheduler.has_ready
        self._scheduler.end_produced(records)
        self.after_end(worker_comes)

    def undelivered(self, record: AnyRecord, error: Exception) -> None:
        """An output of this record was not delivered."""
        if isinstance(error, Abandoned) or record._source.dropped:
            self._scheduler.put_back(record)
            self.after_end()
        else:
            self.follow(record, error, self.decide(record, error))

    def disposed(self, record: AnyRecord, error: Exception | None) -> None:
        """The dead letter of this record is written, or it is not because of ``error``."""
        if error is None:
            self._end(record, EndState.DEAD_LETTERED)
        elif isinstance(error, Unfit) and not record._source.dropped:
            decision = Decision(end=self._failures.end)
            self._log.decided(record, error.failure, decision, time.monotonic())
            self.follow(record, error.failure, decision)
            self.after_end()
        else:
            self._retries.park(record, None)
            self.after_end()

    def _end(self, record: AnyRecord, outcome: EndState) -> None:
        worker_comes = self._scheduler.has_ready
        self._scheduler.end(record, outcome)
        self.after_end(worker_comes)

    def after_end(self, worker_comes: bool = False) -> None:
        """Wake a worker or signal ``idle``, after a record has ended outside of a worker.

        ``worker_comes``: another record was ready before, so a worker is awake already and will wake others.
        """
        if not worker_comes:
            self._notify()
        if not self._scheduler.counters.producing:
            self._signals.idle()


def _is_to_skip(record: AnyRecord) -> bool:
    return record._history is not None and record._history.skip is Skip.ASKED


def _refuse_skipped(record: AnyRecord) -> None:
    """Raise if the record is to be skipped: a cancellation may have come between two waits, where nothing heard it."""
    if _is_to_skip(record):
        raise asyncio.CancelledError


def _followed_by(decision: Decision) -> str:
    if decision.delay is not None or decision.no_room is not None:
        return "waits" if decision.waits else "retried"
    if decision.retry_topic is not None:
        return "retry topic"
    return _ENDS[decision.end or "stop"]


def _is_first_stray(record: AnyRecord) -> bool:
    """Note a stray cancellation of this record. Returns whether it is the first in a row."""
    history = history_of(record)
    history.strayed = not history.strayed
    return history.strayed
