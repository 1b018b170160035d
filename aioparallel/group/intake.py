"""How many records each partition may bring next. Plain arithmetic over sessions; the fetcher asks.

The buffer is shared out evenly: with one limit for all it would fill with one partition and few of its keys
(measured: a third of the rate). Then:

* A partition with few lanes of its own ready wants more, however much the others have ready: a trickle is not
  delayed by a hot partition. **Each that wants more may bring at least one record**, for a fetch waits for those that
  may bring something and for no others; the fetch as a whole takes no more than there is room for.
* One that is at its share and still has few lanes ready is full of hot keys: it borrows what the others leave, all
  but a reserve for each of them. This is how it reads past a hot key. One that holds records back, because too many are
  parked or its offset map is full, has enough.
* The last of the room is never lent out: from there a partition with nothing buffered brings one record at a time. So
  one that comes late finds room beside those that have read on as far as they may.
* Bytes: the records that still fit are estimated from the mean size seen. While fewer than ``max_buffered_bytes`` are
  buffered at least one record may come. So the bound is passed by at most what one fetch brings beyond the estimate.

What the scheduler puts back (a start that did not count) is buffered once more, and the room may be taken: then
``max_buffered`` is passed by those records, at most ``max_concurrency`` of them, and nothing is fetched until it is
not. Mostly the last of the room takes them up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from aioparallel.engine.scheduler import Scheduler
from aioparallel.group.sessions import Session, SessionState
from aioparallel.handling import Ordering
from aioparallel.options import Options
from aioparallel.records import TopicPartition

__all__ = ["Intake", "Plan"]

# Ready lanes wanted at least, whatever max_concurrency: one fetch should bring more than a few records.
_READY_AT_LEAST = 1_000
# A partition's reserve of the buffer that nobody borrows: this part of its share.
_RESERVE_PART = 16
# The last of the room, for partitions with nothing buffered: this part of all, and at most so many records.
_LAST_PART = 16
_LAST_AT_MOST = 1_000
# A partition at work fetches again when this part of its share is free: not for each single record.
_WORTH_PART = 8
# Assumed size of a record before any was seen (bytes); a first fetch stays small by it.
_FIRST_SIZE = 4_096
# Records over which the mean size forgets.
_MEMORY = 1_000


def _nothing() -> tuple[int, int]:
    return 0, 0


class Plan(NamedTuple):
    """What to fetch now, and when to ask again."""

    quotas: dict[TopicPartition, int]
    """Records that each partition may bring, 1 at least; those left out have enough, or no room."""
    most: int
    """Records that all of them may bring together."""
    starts_until_next: int
    """So many starts later there is room for more: plan anew then."""
    state: str
    """Why intake is as it is, in words for people: see :attr:`Stats.intake`."""

    full_ranks: Collection[int] | None = None
    """Where each rank has room of its own, those of which :meth:`is_full` says so; None: all have the same."""

    def is_full(self, rank: int) -> bool:
        """Whether there is no room for the sessions of this rank, or too little for some."""
        return self.state.startswith("full") if self.full_ranks is None else rank in self.full_ranks


class _Room(NamedTuple):
    """What still fits, in records."""

    free: int
    common: int
    """Of these, what is not kept for partitions with nothing buffered."""
    whole: int
    """The common room of an empty buffer."""
    waiting: int
    """How many are buffered."""
    full: str
    """The bound that is the nearest."""


class _Wishes(NamedTuple):
    """Who wants what of the common room."""

    below: list[tuple[TopicPartition, int]]
    """Below their share, and by how much."""
    borrowers: list[Session]
    """Full of hot keys."""
    without: list[Session]
    """Those with enough."""
    reserved: int
    """Records that nobody borrows."""


class Intake:
    """Plans fetches for the sessions of one process. ``beside()``: records, and bytes, that take room and are in the
    buffer of none of them. ``max_buffered``, ``max_buffered_bytes``: as in the options; they may be changed from one
    plan to the next."""

    def __init__(
        self, options: Options, scheduler: Scheduler, beside: Callable[[], tuple[int, int]] = _nothing
    ) -> None:
        self.max_buffered, self.max_buffered_bytes = options.max_buffered, options.max_buffered_bytes
        self._beside = beside
        self._scheduler = scheduler
        self._ready_wanted = max(options.max_concurrency, _READY_AT_LEAST)
        self._mean_size = float(_FIRST_SIZE)
        self._seen = False
        # Under PARTITION a session has one lane, however much is read ahead.
        self._lanes_may_grow = options.ordering is not Ordering.PARTITION
        # Starts after which a fetch brings enough to be worth its while.
        self._step = max(1, min(options.max_buffered, self._ready_wanted) // 8)

    def saw(self, records: int, size: int, rank: int = 0) -> None:
        """Learn the mean size of records from what was admitted of a fetch (``size`` in bytes)."""
        if records:
            weight = min(1.0, records / _MEMORY) if self._seen else 1.0
            self._mean_size += (size / records - self._mean_size) * weight
            self._seen = True

    def plan(self, sessions: Sequence[Session]) -> Plan:
        """What to fetch next."""
        if self._scheduler.paused:
            return Plan({}, 0, 0, "paused")
        # As attributes, not as a state: this is asked of hundreds of sessions, hundreds of times a second.
        takers = [
            s
            for s in sessions
            if s.opened and not s.stopped and not s.resetting and not s.waits and s.ledger.position < s.target
        ]
        if not takers:
            return Plan({}, 0, 0, _why_nothing(sessions))
        room = self._room(sessions)
        if room.free <= 0:
            return Plan({}, 0, self._until_dry(takers, room), room.full)
        if room.common <= 0:
            return self._last_of_the_room(takers, room)
        return self._share_out(takers, room)

    def _room(self, sessions: Sequence[Session]) -> _Room:
        beside, beside_bytes = self._beside()
        waiting = sum([session.buffered for session in sessions]) + beside
        size = sum([session.buffered_bytes for session in sessions]) + beside_bytes
        by_count = self.max_buffered - waiting
        last = max(1, min(self.max_buffered // _LAST_PART, _LAST_AT_MOST))
        last_bytes = self.max_buffered_bytes // _LAST_PART
        bytes_left = self.max_buffered_bytes - size
        # With nothing buffered one record may always come, however large it is.
        by_bytes = max(1, self._records_in(bytes_left)) if bytes_left > 0 or not size else 0
        common = min(by_count - last, self._records_in(bytes_left - last_bytes))
        whole = max(1, min(self.max_buffered - last, self._records_in(self.max_buffered_bytes - last_bytes)))
        full = f"full: max_buffered{'_bytes' if by_bytes < by_count else ''} reached"
        return _Room(min(by_count, by_bytes), common, whole, waiting, full)

    def _last_of_the_room(self, takers: Sequence[Session], room: _Room) -> Plan:
        """One record for each partition that has nothing buffered; the others go on with what they have."""
        quotas = {session.partition: 1 for session in takers if not session.buffered}
        others = [session for session in takers if session.buffered]
        return Plan(quotas, room.free, self._until_dry(others, room), room.full if others else "fetching")

    def _share_out(self, takers: Sequence[Session], room: _Room) -> Plan:
        """Share the common room out. Every partition below its share first keeps its reserve."""
        share = max(1, room.whole // len(takers))
        worth = max(1, share // _WORTH_PART)
        wishes = self._wishes(takers, share, worth)
        below, borrowers, without = wishes.below, wishes.borrowers, wishes.without
        quotas: dict[TopicPartition, int] = {}
        # Half of the room is lent out also where it is too small for everybody's reserve.
        left = room.common
        lent = max(0, left - min(wishes.reserved, room.whole // 2)) // len(borrowers) if borrowers else 0
        # A partition full of hot keys may not read on. The others have quotas still, but that is being full.
        withheld = bool(borrowers) and lent < worth
        if withheld:
            without += borrowers
        elif borrowers:
            quotas = dict.fromkeys([session.partition for session in borrowers], lent)
            left -= lent * len(borrowers)
        wanted = sum([missing for _, missing in below])
        round_robin = left if wanted <= left else max(1, left // len(below))
        for partition, missing in below:
            quotas[partition] = min(missing, round_robin)
        step = self._until_dry(without, room) if without or wanted > left else self._step
        state = room.full if withheld else "fetching" if quotas else "enough ready"
        return Plan(quotas, room.common if quotas else 0, step, state)

    def _wishes(self, takers: Sequence[Session], share: int, worth: int) -> _Wishes:
        few = max(1, self._ready_wanted // len(takers))
        all_want = self._scheduler.ready < self._ready_wanted
        keeps = max(1, share // _RESERVE_PART)
        wishes = _Wishes([], [], [], 0)
        reserved = 0
        for session in takers:
            missing = share - session.buffered
            ready = len(session.ready)
            if missing > 0:
                reserved += min(keeps, missing)
            if missing >= worth or (missing > 0 and not ready):
                if all_want or ready < few:
                    wishes.below.append((session.partition, missing))
                else:
                    wishes.without.append(session)
            elif ready < few and self._lanes_may_grow and not session.held:
                wishes.borrowers.append(session)
            else:
                wishes.without.append(session)
        return wishes._replace(reserved=reserved)

    def _until_dry(self, without: Sequence[Session], room: _Room) -> int:
        """So many starts later to plan anew. Nobody waits for one ``without`` a quota: before it runs dry.
        Where many of them have something ready, many starts are sure to come: no plan for each. And never more than
        wait, for few large records may be all that the bytes allow."""
        soon = min(self._step, room.waiting // 2)
        if without and soon > 1:
            least = min([session.buffered for session in without])
            startable = sum([1 for session in without if session.ready])
            soon = min(soon, max(least // 2, startable // 8))
        return max(1, soon)

    def _records_in(self, size: int) -> int:
        return max(0, int(size // max(self._mean_size, 1.0)))


def _why_nothing(sessions: Sequence[Session]) -> str:
    states = {session.state for session in sessions}
    if SessionState.OPENING in states or any(session.resetting for session in sessions):
        return "opening"
    if any(session.waits for session in sessions):
        return "held"
    return "at the end" if SessionState.OPEN in states else "nothing assigned"
