"""How many records each partition may bring next. Plain arithmetic over sessions; the fetcher asks.

The buffer is shared out evenly: with one limit for all it would fill with one partition and few of its keys
(measured: a third of the rate). Three cases go past the even share:

* A partition with too little ready of its own may always fetch within its share, however much the others
  have: a trickle is not delayed by a hot partition.
* While workers stand idle, a partition at its share may borrow what the others leave, all but a reserve for
  each of them: this is how one reads past a hot key, up to ``max_buffered``.
* Bytes: the records that still fit are estimated from the mean size seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aioparallel.engine.scheduler import Scheduler
from aioparallel.engine.session import Session, SessionState
from aioparallel.options import Options
from aioparallel.records import TopicPartition

__all__ = ["Intake", "Plan"]

# Ready lanes wanted at least, whatever max_concurrency: one fetch should bring more than a few records.
_READY_AT_LEAST = 1_000
# A partition's reserve of the buffer that nobody borrows: this part of its share.
_RESERVE_PART = 16
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


class Intake:
    """Plans fetches for the sessions of one process."""

    def __init__(self, options: Options, scheduler: Scheduler) -> None:
        self._options = options
        self._scheduler = scheduler
        self._ready_wanted = max(options.max_concurrency, _READY_AT_LEAST)
        self._mean_size = float(_FIRST_SIZE)
        self._seen = False
        self._turn = 0

    def saw(self, records: int, size: int) -> None:
        """Learn the mean size of records from what a fetch has brought (``size`` in bytes)."""
        if records:
            weight = min(1.0, records / _MEMORY) if self._seen else 1.0
            self._mean_size += (size / records - self._mean_size) * weight
            self._seen = True

    def plan(self, sessions: Sequence[Session]) -> Plan:
        """The quotas of the next fetch."""
        options, scheduler = self._options, self._scheduler
        if scheduler.paused:
            return Plan({}, 0, "paused")
        open_sessions = [s for s in sessions if s.state is SessionState.OPEN and s.ledger.position < s.target]
        if not open_sessions:
            return Plan({}, 0, "nothing assigned")
        waiting = sum(s.buffered + s.parked for s in open_sessions)
        size = sum(s.buffered_bytes for s in open_sessions)
        by_bytes = self._records_in(options.max_buffered_bytes - size)
        free = min(options.max_buffered - waiting, by_bytes)
        if size and by_bytes <= 0:
            return Plan({}, self._step(), "full: max_buffered_bytes reached")
        if free <= 0:
            return Plan({}, self._step(), "full: max_buffered reached")
        share = max(1, min(options.max_buffered, self._records_in(options.max_buffered_bytes)) // len(open_sessions))
        lent: dict[TopicPartition, int] = {}
        if len(scheduler.in_flight) + scheduler.ready < options.max_concurrency:
            lent = self._lend(open_sessions, share, free)
        quotas = self._within_share(open_sessions, share, free - sum(lent.values()))
        quotas.update(lent)
        return Plan(quotas, self._step(), "fetching" if quotas else "enough ready")

    def _within_share(self, sessions: Sequence[Session], share: int, free: int) -> dict[TopicPartition, int]:
        ready_each = max(1, self._ready_wanted // len(sessions))
        enough = self._scheduler.ready >= self._ready_wanted
        quotas: dict[TopicPartition, int] = {}
        self._turn = turn = (self._turn + 1) % len(sessions)
        for session in (*sessions[turn:], *sessions[:turn]):
            if enough and len(session.ready) >= ready_each:
                continue
            quota = min(share - session.buffered - session.parked, free)
            if quota > 0:
                quotas[session.partition] = quota
                free -= quota
        return quotas

    @staticmethod
    def _lend(sessions: Sequence[Session], share: int, free: int) -> dict[TopicPartition, int]:
        """Give partitions at their share half of what the others leave beyond their reserve.

        Half, so that the others can still fetch in the same round; the next round lends half of the rest.
        """
        reserve = max(1, share // _RESERVE_PART)
        borrowers = []
        for session in sessions:
            missing = share - session.buffered - session.parked
            if missing <= 0:
                borrowers.append(session.partition)
            else:
                free -= min(reserve, missing)
        if not borrowers or free <= 0:
            return {}
        each = (free + 1) // 2 // len(borrowers)
        return dict.fromkeys(borrowers, each) if each else {}

    def _records_in(self, size: int) -> int:
        return int(size // max(self._mean_size, 1.0))

    def _step(self) -> int:
        """Starts after which a fetch brings enough to be worth its while."""
        return max(1, min(self._options.max_buffered, self._ready_wanted) // 8)
