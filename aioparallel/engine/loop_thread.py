"""An event loop in a thread of its own, for programs that are not asynchronous: flows that are fed and read from other
threads, in lists, never item by item.

There is one for each process. What handlers share is opened in it once, by name, and kept for the flows to come: a
client with warm connections, say, in a process that runs one short task after the other.
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

from aioparallel.engine.flow import Flow, FlowStats, Outcome, raisable
from aioparallel.engine.own_loop import own_runner
from aioparallel.engine.sizes import Sized
from aioparallel.engine.work import Work
from aioparallel.errors import ConsumerStateError, LoopThreadEnded
from aioparallel.handling import Resource
from aioparallel.resources import Resources, reach
from aioparallel.user_errors import repr_of

__all__ = ["LoopThread", "ThreadedFlow"]

T = TypeVar("T")
R = TypeVar("R")

# Seconds for a resource to open.
_OPEN_TIMEOUT = 30.0
# Scopes whose resources stay open though no flow uses them.
_IDLE_SCOPES = 8
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
        self._opened: dict[tuple[str, str], Resources] = {}
        self._scopes: dict[str, None] = {}  # the last used at the end
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
            if found is None or not found.is_alive:
                found = cls._of_process = cls()
            return found

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._ended is None and self._thread.is_alive()

    def flow(self, work: Work[T, R], *, scope: str = "") -> ThreadedFlow[T, R]:
        """A flow (:class:`~aioparallel.engine.flow.Flow`) to be used from this thread, and one that feeds it.

        Opens those of the resources that no flow before has opened in the same ``scope``, and raises what that raises.
        Of many scopes those without a flow are closed, the longest unused first.
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
        """Run it in the loop, wait for it, and give what it gives or raises."""
        begun: list[asyncio.Task[T]] = []
        try:
            return cast("T", self.ask(self._start, work, begun))
        except BaseException:
            if begun:  # Ctrl-C, say: the loop's own work is not this thread's to close
                with contextlib.suppress(LoopThreadEnded):
                    self.call(begun[0].cancel)
            raise
        finally:
            if not begun:
                work.close()

    def ask(self, function: Callable[..., object], *arguments: object) -> Any:
        """Call it in the loop with a future besides, and wait for what that is told. Raises LoopThreadEnded, and
        ConsumerStateError within the loop itself."""
        self.expect_other_thread()
        future: Future[Any] = Future()
        self._waiting.add(future)
        try:
            self.call(function, *arguments, future)
            return future.result()
        finally:
            self._waiting.discard(future)

    def expect_other_thread(self) -> None:
        """Who would wait for the loop within it waits for ever. Raises ConsumerStateError."""
        if threading.current_thread() is self._thread:
            raise ConsumerStateError(
                "a LoopThread cannot be waited for within its own event loop: use parallel_map() in a handler"
            )

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call it in the loop, soon. Raises LoopThreadEnded."""
        if self._pid != os.getpid():
            raise LoopThreadEnded("it belongs to the process that this one was forked from: make a new flow here")
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError as error:
            raise self._gone() from error

    @property
    def is_idle(self) -> bool:
        """Whether it has no flow that is not closed."""
        return not self._flows

    def close(self) -> None:
        """Close what was opened, and end. Flows that are not closed raise at their readers."""
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
        """``scope`` is used now."""
        self._scopes.pop(scope, None)
        self._scopes[scope] = None
        used = {scope, *(flow._scope for flow in self._flows)}
        idle = [other for other in self._scopes if other not in used]
        for other in idle[: max(0, len(idle) - _IDLE_SCOPES)]:
            del self._scopes[other]
            for key in [key for key in self._opened if key[0] == other]:
                await self._opened.pop(key).close()


class _End(BaseException):
    """Everything was taken. Never raised."""


class ThreadedFlow(Generic[T, R]):
    """A flow of a :class:`LoopThread`. One thread reads it, one (the same, or another) feeds it."""

    def __init__(self, thread: LoopThread, scope: str) -> None:
        self._thread = thread
        self._scope = scope
        self._flow: Flow[T, R]
        # In the loop: lists that wait for room, with the bytes of each item and who waits for it; what of the first has
        # been fed.
        self._lists: deque[tuple[Sequence[T], int | None, Future[None]]] = deque()
        self._fed_of_first = 0
        self._feeding = False
        self._asked = False
        self._at_once = 1  # half of the bound: while these are read, there is room for as many
        self._over: BaseException | None = None
        self._closing: asyncio.Task[None] | None = None
        self._is_waiting = False  # of the reader: it has asked, and was not answered yet
        self._answers: queue.SimpleQueue[Sized[Outcome[T, R]] | BaseException] = queue.SimpleQueue()

    def feed(self, items: Iterable[T]) -> None:
        """Run these, after those before. Returns when all of them are in, so it waits for the reader where there is no
        room: where one thread does both, feed no more than ``max_buffered`` before each :meth:`take`, and no more than
        ``max_buffered_bytes``. The size of a :class:`~aioparallel.engine.sizes.Sized` list is taken for what it is.

        Raises LoopThreadEnded, and ValueError after :meth:`end`.
        """
        self._thread.ask(self._queue, items if isinstance(items, list | tuple | range) else list(items))

    def end(self) -> None:
        """Nothing more will be fed."""
        self._thread.call(self._end_of_input)

    @overload
    def take(self) -> Sized[Outcome[T, R]]: ...
    @overload
    def take(self, timeout: float) -> Sized[Outcome[T, R]] | None: ...
    def take(self, timeout: float | None = None) -> Sized[Outcome[T, R]] | None:
        """The outcomes since the last call, at least one of them; none: that was all. What one call gives is read when
        the next comes. ``timeout``: seconds; None is returned when nothing has come within them.

        Raises what has ended the flow, or LoopThreadEnded.
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
        """Start nothing more and cancel what runs, without waiting for it. Its reader gets ``error``. For any thread.

        Raises LoopThreadEnded."""
        self._thread.call(self._abort, error)

    def close(self) -> None:
        """Cancel what runs and wait for it. Resources stay open. A thread that waits in :meth:`feed` goes on."""
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
            items, each, fed = self._lists[0]
            first = self._fed_of_first
            batch = items[first : first + flow.room]
            # A flow that has failed takes no notice of it, one that has ended refuses it.
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
        """Something may be there for whoever asked."""
        if not self._asked:
            return
        self._asked = False  # on_room and on_ready may lead here again
        flow = self._flow
        if self._over is not None:
            self._answers.put(self._over)
        elif taken := flow.take(self._at_once):
            self._answers.put(taken)
        elif flow.finished:
            self._thread._loop.create_task(self._end(raisable(flow.failure or _End())))  # nobody has to close it
        else:
            self._asked = True

    async def _end(self, error: BaseException) -> None:
        """Returns when nothing of it runs any more, whoever else ends it, and though one of them goes away."""
        self._lost(error)
        if self._closing is None:
            self._closing = self._thread._loop.create_task(self._flow.close())
        await asyncio.shield(self._closing)
        self._thread._flows.discard(self)

    def _lost(self, error: BaseException) -> None:
        """Whoever waits hears of it, and whoever comes."""
        if self._over is None:
            self._over = error
            self._refuse(error)
            self._answers.put(error)

    def _refuse(self, error: BaseException) -> None:
        """What waits for room is not fed any more."""
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
# Before the interpreter waits for threads: one of them may wait in feed(). And before the executor's own end, which was
# registered when it was imported: what is closed then may use it.
getattr(threading, "_register_atexit", atexit.register)(_at_exit)
