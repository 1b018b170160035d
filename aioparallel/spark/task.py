"""One task of Spark: its rows through the event loop of its Python worker.

A worker runs one task after the other, across micro-batches too, in one process (``spark.python.worker.reuse``): so do
its event loop, in a thread of its own, and what handlers share. The input is read by another thread, because it blocks,
and results are taken by the task's own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from pyspark import TaskContext, cloudpickle

from aioparallel.engine.flow import Outcome
from aioparallel.engine.loop_thread import LoopThread, ThreadedFlow
from aioparallel.engine.work import Label, Work
from aioparallel.errors import ConfigurationError, LoopThreadEnded
from aioparallel.event_loop import quick_collections

__all__ = ["Shipment", "partition_number"]

T = TypeVar("T")
R = TypeVar("R")


@dataclasses.dataclass(frozen=True, slots=True)
class Shipment(Generic[T, R]):
    """Work that goes to the executors. Made on the driver."""

    work: Work[T, R]
    scope: str
    """Names what is opened for it: the same in each task of one operator, another one for another operator."""

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
                packed[name] = cloudpickle.dumps(part)  # type: ignore[no-untyped-call]
            except Exception as error:
                raise ConfigurationError(
                    name,
                    part,
                    f"cannot be sent to the executors ({error}): what is open stays here; open it there, "
                    'with resources={"http": lambda: Client(...)}, and reach it with resource("http")',
                ) from error
        return cls(work, hashlib.sha256(packed["resources"]).hexdigest())

    def run(self, lists: Iterable[Sequence[T]], label: Label) -> Iterator[list[Outcome[T, R]]]:
        """The outcomes of all items, some at a time. On the executor.

        Raises what opening a resource raises, what iterating ``lists`` raises when all before has ended, and the error
        of an item that ends it all.
        """
        work = dataclasses.replace(self.work, label=label)
        if TaskContext.get() is not None:  # a process of Spark's for tasks: a third less time where handlers wait
            quick_collections(work.handling.max_concurrency)
        flow = LoopThread.of_this_process().flow(work, scope=self.scope)
        reading = _Reading(flow, lists)
        try:
            while outcomes := flow.take():
                yield outcomes
        finally:
            with contextlib.suppress(LoopThreadEnded):
                flow.close()
        reading.join()  # it has ended: nobody else ends the input
        if reading.failure is not None:
            raise reading.failure


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


def partition_number() -> int:
    """Of the task that runs; 0 outside of one."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
