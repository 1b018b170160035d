"""An event loop in a thread of its own, for programs that are not asynchronous: flows that are fed and read from other
threads, in lists, never item by item.

There is one for each process. What handlers share is opened in it once, by name, and kept for the flows to come: a
client with warm connections, say, in a process that runs one short task after the other.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import queue
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, Generic, TypeVar, cast

from aioparallel.engine.flow import Flow, FlowStats, Label, OnError, Outcome
from aioparallel.errors import LoopThreadEnded
from aioparallel.event_loop import loop_factory
from aioparallel.handlers import check_handlers
from aioparallel.handling import Handling, Resource
from aioparallel.policies import RetryPolicy
from aioparallel.resources import Resources, reach

__all__ = ["LoopThread", "ThreadedFlow"]

T = TypeVar("T")
R = TypeVar("R")

# Seconds for a resource to open.
_OPEN_TIMEOUT = 30.0
# Seconds for all that runs to end, when the process does.
_CLOSE_TIMEOUT = 15.0


class LoopThread:
    """Made by :meth:`of_this_process`."""

    _of_process: LoopThread | None = None
    _making = threading.Lock()
    # Loops of the parent of a forked process are kept: to finalise one here would touch what both have open.
    _of_parents: ClassVar[list[LoopThread]] = []

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop
        self._opened: dict[str, Resources] = {}
        self._opening: asyncio.Lock
        self._flows: set[ThreadedFlow[Any, Any]] = set()
        self._waiting: set[Future[Any]] = (
            set()
        )  # of threads; entered before the loop is called, which may end meanwhile
        self._ended: BaseException | None = None
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="aioparallel-loop", daemon=True)
        self._thread.start()
        started.result()

    @classmethod
    def of_this_process(cls) -> LoopThread:
        """The one of this process, which is made where there is none, also after a fork, or when it has ended."""
        with cls._making:
            found = cls._of_process
            if found is None or found._pid != os.getpid() or not found.is_alive:
                found = cls._of_process = cls()
            return found

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._ended is None and self._thread.is_alive()

    def flow(
        self,
        handler: Callable[[T], Awaitable[R]],
        handling: Handling,
        *,
        retry: RetryPolicy | None = None,
        on_error: OnError = "raise",
        in_order: bool = False,
        label: Label | None = None,
    ) -> ThreadedFlow[T, R]:
        """A flow (:class:`~aioparallel.engine.flow.Flow`) to be used from this thread, and one that feeds it.

        Opens those of the resources that no flow before has opened; raises what that raises, or ConfigurationError.
        """
        check_handlers(cast("Any", handler), takes="the item")
        made: ThreadedFlow[T, R] = ThreadedFlow(self)

        async def make() -> None:
            opened = await self._open(handling.resources)

            def begin() -> Flow[T, R]:
                reach(opened)
                return Flow(
                    handler,
                    handling,
                    retry=retry,
                    on_error=on_error,
                    in_order=in_order,
                    on_ready=made._answer,
                    on_room=made._pump,
                    label=label,
                )

            made._flow = contextvars.Context().run(begin)
            self._flows.add(made)

        self.run(make())
        return made

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it in the loop, wait for it, and give what it gives or raises."""
        try:
            return cast("T", self.ask(self._start, work))
        finally:
            work.close()  # it may not have begun

    def ask(self, function: Callable[..., object], *arguments: object) -> Any:
        """Call it in the loop with a future besides, and wait for what that is told. Raises LoopThreadEnded."""
        future: Future[Any] = Future()
        self._waiting.add(future)
        try:
            self.call(function, *arguments, future)
            return future.result()
        finally:
            self._waiting.discard(future)

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call it in the loop, soon. Raises LoopThreadEnded."""
        if self._pid != os.getpid():
            raise LoopThreadEnded("it belongs to the process that this one was forked from: make a new flow here")
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError as error:
            raise self._gone() from error

    def close(self) -> None:
        """Close what was opened, and end. Flows that are not closed raise at their readers."""
        if self._pid == os.getpid() and self.is_alive:
            self.call(self._loop.stop)
            self._thread.join(_CLOSE_TIMEOUT)

    # -- in the thread ----------------------------------------------------------------------------------

    def _run(self, started: Future[None]) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                self._loop = runner.get_loop()
                self._opening = asyncio.Lock()
                self._loop.call_soon(started.set_result, None)
                try:
                    self._loop.run_forever()
                    self._ended = LoopThreadEnded("it was closed")
                except BaseException as error:
                    self._ended = error
                runner.run(self._end())
        except BaseException as error:
            self._ended = self._ended or error
        finally:
            if not started.done():
                started.set_exception(self._gone())
            for future in list(self._waiting):
                if not future.done():
                    future.set_exception(self._gone())
            for flow in list(self._flows):
                flow._lost(self._gone())

    async def _end(self) -> None:
        for flow in list(self._flows):
            await flow._end(self._gone())
        while self._opened:
            _, resources = self._opened.popitem()
            await resources.close()

    def _gone(self) -> LoopThreadEnded:
        error = LoopThreadEnded(f"the thread of this flow's event loop has ended: {self._ended!r}")
        error.__cause__ = self._ended
        return error

    def _start(self, work: Coroutine[Any, Any, T], future: Future[T]) -> None:
        def done(task: asyncio.Task[T]) -> None:
            if future.done():
                return
            if task.cancelled():
                future.set_exception(self._gone())
            elif (error := task.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(task.result())

        self._loop.create_task(work).add_done_callback(done)

    async def _open(self, factories: Mapping[str, Resource]) -> dict[str, object]:
        async with self._opening:
            for name, factory in factories.items():
                if name not in self._opened:
                    resources = Resources({name: factory})
                    try:
                        await resources.open(_OPEN_TIMEOUT)
                    except BaseException:
                        await resources.close()
                        raise
                    self._opened[name] = resources
            return {name: self._opened[name].opened[name] for name in factories}


class ThreadedFlow(Generic[T, R]):
    """A flow of a :class:`LoopThread`. One thread reads it, one (the same, or another) feeds it."""

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread
        self._flow: Flow[T, R]
        # In the loop: lists that wait for room, what of the first has been fed, and who waits for each of them.
        self._lists: deque[tuple[Sequence[T], Future[None]]] = deque()
        self._fed_of_first = 0
        self._feeding = False
        self._asked = False
        self._over: BaseException | None = None
        self._answers: queue.SimpleQueue[list[Outcome[T, R]] | BaseException | None] = queue.SimpleQueue()

    def feed(self, items: Sequence[T]) -> None:
        """Run these, after those before. Returns when all of them are in, so it waits for the reader where there is no
        room. Raises LoopThreadEnded."""
        self._thread.ask(self._queue, items)

    def end(self) -> None:
        """Nothing more will be fed."""
        self._thread.call(self._end_of_input)

    def take(self) -> list[Outcome[T, R]]:
        """The outcomes since the last call, at least one of them; none: that was all. What one call gives is read when
        the next comes.

        Raises what has ended the flow, or LoopThreadEnded.
        """
        self._thread.call(self._ask)
        answer = self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer or []

    def stats(self) -> FlowStats:
        """Counts of items."""

        async def look() -> FlowStats:
            return self._flow.stats()

        return self._thread.run(look())

    def close(self) -> None:
        """Cancel what runs and wait for it. Resources stay open. A thread that waits in :meth:`feed` goes on."""
        self._thread.run(self._end(LoopThreadEnded("this flow is closed")))

    # -- in the loop ------------------------------------------------------------------------------------

    def _queue(self, items: Sequence[T], fed: Future[None]) -> None:
        if self._over is not None:
            fed.set_exception(self._over)
            return
        self._lists.append((items, fed))
        self._pump()

    def _pump(self) -> None:
        """Feed as much as there is room for."""
        if self._feeding:
            return  # what fails at once leaves room while it is fed; the loop below looks again
        self._feeding = True
        try:
            self._feed()
        finally:
            self._feeding = False

    def _feed(self) -> None:
        flow = self._flow
        while self._lists:
            items, fed = self._lists[0]
            first = self._fed_of_first
            batch = items[first : first + flow.room]
            if first + len(batch) < len(items) and flow.failure is None:
                if batch:
                    self._fed_of_first += len(batch)
                    flow.feed(batch)
                    continue
                return
            self._lists.popleft()
            self._fed_of_first = 0
            try:
                flow.feed(batch)
            except Exception as error:
                fed.set_exception(error)
            else:
                fed.set_result(None)

    def _end_of_input(self) -> None:
        self._flow.end()

    def _ask(self) -> None:
        self._asked = True
        self._answer()

    def _answer(self) -> None:
        """Something may be there for whoever asked."""
        if not self._asked:
            return
        if self._over is not None:
            self._answers.put(self._over)
            return
        self._asked = False  # on_room and on_ready may lead here again
        flow = self._flow
        if taken := flow.take():
            self._answers.put(taken)
        elif flow.finished:
            self._answers.put(flow.failure)
        else:
            self._asked = True

    async def _end(self, error: BaseException) -> None:
        if self in self._thread._flows:
            self._thread._flows.discard(self)
            self._lost(error)
            await self._flow.close()

    def _lost(self, error: BaseException) -> None:
        """Whoever waits hears of it, and whoever comes."""
        self._over = self._over or error
        while self._lists:
            fed = self._lists.popleft()[1]
            if not fed.done():
                fed.set_exception(error)
        self._answers.put(error)


def _after_fork() -> None:
    if LoopThread._of_process is not None:
        LoopThread._of_parents.append(LoopThread._of_process)
        LoopThread._of_process = None
    LoopThread._making = threading.Lock()


def _at_exit() -> None:
    if LoopThread._of_process is not None:
        LoopThread._of_process.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
