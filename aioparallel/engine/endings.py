"""From a handler's end to its record's outcome: everything that may follow, in the order in which it does.

A plain end takes one step (:meth:`Endings.hand_over`, or nothing at all for None). Any other goes through
:meth:`Endings.finish`, within the worker's slot: a deferral is waited for, outputs are collected, what is to leave
waits for room; or the attempt has failed, and the failure policy decides. What was handed over comes back later through
:meth:`Endings.delivered` and :meth:`Endings.undelivered`, and what was put away through :meth:`Endings.disposed`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from contextvars import Context

from aioparallel.batches import Call
from aioparallel.engine.cancellation import CancelReason, Worker
from aioparallel.engine.counters import EndState
from aioparallel.engine.deadlines import Watch
from aioparallel.engine.failure_log import FailureLog
from aioparallel.engine.failures import Decision, Failures, NotDue
from aioparallel.engine.gates import give_back_of
from aioparallel.engine.isolation import Ended, drive, resume
from aioparallel.engine.retries import Retries
from aioparallel.engine.scheduler import AnyRecord, Scheduler
from aioparallel.engine.shortages import Shortages
from aioparallel.engine.signals import Signals
from aioparallel.engine.sinks import Abandoned, DeadLetterSink, Offered, OutputSink, Unfit
from aioparallel.errors import HandlerCancelled, HandlerTimeout, OutOfResources, RecordStopped
from aioparallel.handlers import collect
from aioparallel.history import history_of
from aioparallel.policies import RetryBudget
from aioparallel.running_out import out_of_resources
from aioparallel.user_errors import RAISED, repr_of

__all__ = ["Endings", "comes_of_drain", "log_exit", "own", "stray"]

logger = logging.getLogger(__name__)


class Endings:
    """Gives each record that was started its outcome, or parks it, or puts it back.

    It receives the delivery results itself, as the :class:`~aioparallel.engine.sinks.DeliveryListener` of all records.
    ``notify()``: something may be ready, while the worker that calls is busy.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        retry_budget: RetryBudget,
        output_sink: OutputSink,
        dead_letter_sink: DeadLetterSink,
        retries: Retries,
        signals: Signals,
        notify: Callable[[], None],
        watch: Watch | None,
        log: FailureLog,
        shortages: Shortages,
    ) -> None:
        self._scheduler = scheduler
        self.output_sink = output_sink
        self.dead_letter_sink = dead_letter_sink
        self._retries = retries
        self._signals = signals
        self._notify = notify
        self._watch = watch
        self._failures = Failures(retry_budget)
        self._log = log
        self._shortages = shortages

    # -- within the worker's slot -----------------------------------------------------------------------

    def hand_over(self, record: AnyRecord, ended: Ended) -> Offered | None:
        """Let outputs leave in one step where that is possible; what is not goes through :meth:`finish`."""
        if not ended.is_plain or record._source.dropped:
            return None
        offered = self.output_sink.offer(record, ended.value, self)
        if offered is not None:
            ended.value = None  # or the worker would keep it until its next record
        return offered

    async def finish(self, worker: Worker, record: AnyRecord, context: Context, ended: Ended) -> None:
        """The record is in flight when this begins and is not when it ends. Raises what must end the worker."""
        failure = ended.error
        if failure is None:
            try:
                await self._conclude(worker, record, context, ended.value)
            except BaseException as error:
                failure = error
        if failure is not None:
            await self._failed(worker, record, failure)
        if record._history is not None:
            record._history.deferral = None
        await worker.take_back_cancels()

    async def _conclude(self, worker: Worker, record: AnyRecord, context: Context, value: object) -> None:
        """The handler has returned: wait for a deferral, collect outputs, let them leave when there is room."""
        # It succeeded: a cancel that came too late must not hit what follows.
        await worker.take_back_cancels()
        if isinstance(value, AsyncIterable):
            value = await self.collected(worker, record, context, value)
        history = record._history
        if history is not None and history.deferral is not None:
            self._notify()
            value = await history.deferral.wait(value)
            if isinstance(value, AsyncIterable):
                value = await self.collected(worker, record, context, value)
        outputs = self.output_sink.collect(record, value)
        if outputs is None:
            self._scheduler.succeed(record)
            return
        await self.until_room(self.output_sink.room)
        if record._source.dropped:
            self._scheduler.put_back(record)  # dropped while it waited; its next owner runs it
            return
        self._scheduler.produce(record)
        self.output_sink.deliver(record, outputs, self)

    async def collected(
        self, worker: Worker, record: AnyRecord | Call, context: Context, outputs: AsyncIterable[object]
    ) -> object:
        """Collecting is the handler's own time: it has the deadline anew."""
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
        assert isinstance(ended, Ended)  # a list is always something to do about
        if ended.error is not None:
            raise ended.error
        return ended.value

    async def until_room(self, room_in: Callable[[], Awaitable[None] | None]) -> None:
        """Wait until this gives None, which has room then."""
        while (room := room_in()) is not None:
            self._notify()  # this worker waits, others need not
            await room

    async def _failed(self, worker: Worker, record: AnyRecord, error: BaseException) -> None:
        history = record._history
        if history is not None and history.deferral is not None:
            history.deferral.forget()
            history.deferral = None  # or the next attempt, perhaps at once, would find it
        if comes_of_drain(worker, error):
            self._scheduler.put_back(record)  # its source is stopped: it ends as dropped
            return
        if isinstance(error, asyncio.CancelledError):
            failure = self._cancelled(worker, record, error)
        elif isinstance(error, Exception):
            failure = error
        else:
            log_exit(record, error)
            self._scheduler.put_back(record)
            raise error
        try:
            await worker.take_back_cancels()
            await self._decided(record, failure)
        except asyncio.CancelledError:
            # In a drain, or from outside, while the record waited for room.
            self._scheduler.put_back(record)
            if worker.cancel_reason is None:
                raise

    def _cancelled(self, worker: Worker, record: AnyRecord, error: asyncio.CancelledError) -> Exception:
        """What the record has failed with."""
        if (failure := self.own_failure(worker, error)) is not None:
            return failure
        # A stray: from outside, from the handler's own task.cancel(), or from a timeout that an earlier record
        # has left behind. The record starts once more at once; a second time it is its own failure.
        if not stray(record):
            return own(error)
        self._scheduler.put_back(record)
        raise error

    def own_failure(self, worker: Worker, error: asyncio.CancelledError) -> Exception | None:
        """What a cancelled handler has failed with, if that is certain: a deadline, or a cancellation of its own."""
        if worker.cancel_reason is CancelReason.DEADLINE:
            assert self._watch is not None
            return HandlerTimeout(self._watch.seconds)
        return None if worker.task.cancelling() else own(error)

    async def _decided(self, record: AnyRecord, error: Exception) -> None:
        decision = self.decide(record, error)
        if decision is not None and (decision.retry_topic or decision.end == "dead_letter"):
            await self.until_room(self.dead_letter_sink.room)
            if record._source.dropped:
                self._scheduler.put_back(record)
                return
            self._scheduler.produce(record)
        self.follow(record, error, decision)

    # -- what becomes of a failure ----------------------------------------------------------------------

    def decide(self, record: AnyRecord, error: Exception, beside: int = 0, *, quiet: bool = False) -> Decision | None:
        """What becomes of it; None when the decision itself failed, which ends the run.

        ``beside``: so many others have failed with it, of one error. ``quiet``: a line about one of them is enough.
        """
        give_back_of(record)
        error = out_of_resources(error) or error
        if isinstance(error, OutOfResources):
            self._shortages.note(record, error)
        try:
            decision = self._failures.decide(
                record, error, asyncio.get_running_loop().time(), time.time(), beside=beside
            )
        except RAISED as error_in_it:
            # Nothing is awaited there, so a cancellation is its own; raised by run() it would look like somebody's.
            broken = error_in_it if isinstance(error_in_it, Exception) else RuntimeError("it raised CancelledError")
            broken.add_note(f"while deciding what becomes of {record!r}, which failed with {repr_of(error)}")
            self._signals.fatal(broken)
            return None
        if not decision.waits:
            self._scheduler.counters.failed_attempts += 1
        if not isinstance(error, NotDue) and decision.no_room is None and not quiet:
            self._log.decided(record, error, decision, time.monotonic(), beside)
        return decision

    def follow(self, record: AnyRecord, error: Exception, decision: Decision | None, now: float | None = None) -> None:
        """Do it. The record is in flight, or producing if it is to be put away. ``now``: from when a delay counts."""
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
            stopped = RecordStopped(
                f"{record.place} failed for good (attempt {record.attempt - 1}): "
                f"{repr_of(error)}; its offset is not committed. Mend the cause and start again, or tell the failure "
                'policy where such records go: FailurePolicy(dead_letter="a topic"), or give_up="skip"'
            )
            stopped.__cause__ = error
            self._signals.fatal(stopped)
        else:
            try:
                self.dead_letter_sink.dispose(record, error, decision.retry_topic, self.disposed)
            except Exception as broken:  # its handler may have put anything in the place of its bytes
                broken.add_note(f"while putting {record!r} away")
                self._retries.park(record, None)
                self._signals.fatal(broken)

    # -- what has left ----------------------------------------------------------------------------------

    def delivered(self, records: Sequence[AnyRecord]) -> None:
        """See :class:`~aioparallel.engine.sinks.DeliveryListener`."""
        worker_comes = self._scheduler.has_ready
        self._scheduler.end_produced(records)
        self.look_around(worker_comes)

    def undelivered(self, record: AnyRecord, error: Exception) -> None:
        """See :class:`~aioparallel.engine.sinks.DeliveryListener`."""
        if isinstance(error, Abandoned) or record._source.dropped:
            self._scheduler.put_back(record)
            self.look_around()
        else:
            self.follow(record, error, self.decide(record, error))

    def disposed(self, record: AnyRecord, error: Exception | None) -> None:
        """It is put away, or not, because its source is stopped."""
        if error is None:
            self._end(record, EndState.DEAD_LETTERED)
        elif isinstance(error, Unfit) and not record._source.dropped:
            decision = Decision(end=self._failures.end)
            self._log.decided(record, error.failure, decision, time.monotonic())
            self.follow(record, error.failure, decision)
            self.look_around()
        else:
            self._retries.park(record, None)
            self.look_around()

    def _end(self, record: AnyRecord, outcome: EndState) -> None:
        worker_comes = self._scheduler.has_ready
        self._scheduler.end(record, outcome)
        self.look_around(worker_comes)

    def look_around(self, worker_comes: bool = False) -> None:
        """Something has ended outside of a worker.

        ``worker_comes``: something was ready before, so a worker was woken for it and will wake others.
        """
        if not worker_comes:
            self._notify()
        if not self._scheduler.counters.producing:
            self._signals.idle()


def comes_of_drain(worker: Worker, error: BaseException) -> bool:
    """Whether a handler has failed after it was cancelled because its partition goes: no failure of its record,
    whatever the handler has made of its CancelledError."""
    return worker.cancel_reason is CancelReason.DRAIN and not isinstance(error, KeyboardInterrupt | SystemExit)


def log_exit(record: AnyRecord | Call, error: BaseException) -> None:
    """A handler has raised what ends the run, and perhaps the process: ``sys.exit()``, or what is no Exception."""
    logger.error(
        "%s: its handler raised %s, which ends the run; its offset is not committed. A record fails with an Exception: "
        "call nothing in a handler that calls sys.exit(), such as argparse",
        record.place,
        repr_of(error),
        extra={"action": "handler_exit"},
    )


def stray(record: AnyRecord) -> bool:
    """Whether a cancellation that may not be the record's own is the first one in a row."""
    history = history_of(record)
    history.strayed = not history.strayed
    return history.strayed


def own(error: asyncio.CancelledError) -> HandlerCancelled:
    """As a failure of the record."""
    failure = HandlerCancelled()
    failure.__cause__ = error
    return failure
