"""Workers: long-lived coroutines that take records from the scheduler and await the handler.

A task per record costs 3.4 microseconds, so there are up to ``max_concurrency`` long-lived tasks, made on demand.
Waking is a chain: new work wakes one worker, and a worker whose handler suspends while more is ready wakes the next
one. So handlers that never suspend run in one worker, without wake-ups.

Cancelling a handler does not cancel its worker (``engine/watch/cancellation.py``). After each record the worker clears
pending cancellations. Otherwise a handler that cancels its own task and returns would cancel the next record.
"""

from __future__ import annotations

import asyncio
import math
import types
from collections.abc import Callable, Collection, Generator, Sequence
from contextvars import copy_context
from functools import partial
from time import perf_counter
from typing import Any, cast

from aioparallel.engine.isolation import ENDED, Ended, drive, resume
from aioparallel.engine.outcomes.batch_endings import BatchEndings
from aioparallel.engine.outcomes.endings import Endings
from aioparallel.engine.outcomes.failures import NotDue
from aioparallel.engine.schedule.scheduler import AnyRecord, Scheduler
from aioparallel.engine.schedule.turn import TOGETHER
from aioparallel.engine.signals import Signals
from aioparallel.engine.sinks import Offered
from aioparallel.engine.watch.cancellation import CancelReason, Stuck, Worker
from aioparallel.engine.watch.deadlines import Watch
from aioparallel.engine.watch.loop_watch import LoopWatch
from aioparallel.event_loop.left_behind import LeftBehind, leave_behind, stack_of
from aioparallel.handlers.batches import Call
from aioparallel.handlers.blocking.clock import CLOCK
from aioparallel.handlers.stack import Handler, coroutine_handler, in_task
from aioparallel.records.errors import ConsumerStateError, NotAHandler
from aioparallel.records.record import Record

__all__ = ["WorkerPool"]

# Seconds for which handlers that do not suspend may run, of all workers together, before the event loop turns.
_SLICE = 0.0005
# Seconds after which a worker that was cancelled from outside is replaced.
_REVIVE_DELAY = 0.02


class _PoolClock:
    """A :class:`~aioparallel.handlers.blocking.clock.Clock` that stops the timeout of a handler.

    All workers share one: a value that differs from context to context is expensive when thousands of contexts are in
    use (1.8 microseconds a record). ``worker``: the worker of this context, if each record has a task of its own.
    """

    __slots__ = ("_pool", "_watch", "_worker")

    def __init__(self, pool: WorkerPool, watch: Watch | None, worker: Worker | None = None) -> None:
        self._pool, self._watch, self._worker = pool, watch, worker

    def stop(self) -> Callable[[], None] | None:
        # A task that a handler has made has this clock as well, but no worker.
        worker = self._worker or self._pool.worker_of(asyncio.current_task())
        if worker is None:
            return None
        worker.waits = True
        return partial(self._restart, worker)

    def _restart(self, worker: Worker) -> None:
        worker.waits = False
        if self._watch is not None:
            self._watch.restart(worker)

    @property
    def abandoned(self) -> bool:
        return self._pool.abandoned


class WorkerPool:
    """At most ``size`` workers for one scheduler. ``endings``, and ``together`` for batches: what follows a handler's
    end.

    It sends the signal ``idle``. It sends ``fatal`` for KeyboardInterrupt, SystemExit and an object that is no handler.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        handler: Handler,
        size: int,
        endings: Endings,
        signals: Signals,
        watch: Watch | None = None,
        together: BatchEndings | None = None,
        *,
        task_per_record: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._handler = in_task(handler) if task_per_record else coroutine_handler(handler)
        self._size = size
        self._endings = endings
        self._together = together
        self.in_tasks = task_per_record
        self._signals = signals
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self.loop_watch = LoopWatch.of(self._loop)
        """Detects handlers that block the loop."""
        self._context = copy_context()
        self._context.run(CLOCK.set, _PoolClock(self, watch))
        self._workers: dict[asyncio.Task[None], Worker] = {}
        self._idle: list[asyncio.Future[None]] = []
        self._is_over_size = False
        """Whether there are more workers than ``size``, because it was lowered."""
        self._slice, self._slice_over = _SLICE, False
        self._revival: asyncio.TimerHandle | None = None  # replaces workers that have ended
        self._closing = False
        self.abandoned = False
        """Whether it is closed and does not wait any more for handlers that still run."""

    def notify(self) -> None:
        """Wake one worker, or make one, because a record is ready. It wakes the next worker if there is more."""
        idle = self._idle
        while idle:
            waiter = idle.pop()
            if not waiter.done():
                waiter.set_result(None)
                return
        if len(self._workers) < self._size and not self._closing:
            worker = Worker()
            if not self._workers:
                self.loop_watch.join(self)
            # Not through the loop's task factory: an eager one would start records in the middle of the caller.
            worker.task = asyncio.Task(self._work(worker), loop=self._loop, name="aioparallel-worker")
            self._workers[worker.task] = worker
            worker.task.add_done_callback(partial(self._ended, worker))

    def set_size(self, size: int) -> None:
        """Change the number of workers. If there are more, those without a record end now, the others after their
        record. Raising it starts ready records at once."""
        self._size = size
        surplus = len(self._workers) - size
        self._is_over_size = surplus > 0
        while surplus > 0 and self._idle:
            waiter = self._idle.pop()
            if not waiter.done():
                waiter.set_result(None)
                surplus -= 1
        self._let_others()

    def _may_leave(self, worker: Worker) -> bool:
        """Whether this worker, which has no record, ends because there are too many. Then it counts no more."""
        if len(self._workers) > self._size:
            del self._workers[worker.task]
        self._is_over_size = len(self._workers) > self._size
        if worker.task in self._workers:
            return False
        self._let_others()  # the one that was woken for a ready record may be this one
        return True

    def worker_of(self, task: asyncio.Task[Any] | None) -> Worker | None:
        """Return the worker that has this task."""
        return None if task is None else self._workers.get(task)

    def _let_others(self) -> None:
        """Wake another worker if a record is ready, because the calling one waits."""
        if self._scheduler.has_ready:
            self.notify()

    def cancel(self, wanted: Callable[[AnyRecord], bool]) -> float | None:
        """Cancel the handlers of these records (not their workers), because of a drain.

        A handler that an earlier drain has cancelled is not cancelled again. Returns when the last of those that run
        was cancelled, on the loop's clock; None: none of them runs.
        """
        now = self._loop.time()
        last: float | None = None
        for worker in self._workers.values():
            if any(map(wanted, worker.records)):
                if worker.cancel_reason is not CancelReason.DRAIN:
                    worker.cancel(CancelReason.DRAIN, now)
                last = worker.cancelled_at if last is None else max(last, worker.cancelled_at)
        return last

    def skip(self, records: Collection[AnyRecord]) -> None:
        """Cancel the handlers of these records, each once, because the records are skipped. The handler of a batch goes
        on. One walk over the workers: there may be thousands of both."""
        now = self._loop.time()
        for worker in self._workers.values():
            if worker.record in records and worker.cancel_reason in (None, CancelReason.DEADLINE):
                worker.cancel(CancelReason.SKIP, now)

    def lose(self, is_lost: Callable[[AnyRecord], bool]) -> None:
        """Cancel the handlers of lost records, each once; that of a batch if all its records are lost."""
        now = self._loop.time()
        for worker in self._workers.values():
            if worker.record is not None and worker.cancel_reason is None and all(map(is_lost, worker.records)):
                worker.cancel(CancelReason.LOST, now)

    @property
    def skipped(self) -> set[AnyRecord | Call | None]:
        """The records whose handlers run and were cancelled because the records are skipped."""
        return {worker.record for worker in self._workers.values() if worker.cancel_reason is CancelReason.SKIP}

    def running(self, wanted: Callable[[AnyRecord], bool]) -> list[AnyRecord | Call]:
        """Return those of these records and batches that run, and that no drain has cancelled."""
        return [
            worker.record
            for worker in self._workers.values()
            if worker.record is not None
            and worker.cancel_reason is not CancelReason.DRAIN
            and any(map(wanted, worker.records))
        ]

    @property
    def stuck(self) -> list[Stuck]:
        """Handlers that ignore their cancellation."""
        now = self._loop.time()
        return [stuck for worker in self._workers.values() if (stuck := worker.stuck(now)) is not None]

    @property
    def oldest(self) -> tuple[AnyRecord, float] | None:
        """The record whose handler has run longest, or the first of its batch, and for how many seconds. The time may
        be a few hundred microseconds too long, because it counts from the beginning of the turn."""
        busy = [worker for worker in self._workers.values() if worker.records]
        if not busy:
            return None
        oldest = min(busy, key=lambda worker: worker.since)
        return oldest.records[0], perf_counter() - oldest.since

    async def close(self, timeout: float) -> list[AnyRecord | Call]:
        """Cancel all handlers and end the workers. Returns the records that still run after ``timeout`` seconds."""
        self._closing = True
        if self._watch is not None:
            self._watch.close()
        if self._revival is not None:
            self._revival.cancel()
        self.cancel(lambda record: True)
        while self._idle:
            waiter = self._idle.pop()
            if not waiter.done():
                waiter.set_result(None)
        if self._workers:
            await asyncio.wait(self._workers, timeout=timeout)
        self.abandoned = True
        self.loop_watch.leave(self)
        return [worker.record for worker in self._workers.values() if worker.record is not None]

    async def leave(self, timeout: float) -> list[LeftBehind]:
        """After :meth:`close`: cancel what still runs again. The loop does not wait for handlers that ignore this."""
        for task in list(self._workers):
            task.cancel()
        if self._workers:
            await asyncio.wait(self._workers, timeout=timeout)
        left = [
            LeftBehind(worker.records[0], stack_of(task), task)
            for task, worker in self._workers.items()
            if worker.records
        ]
        leave_behind(list(self._workers))
        return left

    # -- one worker -------------------------------------------------------------------------------------

    async def _work(self, worker: Worker) -> None:
        try:
            await self._run_records(worker)
        except asyncio.CancelledError:
            # From outside: the loop is shutting down, or a handler has cancelled its own task and still waits.
            # Either way this worker ends; notify() makes another one when there is work.
            pass
        except NotAHandler as error:
            self._signals.fatal(ConsumerStateError(str(error)))
        except BaseException as error:
            self._signals.fatal(error)

    def _ended(self, worker: Worker, task: asyncio.Task[None]) -> None:
        worker.end()
        self._workers.pop(task, None)
        self._is_over_size = len(self._workers) > self._size
        if not self._closing and self._revival is None:
            # Not at once: no new task should start while asyncio.run() cancels all tasks.
            self._revival = self._loop.call_later(_REVIVE_DELAY, self._revive)

    def _revive(self) -> None:
        self._revival = None
        if self._scheduler.has_ready:
            self.notify()
        else:
            self._signals.idle()  # the ended worker cannot do this

    # The hot path in one function: each call is paid for each record, and each object for each record in flight. So
    # this is a generator that drives handlers itself, not a coroutine that awaits an object which does.
    @types.coroutine
    def _run_records(self, worker: Worker) -> Generator[Any, Any, None]:  # noqa: C901, PLR0912, PLR0915
        scheduler, watch, hand_over = self._scheduler, self._watch, self._endings.hand_over
        loop_watch, attempted = self.loop_watch, self._signals.attempted
        driver = drive(self._handler, worker.task.cancelling)
        driver.send(None)
        worker.context = context = self._context
        if self.in_tasks:
            worker.context = context = context.copy()
            context.run(CLOCK.set, _PoolClock(self, watch, worker))
        send, new_context = driver.send, context.copy

        def step(record: AnyRecord) -> object:
            nonlocal context
            context = new_context()
            return context.run(send, record)

        run_ready, idle, workers = scheduler.run_ready, self._idle, self._workers
        reports, turn = scheduler.reports, scheduler.turn
        while True:
            if self._slice <= 0 or loop_watch.overdue:
                yield from self._end_slice().__await__()
            if self._closing:
                return  # closed while the loop turned: nothing would cancel a handler that starts now
            if self._is_over_size and self._may_leave(worker):
                return
            began = perf_counter()
            taken = run_ready(step, hand_over, loop_watch.quota)
            if taken is None:
                if scheduler.has_ready:
                    self._slice -= perf_counter() - began
                else:
                    yield from self._wait_for_work().__await__()
                continue
            if taken[1] is TOGETHER:
                call = taken[0]
                taken = None
                assert isinstance(call, Call)
                yield from self._run_together(worker, call, began).__await__()
                del call  # or an idle worker would keep its records
                continue
            record, outcome = taken
            assert isinstance(record, Record)
            worker.record, worker.since, started = record, began, turn.began
            taken = None  # or the garbage collector would have to visit it while the handler runs
            if type(outcome) is Ended:
                self._slice -= perf_counter() - began
            else:
                if idle or len(workers) < self._size:
                    self._let_others()
                if watch is not None:
                    watch.enter(worker)
                try:
                    while outcome is not ENDED and type(outcome) is not Ended:
                        try:
                            yield outcome
                            if loop_watch.overdue:  # this turn of the loop takes too long already
                                yield from loop_watch.breathe()
                        except GeneratorExit:
                            context.run(driver.close)
                            raise
                        except BaseException as error:
                            thrown = error
                        else:
                            outcome = context.run(send, None)
                            continue
                        # Outside of the except block, for the reason given in isolation.resume().
                        outcome = context.run(driver.throw, thrown)
                        del thrown
                except BaseException:
                    scheduler.put_back(record)
                    raise
                finally:
                    if watch is not None:
                        watch.leave(worker)
            if attempted is not None:
                if outcome is ENDED and not record._parks and not record._source.stopped:
                    scheduler.succeed(record, is_reported=True)
                    reports.add(record, started)
                    worker.record = worker.cancel_reason = None
                    continue
                raised = outcome.error if type(outcome) is Ended else None
                if type(raised) is not NotDue:  # no handler was called
                    attempted((record,), 1, started, perf_counter() - started, raised)
            if outcome is ENDED:
                scheduler.succeed(record)
            else:
                assert type(outcome) is Ended
                offered = hand_over(record, outcome)
                if offered is Offered.LEFT:
                    scheduler.succeed(record)
                elif offered is not None:
                    scheduler.produce(record)
                else:
                    yield from self._endings.finish(worker, record, context, outcome).__await__()
            worker.record = worker.cancel_reason = None

    async def _run_together(self, worker: Worker, call: Call, began: float) -> None:
        """Run the handler of a batch. It may cost more than the hot path, because it is paid once for many records."""
        assert self._together is not None
        assert call.batching is not None
        worker.record, worker.since = call, began
        run: Any = in_task(cast("Any", call.batching.run)) if self.in_tasks else call.batching.run
        driver = drive(run, worker.task.cancelling)
        driver.send(None)
        context, watch, started = worker.context.copy(), self._watch, began
        try:
            outcome = context.run(driver.send, call)
            if outcome is not ENDED and type(outcome) is not Ended:
                began = math.inf  # it has suspended, so its time does not count towards the slice
                self._let_others()
                if watch is not None:
                    watch.enter(worker)
                try:
                    outcome = await resume(driver, context, outcome, self.loop_watch.breathe)
                finally:
                    if watch is not None:
                        watch.leave(worker)
        except BaseException:
            call.is_over = True
            self._scheduler.put_back_together(call)
            raise
        if self._signals.attempted is not None and (tried := _tried_in(call)):
            error = outcome.error if isinstance(outcome, Ended) else None
            self._signals.attempted(tried, 1, started, perf_counter() - started, error)
        if outcome is ENDED and not call.failures:
            call.is_over = True
            self._scheduler.succeed_together(call)
        else:
            ended = outcome if isinstance(outcome, Ended) else Ended(None)
            await self._together.finish(worker, call, context, ended)
        self._slice -= max(0.0, perf_counter() - began)
        worker.record = worker.cancel_reason = None

    async def _end_slice(self) -> None:
        """Let the loop turn, because handlers have run for a whole slice without suspending.

        The first worker that gets here continues in the next turn. Others that get here in the same turn would only
        split its work, so they wait until a handler suspends and wakes them.
        """
        if self._slice_over:
            await self._wait_for_work()
            return
        self._slice_over = True
        self._loop.call_soon(self._new_slice)
        await asyncio.sleep(0)

    def _new_slice(self) -> None:
        self._slice, self._slice_over = _SLICE, False

    async def _wait_for_work(self) -> None:
        if self._closing:
            return  # closed while the loop turned: nothing would wake this worker
        waiter = self._loop.create_future()
        self._idle.append(waiter)
        self._signals.idle()
        await waiter


def _tried_in(call: Call) -> Sequence[AnyRecord]:
    """The records of a call without those of a retry topic that are not due yet."""
    waiting = {place for place, error in call.failures.items() if type(error) is NotDue}
    return [one for place, one in enumerate(call.records) if place not in waiting] if waiting else call.records
