"""Sources with ready records take turns, equally or by weight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence, Sized
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from aioparallel.engine.schedule.counters import Counters

__all__ = ["MakeTurnQueue", "RoundRobin", "TurnQueue", "TurnTaker", "WeightedFairQueue", "round_robin"]


class TurnTaker(Protocol):
    """A source, or another object that takes turns with sources."""

    is_queued: bool
    rank: int
    """Its priority, from 0: the index of its weight in a :class:`WeightedFairQueue`."""

    @property
    def ready(self) -> Sized:
        """The records that may start."""

    @property
    def holds(self) -> Collection[Any]:
        """What it has in its slots: records in flight, or calls with several records."""


class TurnQueue(Protocol):
    """The queue in which sources with ready records take turns."""

    @property
    def line(self) -> Collection[Any]:
        """Empty if no source has something ready."""

    def begin(self) -> Any:
        """Return the source whose turn it is, until :meth:`end`. Call it only while ``line`` is not empty."""

    def end(self, source: Any) -> None:
        """End the turn of the source: move it to the end of the line, or out of it."""

    def join(self, source: Any) -> None:
        """Add a source that has something ready. Adding it again does nothing."""

    def leave(self, source: Any) -> None:
        """Remove a source that has nothing ready. Removing it again does nothing."""

    def peers(self, source: Any) -> int:
        """How many sources have something ready that could share a batch with it, itself included."""

    def set_slots(self, slots: int) -> None:
        """Change the number of slots."""


MakeTurnQueue = Callable[[int, "Counters"], TurnQueue]
"""Makes a queue, given the number of slots and the counters of started records."""


class RoundRobin:
    """Sources take turns. A source that holds more than its share of the ``slots`` lets the others go first, so a topic
    with slow handlers does not slow down the others.
    """

    __slots__ = ("_slots", "line")

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.line: deque[Any] = deque()

    def begin(self) -> Any:
        """Return the first source in line that holds no more than its share of the slots; if none does, the first."""
        line = self.line
        first = line[0]
        count = len(line)
        if len(first.holds) * count <= self._slots:
            return first
        for _ in range(count):  # if none is within its share, the first one is in front again
            line.rotate(-1)
            if len(line[0].holds) * count <= self._slots:
                break
        return line[0]

    def end(self, source: TurnTaker) -> None:
        """Move the source to the end of the line, or out of it if it has nothing ready."""
        if not source.ready:
            self.leave(source)
        elif source.is_queued:
            self.line.rotate(-1)

    def join(self, source: TurnTaker) -> None:
        """Add the source to the end of the line."""
        if not source.is_queued:
            source.is_queued = True
            self.line.append(source)

    def leave(self, source: TurnTaker) -> None:
        """Remove the source from the line."""
        if source.is_queued:
            source.is_queued = False
            self.line.remove(source)

    def peers(self, source: TurnTaker) -> int:
        """Return the length of the line."""
        return len(self.line)

    def set_slots(self, slots: int) -> None:
        """Change the number of slots, and so the share of each source."""
        self._slots = slots


def round_robin(slots: int, counters: Counters) -> TurnQueue:
    """Make a queue in which all sources have the same priority."""
    return RoundRobin(slots)


# The slots of each rank are counted again after slots / 32 starts. Counting takes time in proportion to their number.
_COUNT_PART = 32
# A rank may hold slots / 16 beyond its part. The number that it holds varies by chance. Without this slack, light ranks
# would get the slots that heavy ones are refused.
_SLACK_PART = 16
# At most one of eight turns goes by age. Without this limit all turns would, if handlers are so slow that every rank
# waits longer than the ageing time.
_AGED_PART = 8
_SINCE, _SPENT = attrgetter("since"), attrgetter("spent")


class _Rank:
    """The sources of one priority."""

    __slots__ = ("held", "may_hold", "since", "sources", "spent", "turns", "weight")

    def __init__(self, weight: float, slots: int) -> None:
        self.weight = weight
        self.turns = RoundRobin(slots)
        self.sources: dict[Any, None] = {}  # those that have started records and may hold slots
        self.held = 0  # slots at the last count, plus the starts since
        self.may_hold = 0.0  # slots; set again whenever the line changes
        self.spent = 0.0  # starts by weight: the rank that spent least is next
        self.since = 0.0  # when it had its last turn, or became ready again


class WeightedFairQueue:
    """Sources of several ranks. Ranks with ready records start them in proportion to their ``weights``. What one rank
    does not use goes to the others. Sources of one rank take turns as in a :class:`RoundRobin`.

    A rank that holds more than its part of the ``slots`` lets the others go first, so slow handlers of one rank do not
    take all slots. A rank with ready records that had no turn for ``ageing`` seconds of ``clock`` gets the next one. At
    most one of eight turns is given this way.

    This is weighted fair queueing with virtual time: each start of a rank costs 1/weight. A rank without ready records
    saves up nothing. A rank that was held back for its slots saves up no more than the number of slots.
    """

    def __init__(
        self, slots: int, counters: Counters, weights: Sequence[float], ageing: float, clock: Callable[[], float]
    ) -> None:
        self._counters = counters
        self._ageing = ageing
        self._clock = clock
        self._ranks = [_Rank(weight, slots) for weight in weights]
        self._by_weight = sorted(self._ranks, key=attrgetter("weight"), reverse=True)
        self.line: list[_Rank] = []
        self.set_slots(slots)
        self._spent = 0.0  # what the rank of the last turn had spent before it
        self._before = 0  # taken_left of the counters when the turn began
        self._count_in = 0  # starts until slots are counted again
        self._age_in = _AGED_PART  # turns until one may go by age

    def begin(self) -> Any:
        """Choose a rank, and return the source whose turn it is there."""
        line = self.line
        rank = line[0] if len(line) == 1 else self._chosen()
        self._before = self._counters.taken_left
        return rank.turns.begin()

    def end(self, source: TurnTaker) -> None:
        """End the turn, and charge its starts to the rank of the source."""
        rank = self._ranks[source.rank]
        rank.turns.end(source)
        started = self._before - self._counters.taken_left
        self._spent = rank.spent
        if started > 0:
            rank.sources[source] = None
            rank.spent += started / rank.weight
            rank.held += started
            self._count_in -= started
        rank.since = self._clock()
        if not rank.turns.line:
            self._leave_line(rank)

    def join(self, source: TurnTaker) -> None:
        """Add the source to its rank, and the rank to the line."""
        if source.is_queued:
            return
        rank = self._ranks[source.rank]
        rank.turns.join(source)
        if rank not in self.line:
            rank.spent = max(rank.spent, min([one.spent for one in self.line], default=self._spent))
            rank.since = self._clock()
            # The heaviest first: it has the next turn among those that have spent the same.
            self._line_up([one for one in self._by_weight if one is rank or one in self.line])

    def leave(self, source: TurnTaker) -> None:
        """Remove the source from its rank, and an empty rank from the line."""
        rank = self._ranks[source.rank]
        rank.turns.leave(source)
        if not rank.turns.line:
            self._leave_line(rank)

    def peers(self, source: TurnTaker) -> int:
        """Return how many sources of the same rank have something ready."""
        return self._ranks[source.rank].turns.peers(source)

    def set_slots(self, slots: int) -> None:
        """Change the number of slots, and so the part of each rank."""
        self._slots = slots
        self._slack = max(1, slots // _SLACK_PART)
        for rank in self._ranks:
            rank.turns.set_slots(slots)
        self._line_up(list(self.line))

    def _leave_line(self, rank: _Rank) -> None:
        if rank in self.line:
            self._line_up([one for one in self.line if one is not rank])

    def _line_up(self, ranks: Sequence[_Rank]) -> None:
        self.line[:] = ranks
        slots = self._slots / sum([rank.weight for rank in ranks]) if ranks else 0.0
        for rank in ranks:
            rank.may_hold = slots * rank.weight + self._slack

    # The hot path in one function: it runs for each record that suspends.
    def _chosen(self) -> _Rank:
        """Return a rank that has waited too long, else the one within its part of the slots that has spent least."""
        line = self.line
        self._age_in -= 1
        if self._age_in <= 0:
            oldest: _Rank = min(line, key=_SINCE)
            if self._clock() - oldest.since >= self._ageing:
                self._age_in = _AGED_PART
                return oldest
        if self._count_in <= 0:
            self._count()
        chosen: _Rank | None = None
        held_back = False
        for rank in line:
            if rank.held > rank.may_hold:
                held_back = True
            elif chosen is None or rank.spent < chosen.spent:
                chosen = rank
        if chosen is None:
            return min(line, key=_SPENT)
        if held_back:
            for rank in line:
                if rank.held > rank.may_hold:
                    rank.spent = max(rank.spent, chosen.spent - self._slots / rank.weight)
        return chosen

    def _count(self) -> None:
        self._count_in = max(1, self._slots // _COUNT_PART)
        for rank in self._ranks:
            for source in [one for one in rank.sources if not one.holds]:
                del rank.sources[source]
            rank.held = sum([len(source.holds) for source in rank.sources])
            if rank.held > rank.may_hold:
                # A call of several sources is counted for each of them but takes one slot.
                rank.held = len(set().union(*[source.holds for source in rank.sources]))
