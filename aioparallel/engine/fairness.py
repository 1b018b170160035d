"""Whose turn it is: sources with something ready, one after the other, or those of the more urgent ones more often."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence, Sized
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from aioparallel.engine.counters import Counters

__all__ = ["FairRing", "InTurn", "MakeRing", "RankedRing", "Ring", "fair"]


class InTurn(Protocol):
    """A source, or whatever else takes turns with sources."""

    in_ring: bool
    rank: int
    """How urgent it is, from 0 on; see :class:`RankedRing`."""

    @property
    def ready(self) -> Sized:
        """What may start."""

    @property
    def holds(self) -> Collection[Any]:
        """What it has of the slots: records in flight, or calls of several."""


class Ring(Protocol):
    """Those that have something ready, and no others, take turns."""

    @property
    def line(self) -> Collection[Any]:
        """Not empty while there is one."""

    def begin(self) -> Any:
        """The source whose turn it is, until :meth:`end`. To be called while there is one."""

    def end(self, source: Any) -> None:
        """Its turn is over: to the end of the line, or out of it."""

    def join(self, source: Any) -> None:
        """It has something ready."""

    def leave(self, source: Any) -> None:
        """It has nothing ready any more."""

    def peers(self, source: Any) -> int:
        """How many have something ready of those that it could be gathered with, itself among them."""


MakeRing = Callable[[int, "Counters"], Ring]
"""For so many slots, from the books that count what starts."""


class FairRing:
    """Sources take turns; one that holds more than its share of the ``slots`` lets the others go first. So a topic
    whose handlers hang takes no more than its part from those that are well.

    ``line``: those sources that have something ready; for looking at it.
    """

    __slots__ = ("_slots", "line")

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.line: deque[Any] = deque()

    def begin(self) -> Any:
        """See :class:`Ring`; it stays in front."""
        line = self.line
        first = line[0]
        count = len(line)
        if len(first.holds) * count <= self._slots:
            return first
        for _ in range(count):  # where none is within its share, the first is first again
            line.rotate(-1)
            if len(line[0].holds) * count <= self._slots:
                break
        return line[0]

    def end(self, source: InTurn) -> None:
        """See :class:`Ring`."""
        if not source.ready:
            self.leave(source)
        elif source.in_ring:
            self.line.rotate(-1)

    def join(self, source: InTurn) -> None:
        """See :class:`Ring`."""
        if not source.in_ring:
            source.in_ring = True
            self.line.append(source)

    def leave(self, source: InTurn) -> None:
        """See :class:`Ring`."""
        if source.in_ring:
            source.in_ring = False
            self.line.remove(source)

    def peers(self, source: InTurn) -> int:
        """See :class:`Ring`."""
        return len(self.line)


def fair(slots: int, counters: Counters) -> Ring:
    """All are equally urgent."""
    return FairRing(slots)


# Parts of the slots. So many may start before those that each rank holds are counted anew: to count them each time
# would take time by their number.
_COUNT_PART = 32
# So many a rank may hold beyond its part: how many each holds goes up and down by chance, and without the slack the
# light ones would get what the heavy ones are refused.
_SLACK_PART = 16
# Of so many turns one at most goes by age: where handlers are so long that all wait for longer, it would be each.
_AGED_PART = 8


class _Rank:
    """The sources of one urgency."""

    __slots__ = ("held", "may_hold", "ring", "since", "sources", "spent", "weight")

    def __init__(self, weight: float, slots: int) -> None:
        self.weight = weight
        self.ring = FairRing(slots)
        self.sources: dict[Any, None] = {}  # that have started something, and may hold slots
        self.held = 0  # slots, as they were counted last, and what has started since
        self.may_hold = 0.0  # so many while those are in the line that are there now
        self.spent = 0.0  # starts by weight: the rank that has spent least is the next
        self.since = 0.0  # when it had its last turn, or had something ready again


class RankedRing:
    """Sources of several ranks: while several ranks have something ready they start records in proportion to their
    ``weights``, and what one does not use the others do. Within a rank they take turns as in a :class:`FairRing`.

    A rank that holds more than its part of the ``slots`` lets the others go first, so slow handlers of one do not take
    away all that the more urgent ones free. Where one with something ready has had no turn for ``ageing`` seconds of
    ``clock`` it has the next one, whatever it weighs; but of eight turns one at most.

    It is a weighted fair queue with virtual time: each start of a rank costs 1/weight; one that was not ready for a
    while has saved nothing up, and one that was held back by its part no more than the slots that there are.
    """

    def __init__(
        self, slots: int, counters: Counters, weights: Sequence[float], ageing: float, clock: Callable[[], float]
    ) -> None:
        self._slots = slots
        self._slack = max(1, slots // _SLACK_PART)
        self._counters = counters
        self._ageing = ageing
        self._clock = clock
        self._ranks = [_Rank(weight, slots) for weight in weights]
        self._by_weight = sorted(self._ranks, key=_weight, reverse=True)
        self.line: list[_Rank] = []
        self._spent = 0.0  # by the rank that had the last turn, before it
        self._before = 0  # taken_left of the counters when the turn began
        self._count_in = 0  # starts until slots are counted anew
        self._age_in = _AGED_PART  # turns until one may go by age

    def begin(self) -> Any:
        """See :class:`Ring`."""
        line = self.line
        rank = line[0] if len(line) == 1 else self._chosen()
        self._before = self._counters.taken_left
        return rank.ring.begin()

    def end(self, source: InTurn) -> None:
        """See :class:`Ring`."""
        rank = self._ranks[source.rank]
        rank.ring.end(source)
        started = self._before - self._counters.taken_left
        self._spent = rank.spent
        if started > 0:
            rank.sources[source] = None
            rank.spent += started / rank.weight
            rank.held += started
            self._count_in -= started
        rank.since = self._clock()
        if not rank.ring.line:
            self._leave_line(rank)

    def join(self, source: InTurn) -> None:
        """See :class:`Ring`."""
        if source.in_ring:
            return
        rank = self._ranks[source.rank]
        rank.ring.join(source)
        if rank not in self.line:
            rank.spent = max(rank.spent, min([one.spent for one in self.line], default=self._spent))
            rank.since = self._clock()
            # The heaviest first: of those that have spent as much it has the next turn.
            self._line_up([one for one in self._by_weight if one is rank or one in self.line])

    def leave(self, source: InTurn) -> None:
        """See :class:`Ring`."""
        rank = self._ranks[source.rank]
        rank.ring.leave(source)
        if not rank.ring.line:
            self._leave_line(rank)

    def peers(self, source: InTurn) -> int:
        """See :class:`Ring`."""
        return self._ranks[source.rank].ring.peers(source)

    def _leave_line(self, rank: _Rank) -> None:
        if rank in self.line:
            self._line_up([one for one in self.line if one is not rank])

    def _line_up(self, ranks: Sequence[_Rank]) -> None:
        self.line[:] = ranks
        slots = self._slots / sum([rank.weight for rank in ranks]) if ranks else 0.0
        for rank in ranks:
            rank.may_hold = slots * rank.weight + self._slack

    # The hot path in one piece: it is paid for each record that suspends.
    def _chosen(self) -> _Rank:
        """The one that has waited for too long; else, of those within their part of the slots, the one that has spent
        least."""
        line = self.line
        self._age_in -= 1
        if self._age_in <= 0:
            oldest = min(line, key=_since)
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
            return min(line, key=_spent)
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
                # A call of several sources is held by each of them, and takes one slot.
                rank.held = len(set().union(*[source.holds for source in rank.sources]))


def _weight(rank: _Rank) -> float:
    return rank.weight


def _since(rank: _Rank) -> float:
    return rank.since


def _spent(rank: _Rank) -> float:
    return rank.spent
