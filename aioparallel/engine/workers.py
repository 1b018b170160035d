"""Workers: long-lived coroutines that take records from the scheduler and await the handler.

A task per record costs 3.4 microseconds, so there are up to ``max_concurrency`` tasks that stay, made on
demand. Waking is a chain: whoever has work for others wakes one worker, and a worker whose handler suspends
while more is ready wakes the next. So handlers that never suspend run in one worker, without wake-ups.

A handler is cancelled without its worker (``watch.py``). After each record the worker takes back what cancellations are
left; a handler that cancels its own task and returns would otherwise kill the next record.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, Callable, Coroutine
from contextvars import Context, copy_context
from time import perf_counter

from aioparallel.engine.handlers import Handler, NotAHandler, collect, coroutine_handler, in_task
from aioparallel.engine.history import history_of
from aioparallel.engine.isolation import Ended, drive, resume
from aioparallel.engine.scheduler import ENDED, AnyRecord, HandOver, Scheduler
from aioparallel.engine.watch import Hit, Stuck, Watch, Worker
from aioparallel.errors import ConsumerStateError, HandlerCancelled, HandlerTimeout

__all__ = ["WorkerPool"]

# Seconds of handlers that do not suspend, of all workers together, before they let the event loop turn.
_SLICE = 0.0005
# Records that a worker runs before it looks at the clock.
_TURN = 16
# Seconds after which a worker that was cancelled from outside is replaced.
_REVIVE_DELAY = 0.02


class WorkerPool:
    """At most ``size`` workers over one scheduler.

    ``hand_over(record, outcome)`` lets the outputs of a plain end leave at once, or says False: the record is to be
    counted as producing then. For all others ``on_returned(record, value)`` takes over a record whose handler has
    returned, ``on_failed(record, error)`` one whose attempt has failed. These two are awaited within the worker's slot,
    raise nothing but what the attempt failed with, and leave the record with another state.
    ``on_fatal(error)`` hears what must end the run (KeyboardInterrupt, SystemExit, a handler that is none);
    ``on_idle()`` that a worker found nothing ready. ``timeout``: seconds a handler may take.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        handler: Handler,
        size: int,
        *,
        hand_over: HandOver,
        on_returned: Callable[[AnyRecord, object], Coroutine[None, None, None]],
        on_failed: Callable[[AnyRecord, Exception], Coroutine[None, None, None]],
        on_fatal: Callable[[BaseException], None],
        on_idle: Callable[[], None],
        timeout: float | None = None,
        task_per_record: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._handler = in_task(handler) if task_per_record else coroutine_handler(handler)
        self._size = size
        self._hand_over = hand_over
        self._on_returned = on_returned
        self._on_failed = on_failed
        self._on_fatal = on_fatal
        self._on_idle = on_idle
        self._context = copy_context()
        self._workers: set[Worker] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._watch = Watch(timeout) if timeout is not None else None
        self._slice, self._slice_over = _SLICE, False
        self._closing = False

    def notify(self) -> None:
        """Something is ready: wake one worker, or make one. It wakes the next if there is more."""
        idle = self._idle
        while idle:
            waiter = idle.pop()
            if not waiter.done():
                waiter.set_result(None)
                return
        if len(self._workers) < self._size and not self._closing:
            worker = Worker()
            self._workers.add(worker)
            worker.task = asyncio.get_running_loop().create_task(self._work(worker), name="aioparallel-worker")

    def cancel(self, wanted: Callable[[AnyRecord], bool]) -> int:
        """Cancel the handlers of these records (not their workers), because of a drain. Returns how many."""
        now = asyncio.get_running_loop().time()
        hits = 0
        for worker in self._workers:
            if worker.record is not None and worker.hit is not Hit.DRAIN and wanted(worker.record):
                worker.strike(Hit.DRAIN, now)
                hits += 1
        return hits

    @property
    def stuck(self) -> list[Stuck]:
        """Handlers that ignore their cancellation."""
        now = asyncio.get_running_loop().time()
        waits = ((worker.record, worker.stuck_for(now)) for worker in self._workers)
        return [Stuck(record, seconds) for record, seconds in waits if record is not None and seconds is not None]

    async def close(self, timeout: float) -> list[AnyRecord]:
        """End all workers; handlers still running are cancelled. Returns the records of those that ignore it.

        Takes at most ``timeout`` seconds.
        """
        self._closing = True
        if self._watch is not None:
            self._watch.close()
        self.cancel(lambda record: True)
        while self._idle:
            waiter = self._idle.pop()
            if not waiter.done():
                waiter.set_result(None)
        tasks = [worker.task for worker in self._workers if worker.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
        return [worker.record for worker in self._workers if worker.record is not None]

    # -- one worker -------------------------------------------------------------------------------------

    async def _work(self, worker: Worker) -> None:
        try:
            await self._run_records(worker)
        except asyncio.CancelledError:
            # From outside: the loop is shutting down, or a handler has cancelled its task and gone on waiting.
            # Either way this worker ends; notify() makes another when there is work.
            pass
        except NotAHandler as error:
            self._on_fatal(ConsumerStateError(str(error)))
        except BaseException as error:
            self._on_fatal(error)
        finally:
            worker.record = None
            self._workers.discard(worker)
            if not self._closing:
                # Later rather than at once: while asyncio.run() cancels all tasks, no new one should start.
                asyncio.get_running_loop().call_later(_REVIVE_DELAY, self._revive)

    def _revive(self) -> None:
        if self._scheduler.has_ready and not self._closing:
            self.notify()

    # The hot path in one piece: every call would be paid for each record.
    async def _run_records(self, worker: Worker) -> None:
        task, scheduler = worker.task, self._scheduler
        assert task is not None
        driver = drive(self._handler, task.cancelling)
        driver.send(None)
        send, new_context, context = driver.send, self._context.copy, self._context

        def step(record: AnyRecord) -> object:
            nonlocal context
            context = new_context()
            return context.run(send, record)

        go_on = resume if self._watch is None else self._watch.watched(worker)
        run_ready, hand_over = scheduler.run_ready, self._hand_over
        while not self._closing:
            if self._slice <= 0:
                await self._end_slice()
            began, suspended = perf_counter(), False
            taken = run_ready(step, hand_over, _TURN)
            if taken is not None:
                record, outcome = taken
                taken = None  # or it would live as long as the handler, and be looked at by the garbage collector
                worker.record = record
                suspended = not isinstance(outcome, Ended)
                if suspended:
                    self._let_others()
                    outcome = await go_on(driver, context, outcome)
                if outcome is ENDED:
                    scheduler.succeed(record)
                elif hand_over(record, outcome):
                    scheduler.produce(record)
                else:
                    await self._finish(worker, record, context, outcome)
                worker.record = None
            elif not scheduler.has_ready:
                await self._wait_for_work()
                continue
            if not suspended:
                self._slice -= perf_counter() - began

    async def _finish(self, worker: Worker, record: AnyRecord, context: Context, outcome: object) -> None:
        """What follows a handler's end, unless that is nothing."""
        assert isinstance(outcome, Ended)
        failure = outcome.error
        if failure is None:
            try:
                await self._conclude(worker, record, context, outcome.value)
            except BaseException as error:
                failure = error
        if failure is not None:
            await self._failed(worker, record, failure)
        if record._history is not None:
            record._history.deferral = None
        await self._take_back_cancels(worker)

    async def _conclude(self, worker: Worker, record: AnyRecord, context: Context, value: object) -> None:
        """The handler has returned: wait for a deferral, collect outputs, hand over."""
        # It succeeded: a cancel that came too late must not hit what follows.
        await self._take_back_cancels(worker)
        if isinstance(value, AsyncIterable):
            self._let_others()
            value = await self._collect(worker, record, context, value)
        history = record._history
        if history is not None and history.deferral is not None:
            self._let_others()
            value = await history.deferral.wait(value)
            if isinstance(value, AsyncIterable):
                value = await self._collect(worker, record, context, value)
        await self._on_returned(record, value)

    def _let_others(self) -> None:
        if (self._idle or len(self._workers) < self._size) and self._scheduler.has_ready:
            self.notify()

    async def _collect(
        self, worker: Worker, record: AnyRecord, context: Context, outputs: AsyncIterable[object]
    ) -> object:
        """Collecting is the handler's own time: it has the deadline anew."""
        assert worker.task is not None
        driver = drive(lambda _: collect(outputs), worker.task.cancelling)
        driver.send(None)
        outcome = context.run(driver.send, record)
        if not isinstance(outcome, Ended):  # a list is always something to do about
            go_on = resume if self._watch is None else self._watch.watched(worker)
            outcome = await go_on(driver, context, outcome)
        assert isinstance(outcome, Ended)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    async def _end_slice(self) -> None:
        """Let the loop turn, after so many records that did not suspend.

        The worker that used the slice up goes on in the next turn. Others that get here in this one would
        only split its work: they wait until a handler suspends and wakes them.
        """
        if self._slice_over:
            await self._wait_for_work()
            return
        self._slice_over = True
        asyncio.get_running_loop().call_soon(self._new_slice)
        await asyncio.sleep(0)

    def _new_slice(self) -> None:
        self._slice, self._slice_over = _SLICE, False

    async def _wait_for_work(self) -> None:
        if self._closing:
            return  # closed while this worker let the loop turn: nobody would wake it
        waiter = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        self._on_idle()
        await waiter

    async def _failed(self, worker: Worker, record: AnyRecord, error: BaseException) -> None:
        if record._history is not None and record._history.deferral is not None:
            record._history.deferral.forget()
            record._history.deferral = None
        if isinstance(error, asyncio.CancelledError):
            failure = self._cancelled(worker, record, error)
            if failure is None:
                return
        elif isinstance(error, Exception):
            failure = error
        else:
            self._scheduler.put_back(record)
            raise error
        try:
            await self._take_back_cancels(worker)
            await self._on_failed(record, failure)
        except asyncio.CancelledError:
            # In a drain, or from outside, while the record waited for room.
            was_hit = worker.hit is not None
            self._scheduler.put_back(record)
            if not was_hit:
                raise

    def _cancelled(self, worker: Worker, record: AnyRecord, error: asyncio.CancelledError) -> Exception | None:
        """What the record has failed with; None when this is no failure of its own."""
        assert worker.task is not None
        if worker.hit is Hit.DRAIN:
            self._scheduler.put_back(record)  # its session is stopped: it ends as dropped
            return None
        if worker.hit is Hit.DEADLINE:
            assert self._watch is not None
            return HandlerTimeout(self._watch.seconds)
        if not worker.task.cancelling():
            return _own(error)
        # A stray: from outside, from the handler's own task.cancel(), or from a timeout that an earlier record
        # has left behind. The record starts once more at once; a second time it is its own failure.
        history = history_of(record)
        history.strayed = not history.strayed
        if not history.strayed:
            return _own(error)
        self._scheduler.put_back(record)
        raise error

    async def _take_back_cancels(self, worker: Worker) -> None:
        """Take back cancellations that have outlived their record. One that is pending (requested, not delivered)
        lands in this sleep; ``uncancel`` alone would not clear it on Python 3.11 and 3.12."""
        task = worker.task
        if task is None or not task.cancelling():
            return
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        while task.cancelling():
            task.uncancel()
        worker.hit = None


def _own(error: asyncio.CancelledError) -> HandlerCancelled:
    failure = HandlerCancelled()
    failure.__cause__ = error
    return failure
