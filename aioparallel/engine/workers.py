"""Workers: long-lived coroutines that take records from the scheduler and await the handler.

A task per record costs 3.4 microseconds, so there are up to ``max_concurrency`` tasks that stay, made on
demand. Waking is a chain: whoever has work for others wakes one worker, and a worker whose handler suspends
while more is ready wakes the next. So handlers that never suspend run in one worker, without wake-ups.

Cancelling one handler without its worker: the pool marks a *hit* on the worker, then cancels its task. The
worker is suspended inside the handler whenever that can run, so the CancelledError lands there. After each
record the worker takes back what cancellations are left (:meth:`WorkerPool._tidy`); a handler that cancels
its own task and returns would otherwise kill the next record.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from typing import Any

from aioparallel.engine.isolation import resume
from aioparallel.engine.scheduler import Scheduler
from aioparallel.errors import ConsumerStateError
from aioparallel.records import Record

__all__ = ["Handler", "WorkerPool"]

logger = logging.getLogger(__name__)

Handler = Callable[[Record], Awaitable[object]]

# Records that all workers together run before they let the event loop turn.
_SLICE = 32
# Seconds after which a worker that was cancelled from outside is replaced.
_REVIVE_DELAY = 0.02


class _Worker:
    """One task; what it runs, and whether the pool has cancelled that."""

    __slots__ = ("hit", "record", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.record: Record | None = None
        self.hit = False


class WorkerPool:
    """At most ``size`` workers over one scheduler.

    ``on_failed(record, error)`` hears each failed attempt, once the record has left the worker;
    ``on_fatal(error)`` what must end the run (KeyboardInterrupt, SystemExit, a handler that is none);
    ``on_idle()`` that a worker found nothing ready.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        handler: Handler,
        size: int,
        *,
        on_failed: Callable[[Record, BaseException], None],
        on_fatal: Callable[[BaseException], None],
        on_idle: Callable[[], None],
        task_per_record: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._handler = _in_task(handler) if task_per_record else _coroutine_handler(handler)
        self._size = size
        self._on_failed = on_failed
        self._on_fatal = on_fatal
        self._on_idle = on_idle
        self._context = copy_context()
        self._workers: set[_Worker] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._strays: set[Record] = set()
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

    def cancel(self, wanted: Callable[[Record], bool]) -> int:
        """Cancel the handlers of these records (not their workers). Returns how many."""
        hits = 0
        for worker in self._workers:
            if worker.record is not None and worker.task is not None and not worker.hit and wanted(worker.record):
                worker.hit = True
                worker.task.cancel()
                hits += 1
        return hits

    async def close(self, timeout: float) -> list[Record]:
        """End all workers; handlers still running are cancelled. Returns the records of those that ignore it.

        Takes at most ``timeout`` seconds.
        """
        self._closing = True
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

    async def _work(self, worker: _Worker) -> None:
        try:
            await self._run_records(worker)
        except asyncio.CancelledError:
            # From outside: the loop is shutting down, or a handler has cancelled its task and gone on waiting.
            # Either way this worker ends; notify() makes another when there is work.
            pass
        except _NotAHandler as error:
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

    async def _run_records(self, worker: _Worker) -> None:
        take, succeed = self._scheduler.take, self._scheduler.succeed
        handler, new_context = self._handler, self._context.copy
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
            except StopIteration:
                succeed(record)
                self._slice -= 1
            except BaseException as error:
                self._failed(worker, record, error)
            else:
                if self._scheduler.ready:
                    self.notify()
                try:
                    await resume(coroutine, context, yielded)
                except BaseException as error:
                    self._failed(worker, record, error)
                else:
                    succeed(record)
            worker.record = None
            if task.cancelling() or self._strays:
                await self._tidy(worker, task, record)
            if self._slice <= 0:
                await self._end_slice()

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

    def _failed(self, worker: _Worker, record: Record, error: BaseException) -> None:
        if isinstance(error, Exception):
            self._on_failed(record, error)
        elif isinstance(error, asyncio.CancelledError):
            self._cancelled(worker, record, error)
        else:
            self._scheduler.put_back(record)
            raise error

    def _cancelled(self, worker: _Worker, record: Record, error: asyncio.CancelledError) -> None:
        assert worker.task is not None
        if worker.hit:
            self._scheduler.put_back(record)  # its session is stopped: it ends as dropped
            return
        if not worker.task.cancelling():
            self._on_failed(record, error)  # the handler raised it by itself
            return
        # A stray: from outside, from the handler's own task.cancel(), or from a timeout that an earlier record
        # has left behind. The record starts once more at once; a second time it is its own failure.
        if record in self._strays:
            self._strays.discard(record)
            self._on_failed(record, error)
        else:
            self._strays.add(record)
            self._scheduler.put_back(record)
        raise error

    async def _tidy(self, worker: _Worker, task: asyncio.Task[None], record: Record) -> None:
        """Take back cancellations that outlived their record.

        A cancel that is pending (requested, not delivered) lands in this sleep; ``uncancel`` alone would not
        clear it on Python 3.11 and 3.12.
        """
        self._strays.discard(record)
        if task.cancelling():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            while task.cancelling():
                task.uncancel()
        worker.hit = False


def _coroutine_handler(handler: Handler) -> Callable[[Record], Coroutine[Any, Any, object]]:
    """The handler itself if it is an ``async def`` function, else one around it that checks what it returns."""
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
        return handler  # type: ignore[return-value]

    async def checked(record: Record) -> None:
        result = handler(record)
        if not isinstance(result, Awaitable):
            raise _NotAHandler(
                f"the handler returned {type(result).__name__}, not an awaitable: it must be an `async def` "
                "function; wrap a blocking one, e.g. `lambda record: asyncio.to_thread(function, record)`"
            )
        await result

    return checked


class _NotAHandler(BaseException):
    """Outside Exception, so that it is not retried: every record would end the same way."""


def _in_task(handler: Handler) -> Callable[[Record], Coroutine[Any, Any, object]]:
    """Each record in a task of its own, for code that keys state by ``current_task()``."""

    async def run(record: Record) -> None:
        ended: list[BaseException | None] = []
        task = asyncio.get_running_loop().create_task(_note_end(handler, record, ended), name=f"handler-{record}")
        try:
            await task
        except asyncio.CancelledError:
            # A handler that cancels its task and returns has ended well; asyncio calls its task cancelled.
            if not ended:
                raise
        if ended and ended[0] is not None:
            raise ended[0]

    return run


async def _note_end(handler: Handler, record: Record, ended: list[BaseException | None]) -> None:
    # asyncio lets KeyboardInterrupt and SystemExit of a task fall through the whole event loop: carry them out.
    try:
        await handler(record)
    except (KeyboardInterrupt, SystemExit) as error:
        ended.append(error)
    else:
        ended.append(None)
