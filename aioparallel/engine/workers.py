"""Workers: long-lived coroutines that take records from the scheduler and await the handler.

A task per record costs 3.4 microseconds, so there are up to ``max_concurrency`` tasks that stay, made on
demand. Waking is a chain: whoever has work for others wakes one worker, and a worker whose handler suspends
while more is ready wakes the next. So handlers that never suspend run in one worker, without wake-ups.

Cancelling one handler without its worker, at its deadline or in a drain: the pool marks a *hit* on the worker, then
cancels its task. The worker is suspended inside the handler whenever that can run, so the CancelledError lands there.
After each record the worker takes back what cancellations are left (:meth:`WorkerPool._tidy`); a handler that cancels
its own task and returns would otherwise kill the next record.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections.abc import AsyncIterable, Callable, Coroutine
from contextvars import Context, copy_context
from typing import NamedTuple

from aioparallel.engine.deadlines import Deadlines
from aioparallel.engine.handlers import Handler, NotAHandler, collect, coroutine_handler, in_task
from aioparallel.engine.isolation import resume, run_in
from aioparallel.engine.scheduler import AnyRecord, Scheduler
from aioparallel.errors import ConsumerStateError, HandlerCancelled, HandlerTimeout

__all__ = ["Stuck", "WorkerPool"]

logger = logging.getLogger(__name__)

# Records that all workers together run before they let the event loop turn.
_SLICE = 32
# Seconds after which a worker that was cancelled from outside is replaced.
_REVIVE_DELAY = 0.02
# Seconds after its deadline that a cancelled handler has to end before it is called stuck.
_STUCK_AFTER = 1.0
# A timer may fire within the clock's resolution before its time; half a millisecond early is on time.
_EARLY = 0.0005


class _Hit(enum.Enum):
    """Why the pool has cancelled a handler."""

    DEADLINE = enum.auto()
    DRAIN = enum.auto()


class _Worker:
    """One task; what it runs, and whether and when the pool has cancelled that."""

    __slots__ = ("hit", "hit_at", "record", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.record: AnyRecord | None = None
        self.hit: _Hit | None = None
        self.hit_at = 0.0


class Stuck(NamedTuple):
    """A handler that goes on although it was cancelled at its deadline."""

    record: AnyRecord
    seconds: float
    """Since it was cancelled."""


class WorkerPool:
    """At most ``size`` workers over one scheduler.

    ``on_returned(record, value)`` takes over a record whose handler has returned something, or that has a history;
    ``on_failed(record, error)`` one whose attempt has failed. Both are awaited within the worker's slot, raise nothing
    but what the attempt failed with, and leave the record with another state.
    ``on_fatal(error)`` hears what must end the run (KeyboardInterrupt, SystemExit, a handler that is none);
    ``on_idle()`` that a worker found nothing ready. ``timeout``: seconds a handler may take.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        handler: Handler,
        size: int,
        *,
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
        self._on_returned = on_returned
        self._on_failed = on_failed
        self._on_fatal = on_fatal
        self._on_idle = on_idle
        self._context = copy_context()
        self._workers: set[_Worker] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._strays: set[AnyRecord] = set()
        self._deadlines: Deadlines[_Worker] | None = Deadlines(timeout) if timeout is not None else None
        self._timer: asyncio.TimerHandle | None = None
        self._slice = _SLICE
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
            worker = _Worker()
            self._workers.add(worker)
            worker.task = asyncio.get_running_loop().create_task(self._work(worker), name="aioparallel-worker")

    def cancel(self, wanted: Callable[[AnyRecord], bool]) -> int:
        """Cancel the handlers of these records (not their workers), because of a drain. Returns how many."""
        now = asyncio.get_running_loop().time()
        hits = 0
        for worker in self._workers:
            if worker.record is not None and worker.hit is not _Hit.DRAIN and wanted(worker.record):
                self._strike(worker, _Hit.DRAIN, now)
                hits += 1
        return hits

    def _strike(self, worker: _Worker, hit: _Hit, now: float) -> None:
        if worker.task is not None:
            worker.hit, worker.hit_at = hit, now
            worker.task.cancel()

    @property
    def stuck(self) -> list[Stuck]:
        """Handlers that ignore the cancellation at their deadline."""
        now = asyncio.get_running_loop().time()
        return [
            Stuck(worker.record, now - worker.hit_at)
            for worker in self._workers
            if worker.hit is not None and worker.record is not None and now - worker.hit_at >= _STUCK_AFTER - _EARLY
        ]

    async def close(self, timeout: float) -> list[AnyRecord]:
        """End all workers; handlers still running are cancelled. Returns the records of those that ignore it.

        Takes at most ``timeout`` seconds.
        """
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        self.cancel(lambda record: True)
        while self._idle:
            waiter = self._idle.pop()
            if not waiter.done():
                waiter.set_result(None)
        tasks = [worker.task for worker in self._workers if worker.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
        return [worker.record for worker in self._workers if worker.record is not None]

    # -- deadlines --------------------------------------------------------------------------------------

    def _set_timer(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._deadline_passed)

    def _deadline_passed(self) -> None:
        assert self._deadlines is not None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for worker in self._deadlines.due(now + _EARLY):
            if worker.hit is None:
                self._strike(worker, _Hit.DEADLINE, now)
                loop.call_later(_STUCK_AFTER, self._name_if_stuck, worker, worker.record)
        # Deadlines come in the order of the starts, so the timer never has to be set earlier than it is.
        self._timer = None
        upcoming = self._deadlines.next_time
        if upcoming is not None:
            self._set_timer(upcoming - now)

    def _name_if_stuck(self, worker: _Worker, record: AnyRecord | None) -> None:
        if record is not None and worker.record is record and worker.hit is _Hit.DEADLINE:
            logger.warning(
                "the handler of %s offset %d goes on although it was cancelled %g s ago, at its deadline: it keeps its "
                "key and one of max_concurrency until it ends; let CancelledError pass in it",
                record.topic_partition,
                record.offset,
                _STUCK_AFTER,
                extra={"action": "handler_stuck", "offset": record.offset},
            )

    # -- one worker -------------------------------------------------------------------------------------

    async def _work(self, worker: _Worker) -> None:
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
        if self._scheduler.ready and not self._closing:
            self.notify()

    # The hot path in one piece: every call would be paid for each record.
    async def _run_records(self, worker: _Worker) -> None:  # noqa: C901, PLR0912
        take, succeed = self._scheduler.take, self._scheduler.succeed
        handler, new_context = self._handler, self._context.copy
        seconds = 0.0 if self._deadlines is None else self._deadlines.seconds
        running = None if self._deadlines is None else self._deadlines.running
        clock = asyncio.get_running_loop().time
        task = worker.task
        assert task is not None
        while not self._closing:
            record = take()
            if record is None:
                await self._wait_for_work()
                continue
            worker.record = record
            context = new_context()
            try:
                coroutine = handler(record)
                yielded = context.run(coroutine.send, None)
            except StopIteration as stop:
                if stop.value is None and record._history is None:
                    succeed(record)
                else:
                    await self._conclude(worker, record, context, stop.value)
                self._slice -= 1
            except BaseException as error:
                await self._failed(worker, record, error)
            else:
                if self._scheduler.ready:
                    self.notify()
                if running is not None:
                    running[worker] = clock() + seconds
                    if self._timer is None:
                        self._set_timer(seconds)
                try:
                    value = await resume(coroutine, context, yielded)
                except BaseException as error:
                    await self._failed(worker, record, error)
                else:
                    if running is not None:
                        running.pop(worker, None)
                    if value is None and record._history is None:
                        succeed(record)
                    else:
                        await self._conclude(worker, record, context, value)
            worker.record = None
            if task.cancelling() or self._strays:
                await self._tidy(worker, task, record)
            if self._slice <= 0:
                await self._end_slice()

    async def _conclude(self, worker: _Worker, record: AnyRecord, context: Context, value: object) -> None:
        """What follows a handler's return, unless that is nothing: wait for a deferral, collect outputs, hand over."""
        try:
            await self._settle_cancels(worker)
            history = record._history
            if history is not None and history.deferral is not None:
                self._let_others()
                value = await history.deferral.wait()
            if isinstance(value, AsyncIterable):
                self._let_others()
                value = await self._collect(worker, context, value)
            await self._on_returned(record, value)
        except BaseException as error:
            await self._failed(worker, record, error)
        if record._history is not None:
            record._history.deferral = None

    def _let_others(self) -> None:
        if self._scheduler.ready:
            self.notify()

    async def _collect(self, worker: _Worker, context: Context, outputs: AsyncIterable[object]) -> object:
        """Collecting is the handler's own time: it has the deadline anew."""
        if self._deadlines is None:
            return await run_in(context, collect(outputs))
        self._deadlines.running[worker] = asyncio.get_running_loop().time() + self._deadlines.seconds
        if self._timer is None:
            self._set_timer(self._deadlines.seconds)
        value = await run_in(context, collect(outputs))
        self._deadlines.running.pop(worker, None)
        return value

    async def _settle_cancels(self, worker: _Worker) -> None:
        # The handler returned normally, so it succeeded: a cancel that came too late must not hit what follows.
        if worker.task is not None and worker.task.cancelling():
            await self._take_back_cancels(worker, worker.task)

    async def _end_slice(self) -> None:
        """Let the loop turn, after so many records that did not suspend.

        The worker that used the slice up goes on in the next turn. Others that get here in this one would
        only split its work: they wait until a handler suspends and wakes them.
        """
        if self._slice < 0:
            await self._wait_for_work()
            return
        self._slice = -1
        asyncio.get_running_loop().call_soon(self._new_slice)
        await asyncio.sleep(0)

    def _new_slice(self) -> None:
        self._slice = _SLICE

    async def _wait_for_work(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        self._on_idle()
        await waiter

    async def _failed(self, worker: _Worker, record: AnyRecord, error: BaseException) -> None:
        if self._deadlines is not None:
            self._deadlines.running.pop(worker, None)
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
            await self._settle_cancels(worker)
            await self._on_failed(record, failure)
        except asyncio.CancelledError:
            # In a drain, or from outside, while the record waited for room.
            was_hit = worker.hit is not None
            self._scheduler.put_back(record)
            if not was_hit:
                raise

    def _cancelled(self, worker: _Worker, record: AnyRecord, error: asyncio.CancelledError) -> Exception | None:
        """What the record has failed with; None when this is no failure of its own."""
        assert worker.task is not None
        if worker.hit is _Hit.DRAIN:
            self._scheduler.put_back(record)  # its session is stopped: it ends as dropped
            return None
        if worker.hit is _Hit.DEADLINE:
            assert self._deadlines is not None
            return HandlerTimeout(self._deadlines.seconds)
        if not worker.task.cancelling():
            return _own(error)
        # A stray: from outside, from the handler's own task.cancel(), or from a timeout that an earlier record
        # has left behind. The record starts once more at once; a second time it is its own failure.
        if record in self._strays:
            self._strays.discard(record)
            return _own(error)
        self._strays.add(record)
        self._scheduler.put_back(record)
        raise error

    async def _tidy(self, worker: _Worker, task: asyncio.Task[None], record: AnyRecord) -> None:
        """Take back cancellations that outlived their record."""
        self._strays.discard(record)
        if task.cancelling():
            await self._take_back_cancels(worker, task)

    async def _take_back_cancels(self, worker: _Worker, task: asyncio.Task[None]) -> None:
        """A cancel that is pending (requested, not delivered) lands in this sleep; ``uncancel`` alone would not clear
        it on Python 3.11 and 3.12."""
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        while task.cancelling():
            task.uncancel()
        worker.hit = None


def _own(error: asyncio.CancelledError) -> HandlerCancelled:
    failure = HandlerCancelled()
    failure.__cause__ = error
    return failure
