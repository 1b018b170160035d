"""Checkers of the consumer's guarantees: each key in order, no record lost.

Feed them in a handler, or from a log that handlers wrote, and check at the end. They are plain objects without I/O,
clock or lock. Their memory grows with the number of keys (order) and of records (delivery), not with time.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, Literal, NamedTuple, TypeVar

from aioparallel.records.record import Record

__all__ = [
    "DeliveryChecker",
    "DeliveryStatistics",
    "OrderChecker",
    "OrderStatistics",
    "Violation",
]

SHOWN: Final = 10
"""Most findings to list in an error message."""

Rule = Literal["overlap", "backwards", "skipped"]


class Violation(NamedTuple):
    """A record that started when it must not.

    ``rule`` is ``"overlap"`` (another record of its lane was in flight), ``"backwards"`` (a later one of its lane had
    run) or ``"skipped"`` (the lane continued, although a crash had interrupted an earlier one). ``previous`` is the
    other record's offset.
    """

    rule: Rule
    topic: str
    partition: int
    key: bytes | None
    offset: int
    previous: int

    def __str__(self) -> str:
        return (
            f"{self.rule}: {self.topic}-{self.partition} offset {self.offset} of key {self.key!r} "
            f"against offset {self.previous}"
        )


@dataclass(frozen=True, slots=True)
class OrderStatistics:
    """Counts since the checker was made.

    ``started``: starts of a handler. Of these, ``retries`` repeated the lane's last offset, ``reruns`` repeated an
    offset from before a crash or a reassignment (or out of order), and ``unordered`` had no lane. ``lanes``: lanes
    seen.
    """

    started: int
    retries: int
    reruns: int
    unordered: int
    lanes: int
    violations: int


class _LaneProgress:
    """The progress of one lane."""

    __slots__ = ("highest", "in_flight", "incarnation", "interrupted", "last")

    def __init__(self, incarnation: tuple[int, int]) -> None:
        self.incarnation = incarnation
        self.last = -1  # the offset that started last in this incarnation
        self.highest = -1  # the highest offset that started in any incarnation
        self.in_flight: int | None = None
        self.interrupted: int | None = None  # in flight when the process crashed, and not started again yet

    def enter(self, incarnation: tuple[int, int]) -> None:
        """The lane may start again from an earlier offset. A crash ended its handler; a reassignment did not."""
        if incarnation[0] != self.incarnation[0] and self.in_flight is not None:
            self.interrupted, self.in_flight = self.in_flight, None
        self.incarnation = incarnation
        self.last = -1

    def fault(self, offset: int) -> tuple[Rule, int] | None:
        """The rule that starting ``offset`` would break now, and the other record's offset."""
        if self.in_flight is not None:
            return "overlap", self.in_flight
        if offset < self.last:
            return "backwards", self.last
        if self.interrupted is not None and offset > self.interrupted:
            return "skipped", self.interrupted
        return None

    def start(self, offset: int) -> None:
        """The handler for ``offset`` starts."""
        if self.interrupted is not None and offset >= self.interrupted:
            self.interrupted = None
        self.in_flight = self.last = offset
        self.highest = max(self.highest, offset)


class OrderChecker:
    """Checks that each lane is in order. A lane is a key of a partition, or with ``order="partition"`` the partition.

    In a lane the next record starts only after the previous one has ended, and offsets ascend. The same offset may
    start again (a retry). Records without a key have no order by key and are only counted.

    After a crash, and when a partition returns, records above the committed offset run again. Call :meth:`crashed` or
    :meth:`reassigned`; from then on a lane may start again from an earlier offset, which counts as ``reruns``. A record
    that the crash interrupted must run again before later ones of its lane.

    Report events in the order in which they happened.
    """

    def __init__(self, order: Literal["key", "partition"] = "key") -> None:
        self.violations: list[Violation] = []
        self._by_key = order == "key"
        self._lanes: dict[tuple[str, int, bytes | None], _LaneProgress] = {}
        self._crashes = 0
        self._reassignments: Counter[tuple[str, int]] = Counter()
        self._started = self._retries = self._reruns = self._unordered = 0

    def started(self, key: bytes | None, partition: int, offset: int, *, topic: str = "") -> None:
        """A handler was called for this record."""
        self._started += 1
        lane = self._lane(topic, partition, key)
        if lane is None:
            self._unordered += 1
            return
        if (fault := lane.fault(offset)) is not None:
            self.violations.append(Violation(fault[0], topic, partition, key, offset, fault[1]))
        if offset == lane.last:
            self._retries += 1
        elif offset <= lane.highest:
            self._reruns += 1
        lane.start(offset)

    def ended(self, key: bytes | None, partition: int, offset: int, *, topic: str = "") -> None:
        """The handler returned or raised: the record is no longer in flight."""
        lane = self._lane(topic, partition, key)
        if lane is not None and lane.in_flight == offset:
            lane.in_flight = None

    @contextlib.contextmanager
    def handling(self, record: Record) -> Iterator[None]:
        """Wraps a handler's body in ``started`` and ``ended``."""
        self.started(record.key, record.partition, record.offset, topic=record.topic)
        try:
            yield
        finally:
            self.ended(record.key, record.partition, record.offset, topic=record.topic)

    def crashed(self) -> None:
        """The process ended without warning, including its handlers. Later events are from the next process."""
        self._crashes += 1

    def reassigned(self, partition: int, *, topic: str = "") -> None:
        """The partition was revoked or lost, and returned to the same process. Handlers may still run."""
        self._reassignments[topic, partition] += 1

    def statistics(self) -> OrderStatistics:
        """The counts so far."""
        return OrderStatistics(
            started=self._started,
            retries=self._retries,
            reruns=self._reruns,
            unordered=self._unordered,
            lanes=len(self._lanes),
            violations=len(self.violations),
        )

    def check(self) -> None:
        """Raise AssertionError, naming the first records, if the order of a lane was violated."""
        if self.violations:
            findings = _listed(self.violations)
            raise AssertionError(f"{len(self.violations)} of {self._started} starts were out of order:\n{findings}")

    def _lane(self, topic: str, partition: int, key: bytes | None) -> _LaneProgress | None:
        if self._by_key and key is None:
            return None
        incarnation = (self._crashes, self._reassignments[topic, partition])
        name = (topic, partition, key if self._by_key else None)
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _LaneProgress(incarnation)
        elif lane.incarnation != incarnation:
            lane.enter(incarnation)
        return lane


RecordId = TypeVar("RecordId", bound=Hashable)


@dataclass(frozen=True, slots=True)
class DeliveryStatistics:
    """The number of different records that were produced and handled; of handled records that were never produced
    (``unknown``); of produced records that were not handled (``lost``); and of repetitions (``duplicates``)."""

    produced: int
    handled: int
    lost: int
    unknown: int
    duplicates: int


class DeliveryChecker(Generic[RecordId]):
    """Checks that each produced record was handled, and how often.

    The test identifies records by anything hashable: ``(topic, partition, offset)``, or an id in the value.
    """

    def __init__(self) -> None:
        self._produced: set[RecordId] = set()
        self._handled: Counter[RecordId] = Counter()

    def produced(self, record: RecordId) -> None:
        """The broker acknowledged this record."""
        self._produced.add(record)

    def handled(self, record: RecordId) -> None:
        """The handler succeeded for this record."""
        self._handled[record] += 1

    def lost(self) -> set[RecordId]:
        """Records produced and not handled (yet): a test waits until this set is empty, with a deadline."""
        return self._produced - self._handled.keys()

    def unknown(self) -> set[RecordId]:
        """Records handled but never produced."""
        return self._handled.keys() - self._produced

    def duplicates(self) -> dict[RecordId, int]:
        """Records that were handled more than once, with the number of repetitions."""
        return {record: times - 1 for record, times in self._handled.items() if times > 1}

    def statistics(self) -> DeliveryStatistics:
        """The counts so far."""
        return DeliveryStatistics(
            produced=len(self._produced),
            handled=len(self._handled),
            lost=len(self.lost()),
            unknown=len(self.unknown()),
            duplicates=self._handled.total() - len(self._handled),
        )

    def check(self, max_duplicates: int | None = None) -> None:
        """Raise AssertionError if a record was lost or never produced, or if there were more than ``max_duplicates``
        repetitions (0: exactly once; default: any number, at least once)."""
        counts = self.statistics()
        if counts.lost:
            raise AssertionError(f"{counts.lost} of {counts.produced} records were lost:\n{_listed(self.lost())}")
        if counts.unknown:
            raise AssertionError(f"{counts.unknown} handled records were never produced:\n{_listed(self.unknown())}")
        if max_duplicates is not None and counts.duplicates > max_duplicates:
            raise AssertionError(
                f"{counts.duplicates} duplicates, {max_duplicates} allowed:\n{_listed(self.duplicates())}"
            )


def _listed(findings: Collection[object]) -> str:
    lines = [f"  {finding}" for finding in itertools.islice(findings, SHOWN)]
    more = len(findings) - len(lines)
    return "\n".join([*lines, f"  and {more} more"] if more else lines)
