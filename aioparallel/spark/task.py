"""One task of Spark: its rows through the event loop of its Python worker.

A worker runs one task after the other, across micro-batches too, in one process (``spark.python.worker.reuse``): so do
its event loop, in a thread of its own, and what handlers share. The input is read by another thread, because it blocks,
and results are taken by the task's own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import inspect
import os
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from pyspark import TaskContext, cloudpickle

from aioparallel.blocking.processes import leaving_this_program
from aioparallel.engine.flow import Outcome
from aioparallel.engine.loop_thread import LoopThread, ThreadedFlow
from aioparallel.engine.sizes import Sized
from aioparallel.engine.work import Label, Work
from aioparallel.errors import ConfigurationError, LoopThreadEnded
from aioparallel.event_loop import GrowthWatch
from aioparallel.spark.task_end import TaskEnd, connection_to_jvm
from aioparallel.spark.values import fresh

__all__ = ["Shipment", "check_returns", "partition_number"]

# Seconds from one sign of life for the JVM to the next.
_PULSE = 0.1

T = TypeVar("T")
R = TypeVar("R")


@dataclasses.dataclass(frozen=True, slots=True)
class Shipment(Generic[T, R]):
    """Work that goes to the executors. Made on the driver."""

    work: Work[T, R]
    scope: str
    """Names what is opened for it: the same in each task, and wherever the same resources are asked for."""

    @classmethod
    def of(cls, work: Work[T, R]) -> Shipment[T, R]:
        """Raises ConfigurationError for what cannot be sent."""
        packed = {}
        for name, part in (
            ("handler", work.handler),
            ("key", work.handling.order_by),
            ("middleware", work.handling.middleware),
            ("resources", dict(work.handling.resources)),
            ("retry", work.retry),
        ):
            try:
                with leaving_this_program():
                    packed[name] = cloudpickle.dumps(part)  # type: ignore[no-untyped-call]
            except ConfigurationError:
                raise  # it says what to do
            except Exception as error:
                raise ConfigurationError(
                    name,
                    part,
                    f"cannot be sent to the executors ({error}): what is open stays here; open it there, "
                    'with resources={"http": lambda: Client(...)}, and reach it with resource("http")',
                ) from error
        return cls(work, hashlib.sha256(packed["resources"]).hexdigest())

    def run(self, lists: Iterable[Sequence[T]], label: Label) -> Generator[Sized[Outcome[T, R]], None, None]:
        """The outcomes of all items, some at a time. On the executor.

        Before the first item, and ten times a second, it gives an empty list: write what you have, or something
        without rows. A JVM that has ended the task closes the connection at that, and then all that runs is cancelled.

        Raises what opening a resource raises, what iterating ``lists`` raises when all before has ended, and the error
        of an item that ends it all.
        """
        # What a handler has changed is neither tried again nor called the input.
        work = dataclasses.replace(self.work, label=label, copy=fresh)
        thread = LoopThread.of_this_process()
        with _fewer_collections(work.handling.max_concurrency):
            flow = thread.flow(work, scope=self.scope)
            connection, watch = connection_to_jvm(), GrowthWatch()
            with TaskEnd(connection, partial(_abandon, flow)) as end:
                thread.call(watch.begin)
                due = time.monotonic()
                try:
                    yield Sized((), 0)  # pyarrow imports pandas for the first array: not while handlers run
                    reading = _Reading(flow, lists)
                    while (outcomes := flow.take(max(0.0, due - time.monotonic()))) is None or outcomes:
                        if outcomes:
                            yield outcomes
                        if time.monotonic() >= due:
                            yield Sized((), 0)
                            if connection is not None:
                                connection.outfile.flush()
                            due = time.monotonic() + _PULSE
                finally:
                    watch.end()
                    with contextlib.suppress(LoopThreadEnded):
                        flow.close()
                    if (end.has_come or _ends_with_its_task()) and thread.is_idle:
                        thread.close()
        reading.join()  # it has ended: nobody else ends the input
        if reading.failure is not None:
            raise reading.failure


def _abandon(flow: ThreadedFlow[Any, Any]) -> None:
    with contextlib.suppress(LoopThreadEnded):
        flow.abort(LoopThreadEnded("Spark has ended this task"))


def _ends_with_its_task() -> bool:
    """Whether this is a Python worker that Spark does not keep: nothing is told of its end."""
    return TaskContext.get() is not None and not os.environ.get("SPARK_REUSE_WORKER")


class _Collections:
    """How often this process looks for garbage: others run in it before and after."""

    lock: ClassVar = threading.Lock()
    tasks: ClassVar = 0
    before: ClassVar = (0, 0, 0)


@contextlib.contextmanager
def _fewer_collections(handlers: int) -> Iterator[None]:
    """While handlers run, each with objects that live as long as it does: otherwise they are looked at again and again
    (a third of the time with 500 in flight)."""
    with _Collections.lock:
        if not _Collections.tasks:
            _Collections.before = gc.get_threshold()
        _Collections.tasks += 1
        young, middle, old = gc.get_threshold()
        if young:  # 0: somebody has switched it off
            gc.set_threshold(max(young, 20_000, 5 * handlers), middle, old)
    try:
        yield
    finally:
        with _Collections.lock:
            _Collections.tasks -= 1
            if not _Collections.tasks:
                gc.set_threshold(*_Collections.before)


class _Reading(threading.Thread):
    """Feeds a flow what it reads."""

    def __init__(self, flow: ThreadedFlow[T, Any], lists: Iterable[Sequence[T]]) -> None:
        super().__init__(name="aioparallel-reading", daemon=True)
        self._flow = flow
        self._lists = lists
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            for items in self._lists:
                if not self._feed(items):
                    return
        except BaseException as error:
            self.failure = error
        with contextlib.suppress(LoopThreadEnded):
            self._flow.end()

    def _feed(self, items: Sequence[Any]) -> bool:
        try:
            self._flow.feed(items)
        except BaseException:
            return False  # the flow is over: its reader knows why
        return True


def check_returns(option: str, handler: object) -> None:
    """Raises ConfigurationError for a handler that yields: a row has one result."""
    if inspect.isasyncgenfunction(handler):
        raise ConfigurationError(option, handler, "must return one result, this one yields")


def partition_number() -> int:
    """Of the task that runs; 0 outside of one."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
