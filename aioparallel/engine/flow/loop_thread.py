"""An event loop in its own thread, for programs that are not asynchronous. Other threads feed and read its flows in
lists, not item by item.

There is one for each process. Resources of handlers are opened in it once, by name, and kept for later flows. This
keeps the connections of a client warm in a process that runs one short task after the other, such as a Spark worker.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401 - see _at_exit
import contextlib
import contextvars
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, Generic, TypeVar, cast, overload

from aioparallel.config.handling import Resource
from aioparallel.engine.flow.flow import Flow, FlowStats, Outcome, raisable
from aioparallel.engine.flow.sizes import Sized
from aioparallel.engine.flow.work import Work
from aioparallel.event_loop.own_loop import own_runner
from aioparallel.handlers.resources import Resources, reach
from aioparallel.records.errors import ConsumerStateError, LoopThreadEnded
from aioparallel.records.user_errors import repr_of

__all__ = ["LoopThread", "ThreadedFlow"]

T = TypeVar("T")
R = TypeVar("R")

# Seconds for a resource to open.
_OPEN_TIMEOUT = 30.0
# The most scopes whose resources stay open while no flow uses them.
_IDLE_SCOPES = 8
# Seconds that the loop has to end when the process exits.
_CLOSE_TIMEOUT = 15.0


class LoopThread:
    """Get it with :meth:`of_this_process`."""

    _of_process: LoopThread | None = None
    _making = threading.Lock()
    # In a forked process, loops of the parent are never finalised: that would touch files that both processes share.
    _of_parents: ClassVar[list[LoopThread]] = []

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop
        self._opened: dict[tuple[str, str], Resources] = {}
        self._scopes: dict[str, None] = {}  # the most recently used last
        self._opening: asyncio.Lock
        self._flows: set[ThreadedFlow[Any, Any]] = set()
        # What other threads wait for. Each is added before the loop is called, because the loop may end meanwhile.
        self._waiting: set[Future[Any]] = set()
        self._ended: BaseException | None = None
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="aioparallel-loop", daemon=True)
        self._thread.start()
        started.result()

    @classmethod
    def of_this_process(cls) -> LoopThread:
        """Return the loop thread of this process. Makes one if there is none, after a fork, or if it has ended."""
        with cls._making:
            found = cls._of_process
            if found is None or not found.is_alive:
                found = cls._of_process = cls()
            return found

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._ended is None and self._thread.is_alive()

    def flow(self, work: Work[T, R], *, scope: str = "") -> ThreadedFlow[T, R]:
        """Make a :class:`~aioparallel.engine.flow.flow.Flow` that other threads feed and read.

        Opens the resources that no earlier flow has opened in the same ``scope``; raises what opening raises. Scopes
        without a flow are closed if there are more than 8 of them, the longest unused first.
        """
        made: ThreadedFlow[T, R] = ThreadedFlow(self, scope)

        async def make() -> None:
            opened = await self._open(work.handling.resources, scope)

            def begin() -> Flow[T, R]:
                reach(opened)
                return Flow(work, on_ready=made._answer, on_room=made._pump)

            made._flow = contextvars.Context().run(begin)
            made._at_once = max(1, made._flow.bound // 2)
            self._flows.add(made)

        self.run(make())
        return made

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for it. Returns what it returns, raises what it raises."""
        begun: list[asyncio.Task[T]] = []
        try:
            return cast("T", self.ask(self._start, work, begun))
        except BaseException:
            if begun:  # for example by Ctrl-C: the task belongs to the loop, so cancel it there
                with contextlib.suppress(LoopThreadEnded):
                    self.call(begun[0].cancel)
            raise
        finally:
            if not begun:
                work.close()

    def ask(self, function: Callable[..., object], *arguments: object) -> Any:
        """Call ``function(*arguments, future)`` in the loop, and wait for the result of the future. Raises
        LoopThreadEnded, and ConsumerStateError within the loop itself."""
        self.expect_other_thread()
        future: Future[Any] = Future()
        self._waiting.add(future)
        try:
            self.call(function, *arguments, future)
            return future.result()
        finally:
            self._waiting.discard(future)

    def expect_other_thread(self) -> None:
        """Raises ConsumerStateError in the loop's own thread: waiting for the loop there would never end."""
        if threading.current_thread() is self._thread:
            raise ConsumerStateError(
                "a LoopThread cannot be waited for within its own event loop: use parallel_map() in a handler"
            )

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call ``function`` in the loop soon. Raises LoopThreadEnded."""
        if self._pid != os.getpid():
            raise LoopThreadEnded("it belongs to the parent of this forked process: make a new flow here")
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError as error:
            raise self._gone() from error

    @property
    def is_idle(self) -> bool:
        """Whether all flows are closed."""
        return not self._flows

    def close(self) -> None:
        """Close all resources and end the thread. Open flows raise LoopThreadEnded at their readers."""
        self.expect_other_thread()
        if self.is_alive:
            with contextlib.suppress(LoopThreadEnded):
                self.call(self._loop.stop)
            self._thread.join(_CLOSE_TIMEOUT)

    # -- in the thread ----------------------------------------------------------------------------------

    def _run(self, started: Future[None]) -> None:
        try:
            with own_runner() as runner:
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
            for flow in list(self._flows):
                flow._lost(self._gone())
            for future in list(self._waiting):
                if not future.done():
                    future.set_exception(self._gone())

    async def _end(self) -> None:
        await asyncio.gather(*(flow._end(self._gone()) for flow in self._flows), return_exceptions=True)
        while self._opened:
            _, resources = self._opened.popitem()
            await resources.close()

    def _gone(self) -> LoopThreadEnded:
        error = LoopThreadEnded(f"the thread of this flow's event loop has ended: {repr_of(self._ended)}")
        error.__cause__ = self._ended
        return error

    def _start(self, work: Coroutine[Any, Any, T], begun: list[asyncio.Task[T]], future: Future[T]) -> None:
        def done(task: asyncio.Task[T]) -> None:
            if task.cancelled():
                future.set_exception(self._gone())
            elif (error := task.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(task.result())

        begun.append(self._loop.create_task(work))
        begun[0].add_done_callback(done)

    async def _open(self, factories: Mapping[str, Resource], scope: str) -> dict[str, object]:
        async with self._opening:
            for name, factory in factories.items():
                if (scope, name) not in self._opened:
                    resources = Resources({name: factory})
                    try:
                        await resources.open(_OPEN_TIMEOUT)
                    except BaseException:
                        await resources.close()
                        raise
                    self._opened[scope, name] = resources
            opened = {name: self._opened[scope, name].opened[name] for name in factories}
            await self._close_unused(scope)
            return opened

    async def _close_unused(self, scope: str) -> None:
        """Close the resources of scopes that are unused for longest. ``scope``: in use from now on."""
        self._scopes.pop(scope, None)
        self._scopes[scope] = None
        used = {scope, *(flow._scope for flow in self._flows)}
        idle = [other for other in self._scopes if other not in used]
        for other in idle[: max(0, len(idle) - _IDLE_SCOPES)]:
            del self._scopes[other]
            for key in [key for key in self._opened if key[0] == other]:
                await self._opened.pop(key).close()


class _End(BaseException):
    """The answer that ends a flow: all outcomes were taken. Never raised."""


class ThreadedFlow(Generic[T, R]):
    """A flow of a :class:`LoopThread`. One thread reads it, and the same or another thread feeds it."""

    def __init__(self, thread: LoopThread, scope: str) -> None:
        self._thread = thread
        self._scope = scope
        self._flow: Flow[T, R]
        # In the loop: lists that wait for room, each with the bytes of one item and the future of its feed(). And how
        # many items of the first list were fed.
        self._lists: deque[tuple[Sequence[T], int | None, Future[None]]] = deque()
        self._fed_of_first = 0
        self._feeding = False
        self._asked = False
        self._at_once = 1  # half of the bound, so that there is room for as many while these are read
        self._over: BaseException | None = None
        self._closing: asyncio.Task[None] | None = None
        self._is_waiting = False  # whether the reader has asked and has no answer yet
        self._answers: queue.SimpleQueue[Sized[Outcome[T, R]] | BaseException] = queue.SimpleQueue()

    def feed(self, items: Iterable[T]) -> None:
        """Run these items after those fed before.

        Returns when all of them have entered the flow, so it waits for the reader if there is no room. If one thread
        feeds and reads, it must feed at most ``max_buffered`` items and ``max_buffered_bytes`` before each
        :meth:`take`. The items of a :class:`~aioparallel.engine.flow.sizes.Sized` list are not measured again.

        Raises LoopThreadEnded, and ValueError after :meth:`end`.
        """
        self._thread.ask(self._queue, items if isinstance(items, list | tuple | range) else list(items))

    def end(self) -> None:
        """End the input: nothing more will be fed."""
        self._thread.call(self._end_of_input)

    @overload
    def take(self) -> Sized[Outcome[T, R]]: ...
    @overload
    def take(self, timeout: float) -> Sized[Outcome[T, R]] | None: ...
    def take(self, timeout: float | None = None) -> Sized[Outcome[T, R]] | None:
        """Wait for outcomes, and return all since the last call. An empty list means that the flow has ended. Outcomes
        count as read at the next call.

        ``timeout``: seconds; returns None if no outcome comes within them. Raises what has ended the flow, or
        LoopThreadEnded.
        """
        self._thread.expect_other_thread()
        if self._over is not None and self._answers.empty():
            return self._answer_of(self._over)
        if not self._is_waiting:
            self._thread.call(self._ask)
        self._is_waiting = True
        try:
            answer = self._answers.get(timeout=timeout)
        except queue.Empty:
            return None
        self._is_waiting = False
        return self._answer_of(answer)

    def _answer_of(self, answer: Sized[Outcome[T, R]] | BaseException) -> Sized[Outcome[T, R]]:
        if isinstance(answer, _End):
            return Sized((), 0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def stats(self) -> FlowStats:
        """Counts of items."""

        async def look() -> FlowStats:
            return self._flow.stats()

        return self._thread.run(look())

    def abort(self, error: BaseException) -> None:
        """Start nothing more and cancel what runs, without waiting for it. The reader gets ``error``. Any thread may
        call this. Raises LoopThreadEnded."""
        self._thread.call(self._abort, error)

    def close(self) -> None:
        """Cancel what runs and wait for it. Resources stay open. A thread that waits in :meth:`feed` gets an error."""
        self._thread.run(self._end(LoopThreadEnded("this flow is closed")))

    # -- in the loop ------------------------------------------------------------------------------------

    def _queue(self, items: Sequence[T], fed: Future[None]) -> None:
        if self._over is not None and not isinstance(self._over, _End):
            fed.set_exception(self._over)
            return
        each = items.size // max(1, len(items)) if isinstance(items, Sized) else None
        self._lists.append((items, each, fed))
        self._pump()

    def _pump(self) -> None:
        """Feed as many items as there is room for."""
        if self._feeding:
            return  # an item that fails at once makes room while it is fed; the loop in _feed() uses it
        self._feeding = True
        try:
            self._feed()
        finally:
            self._feeding = False

    def _feed(self) -> None:
        flow = self._flow
        while self._lists:
            items, each, fed = self._lists[0]
            first = self._fed_of_first
            batch = items[first : first + flow.room]
            # feed() ignores the items if the flow has failed, and raises if it has ended.
            is_last = first + len(batch) >= len(items) or flow.failure is not None or flow.ended
            if not is_last and not batch:
                return
            self._fed_of_first = first + len(batch)
            error: BaseException | None = None
            try:
                flow.feed(batch, each)
            except BaseException as raised:
                error = raised
            if error is not None or is_last:
                self._lists.popleft()
                self._fed_of_first = 0
                if error is None:
                    fed.set_result(None)
                else:
                    fed.set_exception(error)

    def _abort(self, error: BaseException) -> None:
        self._thread._loop.create_task(self._end(error))

    def _end_of_input(self) -> None:
        self._flow.end()
        self._refuse(ValueError("end() was called while this list waited for room"))

    def _ask(self) -> None:
        self._asked = True
        self._answer()

    def _answer(self) -> None:
        """Answer the reader if it has asked and there is something for it."""
        if not self._asked:
            return
        self._asked = False  # on_room and on_ready may lead here again
        flow = self._flow
        if self._over is not None:
            self._answers.put(self._over)
        elif taken := flow.take(self._at_once):
            self._answers.put(taken)
        elif flow.finished:
            self._thread._loop.create_task(self._end(raisable(flow.failure or _End())))  # so it need not be closed
        else:
            self._asked = True

    async def _end(self, error: BaseException) -> None:
        """End the flow, and wait until nothing of it runs. Several callers may wait, and each may be cancelled."""
        self._lost(error)
        if self._closing is None:
            self._closing = self._thread._loop.create_task(self._flow.close())
        await asyncio.shield(self._closing)
        self._thread._flows.discard(self)

    def _lost(self, error: BaseException) -> None:
        """Report the error to waiting and to later calls of feed() and take()."""
        if self._over is None:
            self._over = error
            self._refuse(error)
            self._answers.put(error)

    def _refuse(self, error: BaseException) -> None:
        while self._lists:
            self._lists.popleft()[2].set_exception(error)


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
# This runs before the interpreter waits for threads, because one of them may wait in feed(). It also runs before
# concurrent.futures shuts down, because closing a resource may use an executor. Handlers run in reverse order of their
# registration, and concurrent.futures registers its own at the import above.
getattr(threading, "_register_atexit", atexit.register)(_at_exit)
