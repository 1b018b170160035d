"""Plans how many records each partition may bring in the next fetch. Pure arithmetic over assignments.

The buffer is shared evenly among the partitions. With one limit for all, a single partition and few of its keys would
fill it (measured: a third of the rate). In detail:

* A partition below its share brings more if few of its own lanes are ready, even if other partitions have many ready.
  So a hot partition does not delay a slow one. **Each partition that wants more may bring at least one record**,
  because a fetch waits only for partitions with a quota. The fetch as a whole brings no more than there is capacity
  for.
* A partition at its share with few ready lanes is full of hot keys. It borrows what the others leave, except a reserve
  for each of them. This is how it reads past a hot key, or a paused one. A partition that holds records back, because
  too many are parked or its offset map is full, borrows nothing.
* A paused partition brings nothing. Its buffered records count half, so the others have at least half of the buffer for
  themselves. However many partitions are paused one after the other, at most twice the bound is buffered.
* The last part of the buffer is never lent. When only this part is free, a partition with nothing buffered brings one
  record at a time. So a partition that is assigned late finds capacity even if the others have read as far as they may.
* Bytes: how many records still fit is estimated from their mean size so far. While fewer than ``max_buffered_bytes``
  are buffered, at least one record may come. So a fetch exceeds the bound by no more than the error of this estimate.

A record that the scheduler puts back counts as parked, not as buffered, so it needs no capacity here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from aioparallel.config.handling import Ordering
from aioparallel.config.options import Options
from aioparallel.engine.schedule.scheduler import Scheduler
from aioparallel.group.assignment import Assignment, AssignmentState
from aioparallel.records.record import TopicPartition

__all__ = ["Intake", "Plan"]

# The least number of ready lanes wanted, so that a fetch brings more than a few records.
_READY_AT_LEAST = 1_000
# A partition's reserve, which is not lent to others: one of so many parts of its share.
_RESERVE_PART = 16
# The last part of the buffer, for partitions with nothing buffered: one of so many parts, but at most so many records.
_LAST_PART = 16
_LAST_AT_MOST = 1_000
# A partition fetches again when one of so many parts of its share is free, not for each record.
_WORTH_PART = 8
# Assumed size of a record (bytes) before any was read. It keeps the first fetch small.
_FIRST_SIZE = 4_096
# The weight of older records in the mean size fades over so many records.
_MEMORY = 1_000


def _nothing() -> tuple[int, int]:
    return 0, 0


class Plan(NamedTuple):
    """What to fetch now, and when to ask again."""

    quotas: dict[TopicPartition, int]
    """Records that each partition may bring, at least 1. The others have enough, or there is no capacity for them."""
    most: int
    """Records that all of them may bring together."""
    starts_until_next: int
    """After so many starts there is capacity for more: plan again then."""
    some_wait: bool
    """Some partitions without a quota wait for these starts. If fewer records can start, plan again after the last."""
    state: str
    """The state of intake in words, for :attr:`Stats.intake`."""

    full_ranks: Collection[int] | None = None
    """If each rank has a buffer of its own, the ranks whose buffer is full; None: all ranks share one."""

    def is_full(self, rank: int) -> bool:
        """Whether there is no capacity for the assignments of this rank, or too little for some of them."""
        return self.state.startswith("full") if self.full_ranks is None else rank in self.full_ranks


class _Capacity(NamedTuple):
    """The free part of the buffer, in records."""

    free: int
    common: int
    """``free`` without the last part, which is for partitions with nothing buffered."""
    whole: int
    """``common`` of an empty buffer."""
    buffered: int
    full: str
    """The state in words if the nearest bound is reached."""


class _Wishes(NamedTuple):
    """What the partitions want of the common capacity."""

    below: list[tuple[TopicPartition, int]]
    """Partitions below their share, and by how many records."""
    borrowers: list[Assignment]
    """Partitions at their share that are full of hot keys."""
    without: list[Assignment]
    """Partitions that have enough."""
    reserved: int
    """Records that are not lent."""


class Intake:
    """Plans fetches for the assignments of one process.

    ``elsewhere()``: records and bytes that count towards the bounds but are in the buffer of no assignment.
    ``max_buffered`` and ``max_buffered_bytes`` begin as in the options, and may change between two plans.
    """

    def __init__(
        self, options: Options, scheduler: Scheduler, elsewhere: Callable[[], tuple[int, int]] = _nothing
    ) -> None:
        self.max_buffered, self.max_buffered_bytes = options.max_buffered, options.max_buffered_bytes
        self._max_buffered = options.max_buffered
        self._elsewhere = elsewhere
        self._scheduler = scheduler
        self._mean_size = float(_FIRST_SIZE)
        self.set_max_concurrency(options.max_concurrency)
        self._seen = False
        # With PARTITION an assignment has one lane, however much is read ahead.
        self._lanes_may_grow = options.ordering is not Ordering.PARTITION

    def set_max_concurrency(self, most: int) -> None:
        """Plan for so many handlers at once."""
        self._ready_wanted = max(most, _READY_AT_LEAST)

    @property
    def _step(self) -> int:
        """After so many starts a fetch brings enough records to be worth it."""
        return max(1, min(self._max_buffered, self._ready_wanted) // 8)

    def saw(self, records: int, size: int, rank: int = 0) -> None:
        """Update the mean size of records after a fetch: so many records with ``size`` bytes were admitted."""
        if records:
            weight = min(1.0, records / _MEMORY) if self._seen else 1.0
            self._mean_size += (size / records - self._mean_size) * weight
            self._seen = True

    def plan(self, assignments: Sequence[Assignment]) -> Plan:
        """Plan the next fetch."""
        if self._scheduler.paused:
            return Plan({}, 0, 0, False, "paused")
        # Attributes, not the property ``state``: this loop checks hundreds of assignments, hundreds of times a second.
        takers = [
            s
            for s in assignments
            if s.opened
            and not s.stopped
            and not s.resetting
            and not s.waits
            and not s.paused
            and s.ledger.position < s.target
        ]
        if not takers:
            return Plan({}, 0, 0, False, _why_nothing(assignments))
        capacity = self._capacity(assignments)
        if capacity.free <= 0:
            return Plan({}, 0, self._until_dry(takers, capacity), True, capacity.full)
        if capacity.common <= 0:
            return self._last_part(takers, capacity)
        return self._share_out(takers, capacity)

    def _capacity(self, assignments: Sequence[Assignment]) -> _Capacity:
        elsewhere, elsewhere_bytes = self._elsewhere()
        buffered = sum([assignment.buffered for assignment in assignments]) + elsewhere
        size = sum([assignment.buffered_bytes for assignment in assignments]) + elsewhere_bytes
        if paused := [assignment for assignment in assignments if assignment.paused]:
            buffered -= sum([assignment.buffered for assignment in paused]) // 2
            size -= sum([assignment.buffered_bytes for assignment in paused]) // 2
        by_count = self.max_buffered - buffered
        last = max(1, min(self.max_buffered // _LAST_PART, _LAST_AT_MOST))
        last_bytes = self.max_buffered_bytes // _LAST_PART
        bytes_left = self.max_buffered_bytes - size
        # If nothing is buffered, one record may always come, however large it is. While bytes are left, one may come as
        # well: a large record may have made the mean size larger than what is left, and without records it stays.
        by_bytes = max(1, self._records_in(bytes_left)) if bytes_left > 0 or not size else 0
        common_by_bytes = max(1, self._records_in(bytes_left - last_bytes)) if bytes_left > last_bytes else 0
        common = min(by_count - last, common_by_bytes)
        whole = max(1, min(self.max_buffered - last, self._records_in(self.max_buffered_bytes - last_bytes)))
        full = f"full: max_buffered{'_bytes' if by_bytes < by_count else ''} reached"
        return _Capacity(min(by_count, by_bytes), common, whole, buffered, full)

    def _last_part(self, takers: Sequence[Assignment], capacity: _Capacity) -> Plan:
        """Plan one record for each partition that has nothing buffered. The others run what they have."""
        quotas = {assignment.partition: 1 for assignment in takers if not assignment.buffered}
        others = [assignment for assignment in takers if assignment.buffered]
        state = capacity.full if others else "fetching"
        return Plan(quotas, capacity.free, self._until_dry(others, capacity), bool(others), state)

    def _share_out(self, takers: Sequence[Assignment], capacity: _Capacity) -> Plan:
        """Share the common capacity. The reserves of partitions below their share are not lent."""
        share = max(1, capacity.whole // len(takers))
        worth = max(1, share // _WORTH_PART)
        wishes = self._wishes(takers, share, worth)
        below, borrowers, without = wishes.below, wishes.borrowers, wishes.without
        quotas: dict[TopicPartition, int] = {}
        # At most half of the buffer is reserved, even if all reserves together are larger.
        left = capacity.common
        lendable = max(0, left - min(wishes.reserved, capacity.whole // 2))
        # At least one each: all of them together bring no more than ``most``.
        lent = max(1, lendable // len(borrowers)) if borrowers and lendable else 0
        # If the loans are too small, partitions full of hot keys do not read on. Then the state is "full", although the
        # others have quotas.
        withheld = bool(borrowers) and lent < worth
        if withheld:
            without += borrowers
        elif borrowers:
            quotas = dict.fromkeys([assignment.partition for assignment in borrowers], lent)
            left = max(0, left - lent * len(borrowers))
        wanted = sum([missing for _, missing in below])
        equal = left if wanted <= left else max(1, left // len(below))
        for partition, missing in below:
            quotas[partition] = min(missing, equal)
        step = self._until_dry(without, capacity) if without or wanted > left else self._step
        state = capacity.full if withheld else "fetching" if quotas else "enough ready"
        return Plan(quotas, capacity.common if quotas else 0, step, bool(without), state)

    def _wishes(self, takers: Sequence[Assignment], share: int, worth: int) -> _Wishes:
        few = max(1, self._ready_wanted // len(takers))
        all_want = self._scheduler.ready < self._ready_wanted
        keeps = max(1, share // _RESERVE_PART)
        wishes = _Wishes([], [], [], 0)
        reserved = 0
        for assignment in takers:
            missing = share - assignment.buffered
            ready = len(assignment.ready)
            if missing > 0:
                reserved += min(keeps, missing)
            if missing >= worth or (missing > 0 and not ready):
                if all_want or ready < few:
                    wishes.below.append((assignment.partition, missing))
                else:
                    wishes.without.append(assignment)
            elif ready < few and self._lanes_may_grow and not assignment.is_held_back:
                wishes.borrowers.append(assignment)
            else:
                wishes.without.append(assignment)
        return wishes._replace(reserved=reserved)

    def _until_dry(self, without: Sequence[Assignment], capacity: _Capacity) -> int:
        """Return after how many starts to plan again.

        The fetch does not wait for the assignments ``without`` a quota, so the next plan must come before one of them
        runs out of records. If many of them have ready records, many starts will follow, and a plan for each would cost
        too much. The result is at most half of the buffered records: the byte limit may allow only a few large ones.
        """
        soon = min(self._step, capacity.buffered // 2)
        if without and soon > 1:
            least = min([assignment.buffered for assignment in without])
            startable = sum([1 for assignment in without if assignment.ready])
            soon = min(soon, max(least // 2, startable // 8))
        return max(1, soon)

    def _records_in(self, size: int) -> int:
        return max(0, int(size // max(self._mean_size, 1.0)))


def _why_nothing(assignments: Sequence[Assignment]) -> str:
    states = {assignment.state for assignment in assignments}
    if AssignmentState.OPENING in states or any(assignment.resetting for assignment in assignments):
        return "opening"
    if any(assignment.waits for assignment in assignments):
        return "held"
    if any(assignment.paused and assignment.ledger.position < assignment.target for assignment in assignments):
        return "paused"
    return "at the end" if AssignmentState.OPEN in states else "nothing assigned"
