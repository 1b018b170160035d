"""How many records each partition may bring next. Plain arithmetic over sessions; the fetcher asks.

The buffer is shared out evenly: with one limit for all it would fill with one partition and few of its keys
(measured: a third of the rate). Then:

* A partition with few lanes of its own ready wants more, however much the others have ready: a trickle is not
  delayed by a hot partition.
* One that is at its share and still has few lanes ready is full of hot keys: it borrows what the others leave, all
  but a reserve for each of them. This is how it reads past a hot key, up to ``max_buffered``. One that holds records
  back, because too many are parked or its offset map is full, has enough.
* Bytes: the records that still fit are estimated from the mean size seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aioparallel.engine.scheduler import Scheduler
from aioparallel.group.sessions import Session, SessionState
from aioparallel.options import Options, Ordering
from aioparallel.records import TopicPartition

__all__ = ["Intake", "Plan"]

# Ready lanes wanted at least, whatever max_concurrency: one fetch should bring more than a few records.
_READY_AT_LEAST = 1_000
# A partition's reserve of the buffer that nobody borrows: this part of its share.
_RESERVE_PART = 16
# A partition at work fetches again when this part of its share is free: not for each single record.
_WORTH_PART = 8
# Assumed size of a record before any was seen (bytes); a first fetch stays small by it.
_FIRST_SIZE = 4_096
# Records over which the mean size forgets.
_MEMORY = 1_000


class Plan(NamedTuple):
    """What to fetch now, and when to ask again."""

    quotas: dict[TopicPartition, int]
    """Records that each partition may bring; none for those left out."""
    starts_until_next: int
    """So many starts later there is room for more: plan anew then."""
    state: str
    """Why intake is as it is, in words for people: see :attr:`Stats.intake`."""


class _Shared(NamedTuple):
    quotas: dict[TopicPartition, int]
    # A partition full of hot keys may not read on. The others have quotas still, but that is being full.
    withheld: bool
    # Everybody got what was wanted.
    all_served: bool


class Intake:
    """Plans fetches for the sessions of one process."""

    def __init__(self, options: Options, scheduler: Scheduler) -> None:
        self._options = options
        self._scheduler = scheduler
        self._ready_wanted = max(options.max_concurrency, _READY_AT_LEAST)
        self._mean_size = float(_FIRST_SIZE)
        self._seen = False
        self._turn = 0
        # Under PARTITION a session has one lane, however much is read ahead.
        self._lanes_may_grow = options.ordering is not Ordering.PARTITION
        # Starts after which a fetch brings enough to be worth its while.
        self._step = max(1, min(options.max_buffered, self._ready_wanted) // 8)

    def saw(self, records: int, size: int) -> None:
        """Learn the mean size of records from what a fetch has brought (``size`` in bytes)."""
        if records:
            weight = min(1.0, records / _MEMORY) if self._seen else 1.0
            self._mean_size += (size / records - self._mean_size) * weight
            self._seen = True

    def plan(self, sessions: Sequence[Session]) -> Plan:
        """The quotas of the next fetch."""
        options = self._options
        if self._scheduler.paused:
            return Plan({}, 0, "paused")
        takers = [s for s in sessions if s.state is SessionState.OPEN and s.ledger.position < s.target]
        if not takers:
            return Plan({}, 0, "nothing assigned")
        waiting = sum(session.buffered for session in sessions)
        size = sum(session.buffered_bytes for session in sessions)
        by_count = options.max_buffered - waiting
        by_bytes = self._records_in(options.max_buffered_bytes - size)
        # Without room for all, plan anew after so many starts: never more than wait, for few large records may be
        # all that the bytes allow.
        soon = max(1, min(self._step, waiting // 2))
        if size and by_bytes <= 0:
            return Plan({}, soon, "full: max_buffered_bytes reached")
        if by_count <= 0:
            return Plan({}, soon, "full: max_buffered reached")
        room = min(options.max_buffered, max(1, self._records_in(options.max_buffered_bytes)))
        shared = self._share_out(takers, max(1, room // len(takers)), min(by_count, max(1, by_bytes)))
        step = self._step if shared.all_served else soon
        if shared.withheld:
            state = f"full: max_buffered{'_bytes' if by_bytes < by_count else ''} reached"
        else:
            state = "fetching" if shared.quotas else "enough ready"
        return Plan(shared.quotas, step, state)

    def _share_out(self, takers: Sequence[Session], share: int, free: int) -> _Shared:
        """Share ``free`` records out. Every partition below its share first keeps its reserve."""
        few = max(1, self._ready_wanted // len(takers))
        all_want = self._scheduler.ready < self._ready_wanted
        worth = max(1, share // _WORTH_PART)
        below: list[tuple[TopicPartition, int]] = []
        borrowers: list[TopicPartition] = []
        reserved = 0
        self._turn = turn = (self._turn + 1) % len(takers)
        for session in (*takers[turn:], *takers[:turn]):
            missing = share - session.buffered
            has_few = len(session.ready) < few
            if missing > 0:
                reserved += min(max(1, share // _RESERVE_PART), missing)
            if missing >= worth or (missing > 0 and not session.ready):
                if all_want or has_few:
                    below.append((session.partition, missing))
            elif has_few and self._lanes_may_grow and not session.held:
                borrowers.append(session.partition)
        quotas: dict[TopicPartition, int] = {}
        lent = max(0, free - reserved) // len(borrowers) if borrowers else 0
        if lent >= worth:
            quotas.update(dict.fromkeys(borrowers, lent))
            free -= lent * len(borrowers)
        all_served = sum(missing for _, missing in below) <= free
        fair = free if all_served else max(1, free // len(below))
        for partition, missing in below:
            if quota := min(missing, fair, free):
                quotas[partition] = quota
                free -= quota
        withheld = bool(borrowers) and lent < worth
        return _Shared(quotas, withheld, all_served and not withheld)

    def _records_in(self, size: int) -> int:
        return int(size // max(self._mean_size, 1.0))
