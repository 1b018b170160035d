"""Runs the rows of one Spark task on the event loop of its Python worker.

With ``spark.python.worker.reuse``, one worker process runs many tasks, one after the other. The event loop, which has a
thread of its own, and the resources of handlers are kept between them. Another thread reads the input, because reading
blocks, and the task's own thread takes the results.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import inspect
import io
import os
import pickle
import threading
import time
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from functools import partial
from types import FunctionType
from typing import Any, ClassVar, Generic, TypeVar

from pyspark import TaskContext, cloudpickle

from aioparallel.engine.flow.flow import Outcome
from aioparallel.engine.flow.loop_thread import LoopThread, ThreadedFlow
from aioparallel.engine.flow.sizes import Sized
from aioparallel.engine.flow.work import Label, Work
from aioparallel.event_loop.loop import GrowthWatch
from aioparallel.handlers.blocking.processes import InProcesses, leaving_this_program
from aioparallel.records.errors import ConfigurationError, LoopThreadEnded
from aioparallel.spark.task_end import TaskEnd, connection_to_jvm
from aioparallel.spark.values import fresh

__all__ = ["Shipment", "check_returns", "partition_number"]

# Seconds between empty batches, which show whether the JVM still reads.
_HEARTBEAT = 0.1

T = TypeVar("T")
R = TypeVar("R")


@dataclasses.dataclass(frozen=True, slots=True)
class Shipment(Generic[T, R]):
    """Work for the executors; made on the driver."""

    work: Work[T, R]
    scope: str
    """Names its resources: the same in each task, and for other work with the same resources."""

    @classmethod
    def of(cls, work: Work[T, R]) -> Shipment[T, R]:
        """Raises ConfigurationError for parts that cannot be pickled."""
        parts = {
            "handler": work.handler,
            "key": work.handling.order_by,
            "middleware": work.handling.middleware,
            "resources": dict(work.handling.resources),
            "retry": work.retry,
        }
        pickled = {name: _pickled(name, part) for name, part in parts.items()}
        return cls(work, hashlib.sha256(pickled["resources"]).hexdigest())

    def with_key(self, key: Callable[[T], Hashable]) -> Shipment[T, R]:
        """The same with another key function, which can be pickled."""
        handling = dataclasses.replace(self.work.handling, order_by=key)
        return dataclasses.replace(self, work=dataclasses.replace(self.work, handling=handling))

    def run(self, lists: Iterable[Sequence[T]], label: Label) -> Generator[Sized[Outcome[T, R]], None, None]:
        """Yields lists of outcomes until all items are done. On the executor.

        Before the first item, and ten times a second, it yields an empty list: the caller should then write what it
        has, or an empty batch. If the JVM has ended the task, that write makes it close the connection, and running
        handlers are cancelled.

        Raises errors of opening a resource, errors of iterating ``lists`` once all items before have ended, and the
        error of an item that ends everything.
        """
        # Each attempt gets a copy, so that handlers may change it.
        work = dataclasses.replace(self.work, label=label, copy=fresh)
        thread = LoopThread.of_this_process()
        with _fewer_collections(work.handling.max_concurrency):
            flow = thread.flow(work, scope=self.scope)
            connection, watch = connection_to_jvm(), GrowthWatch()
            with TaskEnd(connection, partial(_abandon, flow)) as end:
                thread.call(watch.begin)
                due = time.monotonic()
                try:
                    yield Sized((), 0)  # pyarrow imports pandas for the first array, which blocks: before handlers run
                    reading = _Reading(flow, lists)
                    while (outcomes := flow.take(max(0.0, due - time.monotonic()))) is None or outcomes:
                        if outcomes:
                            yield outcomes
                        if time.monotonic() >= due:
                            yield Sized((), 0)
                            if connection is not None:
                                connection.outfile.flush()
                            due = time.monotonic() + _HEARTBEAT
                finally:
                    watch.end()
                    with contextlib.suppress(LoopThreadEnded):
                        flow.close()
                    if (end.has_come or _ends_with_its_task()) and thread.is_idle:
                        thread.close()
        reading.join()  # it has reached the end of the input
        if reading.failure is not None:
            raise reading.failure


def _pickled(name: str, part: object) -> bytes:
    with io.BytesIO() as file:
        try:
            with leaving_this_program():
                _Pickler(file).dump(part)  # type: ignore[no-untyped-call]
        except ConfigurationError:
            raise  # it says what to do
        except Exception as error:
            raise ConfigurationError(
                name,
                part,
                f"cannot be sent to the executors ({error}): open objects cannot leave this process; open them "
                'there, with resources={"http": lambda: Client(...)} and resource("http") in the handler',
            ) from error
        return file.getvalue()


class _Pickler(cloudpickle.Pickler):
    """Refuses partials for processes with arguments that belong to this program."""

    def persistent_id(self, part: object) -> None:
        """Called for each part, wherever it is."""
        if isinstance(part, InProcesses) and isinstance(part.wrapped, partial):
            _ArgumentCheck(io.BytesIO()).dump(part.wrapped)


class _ArgumentCheck(pickle.Pickler):
    def persistent_id(self, part: object) -> None:
        if isinstance(part, FunctionType | type) and part.__module__ == "__main__":
            raise ConfigurationError(
                "in_processes handler",
                part,
                "belongs to this program, which the worker it is sent to does not run, so its processes cannot import "
                "it: put it into a module that both import",
            )


def _abandon(flow: ThreadedFlow[Any, Any]) -> None:
    with contextlib.suppress(LoopThreadEnded):
        flow.abort(LoopThreadEnded("Spark has ended this task"))


def _ends_with_its_task() -> bool:
    """Whether Spark ends this Python worker, without notice, after the task."""
    return TaskContext.get() is not None and not os.environ.get("SPARK_REUSE_WORKER")


class _Collections:
    """The garbage collector's settings for all tasks of the process."""

    lock: ClassVar = threading.Lock()
    tasks: ClassVar = 0
    before: ClassVar = (0, 0, 0)


@contextlib.contextmanager
def _fewer_collections(handlers: int) -> Iterator[None]:
    """Raise the collector's threshold while handlers run. Otherwise it would check the objects of running handlers
    again and again (a third of the time with 500 in flight)."""
    with _Collections.lock:
        if not _Collections.tasks:
            _Collections.before = gc.get_threshold()
        _Collections.tasks += 1
        young, middle, old = gc.get_threshold()
        if young:  # 0: collection is disabled
            gc.set_threshold(max(young, 20_000, 5 * handlers), middle, old)
    try:
        yield
    finally:
        with _Collections.lock:
            _Collections.tasks -= 1
            if not _Collections.tasks:
                gc.set_threshold(*_Collections.before)


class _Reading(threading.Thread):
    """Reads the input and feeds a flow."""

    def __init__(self, flow: ThreadedFlow[T, Any], lists: Iterable[Sequence[T]]) -> None:
        super().__init__(name="aioparallel-reading", daemon=True)
        self._flow = flow
        self._lists = lists
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            for items in self._lists:
                try:
                    self._flow.feed(items)
                except BaseException:
                    return  # the flow has ended, and its reader gets the reason
        except BaseException as error:
            self.failure = error
        with contextlib.suppress(LoopThreadEnded):
            self._flow.end()


def check_returns(option: str, handler: object) -> None:
    """Raises ConfigurationError for an async generator: a row has one result."""
    if inspect.isasyncgenfunction(handler):
        raise ConfigurationError(option, handler, "must return one result, this one yields")


def partition_number() -> int:
    """The partition of the running task; 0 outside of one."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
