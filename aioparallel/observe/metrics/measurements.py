"""What exporters read of one consumer: its statistics, its health, and the distributions that this extension counts.

Figures of ``stats()`` are read when somebody asks, and cost nothing before. Only distributions are counted as records
run. To keep that cheap, records are counted together: up to 16 of one partition that succeed in one turn of the event
loop. Wait and age are those of one of them, and so is the handler time. If their handlers returned at once, it is the
mean. Failures, batches, and handlers that block for more than half a millisecond are measured one by one.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter, time
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from aioparallel.config.extension import ConsumerContext, Extension, PartitionState
from aioparallel.observe.health import Health, Problem, ProblemKind
from aioparallel.observe.stats import Stats
from aioparallel.records.errors import ConsumerStateError, RetryLater
from aioparallel.records.record import Record, TopicPartition

if TYPE_CHECKING:
    from aioparallel.group.assignment import Assignment
    from aioparallel.group.client import CommitFault, Committed

__all__ = ["Counted", "Distribution", "Figures", "Histogram", "Measurements"]

_EACH: Final = 16
"""Of records that are reported together, one of so many is measured."""
_LOOP_INTERVAL: Final = 0.1
"""Seconds between two measurements of the event loop."""
_APART: Final = 0.001
"""Fetches of a partition within so many seconds count as one."""
_FETCHES: Final = 1024
"""So many fetches of a partition are noted. If there are more, because a record does not progress, every second one of
the older half is forgotten: its records count as those of the one before."""


class Distribution:
    """Counts values in buckets. Only the event loop writes; any thread may read."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """By bucket; the last one is above all bounds."""
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class Counted(Protocol):
    """Where values of one histogram with the same labels are counted."""

    def add(self, value: float, times: int = 1) -> None:
        """Count a value."""


C = TypeVar("C", bound=Counted)


class Histogram(dict[tuple[str, ...], C]):
    """Distributions by values of the labels. A missing one is made."""

    def __init__(self, make: Callable[[tuple[str, ...]], C]) -> None:
        self._make = make

    def __missing__(self, labels: tuple[str, ...]) -> C:
        found = self[labels] = self._make(labels)
        return found


@dataclass(frozen=True, slots=True)
class Figures:
    """All figures of a consumer at one moment. ``stats``: None if there are none, because it has not run or its event
    loop is blocked."""

    stats: Stats | None
    health: Health
    max_concurrency: int


class _Partition(PartitionState):
    """One assignment of a partition: when its records were fetched, by ``perf_counter``, and where they are counted."""

    __slots__ = ("_assignment", "_firsts", "_times", "age", "handler", "wait")

    def __init__(self, assignment: Assignment, handler: Counted, wait: Counted, age: Counted) -> None:
        self._assignment = assignment
        self._firsts: list[int] = []  # the first offset of each fetch
        self._times: list[float] = []
        # Of records that succeed: a look-up for each would cost more than to count it.
        self.handler = handler
        self.wait = wait
        self.age = age

    def select(self, records: Sequence[Record[Any, Any]]) -> Sequence[Record[Any, Any]]:
        if records:
            now, firsts, times = perf_counter(), self._firsts, self._times
            if not times or now - times[-1] > _APART:
                firsts.append(records[0].offset)
                times.append(now)
                done = bisect_right(firsts, self._assignment.ledger.next_commit) - 1
                if done > 0:
                    del firsts[:done], times[:done]
                if len(firsts) > _FETCHES:
                    del firsts[1 : _FETCHES // 2 : 2], times[1 : _FETCHES // 2 : 2]
        return records

    def count_wait(self, record: Record[Any, Any], began: float, times: int) -> None:
        """Count how long a record has waited that was started at ``began``, for so many records."""
        if record._parks:
            return  # only first attempts
        firsts = self._firsts
        if firsts and record.offset >= firsts[-1]:
            self.wait.add(began - self._times[-1], times)
        elif found := bisect_right(firsts, record.offset):
            self.wait.add(began - self._times[found - 1], times)

    def count_age(self, record: Record[Any, Any], now: float, times: int) -> None:
        """Count the age of a record that has succeeded, for so many records."""
        if record.timestamp > 0:
            self.age.add(max(0.0, now - record.timestamp / 1000), times)


class Measurements(Extension, Generic[C]):
    """Measures one consumer. Exporters inherit it. ``histograms``: by the names of their instruments."""

    def __init__(self, histograms: Mapping[str, Histogram[C]]) -> None:
        self.histograms = histograms
        self._highest: dict[tuple[str, tuple[str, ...]], float] = {}
        self._handler = self.histograms["handler.duration"]
        self._wait = self.histograms["record.wait"]
        self._age = self.histograms["record.age"]
        self._batch = self.histograms["batch.size"]
        self._commit = self.histograms["commit.duration"]
        self._loop = self.histograms["loop.lag"]
        self._partitions: dict[Hashable, _Partition] = {}
        self._context: ConsumerContext | None = None

    @property
    def context(self) -> ConsumerContext:
        """The consumer."""
        assert self._context is not None
        return self._context

    def figures(self) -> Figures:
        """Read all figures, in any thread."""
        context = self.context
        most = context.options.max_concurrency
        try:
            stats = context.stats()
        except ConsumerStateError:
            return Figures(None, context.health(), most)
        except TimeoutError:  # health() would wait as long for the same answer
            problem = Problem(ProblemKind.LOOP_HELD, "the event loop does not answer: something blocks it")
            return Figures(None, Health(running=context.is_running(), problems=(problem,)), most)
        return Figures(stats, context.health(), stats.max_concurrency)

    def never_lower(self, name: str, labels: tuple[str, ...], value: float) -> float:
        """The value of a counter, or the highest so far: a refused output turns a success into a dead letter, but
        counters must not fall."""
        found = self._highest[name, labels] = max(value, self._highest.get((name, labels), value))
        return found

    def outcome_of(self, error: BaseException) -> str:
        """The outcome of a failed attempt, for labels."""
        if isinstance(error, RetryLater):
            return "delayed"
        return "cancelled" if isinstance(error, asyncio.CancelledError) else "failed"

    # -- hooks ------------------------------------------------------------------------------------------

    def attach(self, consumer: ConsumerContext) -> None:
        """Belong to this consumer."""
        self._context = consumer

    def assigned(self, assignment: Assignment) -> PartitionState:
        """Note when records of this partition are fetched."""
        topic = assignment.partition.topic
        found = self._partitions[assignment.partition] = _Partition(
            assignment, self._handler[topic, "succeeded"], self._wait[topic,], self._age[topic, "succeeded"]
        )
        return found

    def released(self, partition: TopicPartition) -> None:
        """Forget the partition."""
        self._partitions.pop(partition, None)

    def attempts_ended(
        self, records: Sequence[Record[Any, Any]], calls: int, began: float, seconds: float, error: BaseException | None
    ) -> None:
        """Count handler time and wait."""
        record, partitions = records[0], self._partitions
        partition = partitions.get(record._source.name)
        if error is None and partition is not None:
            partition.handler.add(seconds, calls)
        else:
            outcome = "succeeded" if error is None else self.outcome_of(error)
            self._handler[record.topic, outcome].add(seconds, calls)
        count = len(records)
        if count == calls:
            if partition is not None:
                partition.count_wait(record, began, count)
            return
        self._batch[record.topic,].add(count)
        for record, times in _some(records):
            if (partition := partitions.get(record._source.name)) is not None:
                partition.count_wait(record, began, times)

    def records_ended(self, records: Sequence[Record[Any, Any]], outcome: str) -> None:
        """Count ages."""
        now = time()
        if outcome == "succeeded" and len(records) <= _EACH:
            partition = self._partitions.get(records[0]._source.name)
            if partition is not None:
                partition.count_age(records[0], now, len(records))
            return
        for record, times in _some(records):
            if record.timestamp > 0:
                age = max(0.0, now - record.timestamp / 1000)
                self._age[record.topic, outcome.replace("-", "_")].add(age, times)

    def commit_ended(
        self,
        positions: Mapping[TopicPartition, Committed],
        faults: Mapping[TopicPartition, CommitFault],
        seconds: float,
    ) -> None:
        """Count the time of a commit."""
        outcome = next((fault.value for fault in faults.values()), "accepted")
        self._commit[outcome,].add(seconds)

    async def work(self) -> None:
        """Measure the event loop."""
        lag = self._loop[()]
        while True:
            began = perf_counter()
            await asyncio.sleep(_LOOP_INTERVAL)
            lag.add(max(0.0, perf_counter() - began - _LOOP_INTERVAL))


def _some(records: Sequence[Record[Any, Any]]) -> Iterator[tuple[Record[Any, Any], int]]:
    """Records to measure, and for how many each counts."""
    for at in range(0, len(records), _EACH):
        yield records[at], min(_EACH, len(records) - at)
