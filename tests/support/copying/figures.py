"""What became of a run, in figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aioparallel.records.record import Record
from aioparallel.testing import DeliveryChecker, OrderChecker
from tests.support.copying.job import UNKNOWN, Acknowledged
from tests.support.copying.members import Members
from tests.support.kafka.filling import number_of
from tests.support.kafka.reading import judge

__all__ = ["Fault", "Figures", "figures_of"]

_LOST = " is lost ("
"""In the line about it."""


@dataclass
class Fault:
    """What was done to brokers or members, and when (CLOCK_MONOTONIC, seconds)."""

    what: str
    coordinator: int
    """The broker that coordinated the group when it began."""
    healthy: frozenset[int]
    """The partitions of the target that other brokers led then."""
    began: float
    ended: float = 0.0
    input_left: bool = False
    """Whether records were left to copy when it ended; otherwise it was measured while there was nothing to do."""


@dataclass
class Figures:
    """What the target and the members say in the end. Times are seconds.

    ``order``: of each key, by first occurrences. ``delivery``: of each number.
    """

    order: OrderChecker
    delivery: DeliveryChecker[int]
    misplaced: list[Acknowledged]
    """Acknowledged, but another record or none is stored at that offset."""
    gave_up: int
    """Deliveries that gave up, each of one output."""
    unexplained: list[int]
    """Numbers that are there more often than their deliveries that gave up allow: each of these may have been written
    all the same, once."""
    lost_sessions: int
    """How often a member lost its partitions without a last commit: what it had not committed is copied again."""
    silences: list[tuple[Fault, float]]
    """By fault: the longest time between two acknowledgements of a healthy partition, while it lasted."""

    @property
    def duplicates(self) -> int:
        """Outputs that are there once more."""
        return self.delivery.statistics().duplicates

    def __str__(self) -> str:
        faults = "; ".join(
            f"{fault.what} for {fault.ended - fault.began:.1f} s (coordinator {fault.coordinator}): "
            + (f"healthy ones silent {silence:.2f} s" if fault.healthy else "none healthy")
            for fault, silence in self.silences
        )
        return (
            f"{len(self.delivery.lost())} missing, {len(self.order.violations)} out of order, {self.duplicates} twice, "
            f"{len(self.misplaced)} acknowledged elsewhere than they stand, {self.gave_up} deliveries gave up, "
            f"{self.lost_sessions} lost sessions; {faults}"
        )

    def check(self) -> None:
        """Nothing is lost or out of order, what is acknowledged stands where it said, and faults ended before
        the records did."""
        self.order.check()
        self.delivery.check()
        assert self.misplaced[:5] == []
        assert [fault for fault, _ in self.silences if not fault.input_left] == []


def figures_of(outputs: list[Record], records: int, members: Members, faults: Sequence[Fault]) -> Figures:
    """What the target holds, beside what the members noted."""
    acknowledged, again = members.acknowledged(), members.again()
    order, delivery = judge(outputs, range(records))
    log = {(one.partition, one.offset): number_of(one) for one in outputs}
    return Figures(
        order=order,
        delivery=delivery,
        misplaced=[
            one for one in acknowledged if one.offset != UNKNOWN and log.get((one.partition, one.offset)) != one.number
        ],
        gave_up=again.total(),
        unexplained=[number for number, more in delivery.duplicates().items() if more > again[number]],
        lost_sessions=sum(member.log().count(_LOST) for member in members.all),
        silences=[(fault, longest_silence(acknowledged, fault)) for fault in faults],
    )


def longest_silence(acknowledged: Sequence[Acknowledged], fault: Fault) -> float:
    """The longest time between two acknowledgements of one healthy partition that touches the fault; seconds."""
    longest = 0.0
    before: dict[int, float] = {}
    for one in acknowledged:
        since = before.get(one.partition, one.at)
        if one.partition in fault.healthy and one.at > fault.began and since < fault.ended:
            longest = max(longest, one.at - since)
        before[one.partition] = one.at
    return longest
