"""Why the records of a share group were delivered again, from the event logs of its members."""

from __future__ import annotations

import bisect
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aioparallel.group.share_client import Acknowledged, AcknowledgeType
from tests.support.share_events import Action, ShareEvent

__all__ = ["Causes", "Deliveries", "Delivery", "Troubles"]

_SLACK: Final = 1.0
"""Seconds between two clocks, or until a broker has noticed that a connection is closed."""
_LATE: Final = 3.0
"""Seconds in which a member reads what came while it was stopped."""
_FINAL: Final = {AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT}


@dataclass(eq=False, slots=True)
class Delivery:
    """One record, given to one member once. Times on CLOCK_MONOTONIC, in seconds."""

    record: tuple[int, int]
    member: int
    number: int
    acquired: float
    began: float | None = None
    ended: float | None = None
    failed: float | None = None
    renewed: float = 0.0
    sent: AcknowledgeType | None = None
    sent_at: float = 0.0
    result: Acknowledged | None = None
    is_late: bool = False


class Troubles(NamedTuple):
    """What was done to members and brokers. Spans of time end at infinity while they last.

    ``leaders``: when leaders of partitions may have moved, or connections to them were cut.
    """

    killed: dict[int, float]
    stopped: list[tuple[int, float, float]]
    leaders: list[tuple[float, float]]


@dataclass
class Deliveries:
    """All deliveries. ``unhandled``: records that were accepted, although their handler had not ended well in the same
    delivery."""

    of: dict[tuple[int, int], list[Delivery]] = field(default_factory=lambda: defaultdict(list))
    ended: set[tuple[int, int]] = field(default_factory=set)
    unhandled: list[Delivery] = field(default_factory=list)
    cuts: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When sessions of a member were lost."""
    _current: dict[tuple[int, int, int, int], Delivery] = field(default_factory=dict)

    def add(self, member: int, events: Iterable[ShareEvent]) -> None:
        """Add new events of a member."""
        for action, record, count, kind, result, at in events:
            if action is Action.CUT:
                self.cuts[member].append(at)
                continue
            key = member, *record, count
            if action is Action.ACQUIRED:
                delivery = self._current[key] = Delivery(record, member, count, at)
                self.of[record].append(delivery)
                continue
            self._note(self._current[key], action, kind, result, at)

    def _note(
        self, delivery: Delivery, action: Action, kind: AcknowledgeType | None, result: Acknowledged | None, at: float
    ) -> None:
        match action:
            case Action.BEGAN:
                delivery.began = at
            case Action.ENDED:
                delivery.ended = at
                self.ended.add(delivery.record)
            case Action.FAILED:
                delivery.failed = at
            case Action.SENT if kind in _FINAL:
                delivery.sent, delivery.sent_at = kind, at
                if kind is AcknowledgeType.ACCEPT and delivery.ended is None:
                    self.unhandled.append(delivery)
            case Action.ANSWERED if kind in _FINAL:
                delivery.result = result
            case Action.LATE:
                delivery.is_late = True
            case Action.ANSWERED if result is Acknowledged.DONE:
                delivery.renewed = at
            case _:
                pass


class Causes:
    """Explains each delivery that another one of the same record has followed. ``lock``: its seconds."""

    def __init__(self, troubles: Troubles, cuts: Mapping[int, Sequence[float]], lock: float) -> None:
        self._troubles = troubles
        self._cuts = cuts
        self._all_cuts = sorted(at for some in cuts.values() for at in some)
        self._lock = lock
        self._kills = sorted(troubles.killed.values())
        self.counted: Counter[str] = Counter()
        self.unexplained: list[tuple[Sequence[Delivery], int]] = []
        """Deliveries of a record, and the number of the unexplained one."""

    def explain(self, deliveries: Sequence[Delivery], limit: int = 0) -> None:
        """Count the causes for one record. ``limit``: how many deliveries it must have had, as it was never handled."""
        if self._troubles.leaders:
            ordered = sorted(deliveries, key=lambda one: self._locked_at(one, deliveries))
        else:  # the numbers say the order, also of what was read late
            ordered = sorted(deliveries, key=lambda one: (one.number, one.acquired))
        reached, before = 0, -math.inf
        for at, delivery in enumerate(ordered):
            now = delivery.acquired
            for _ in range(reached + 1, delivery.number):
                self._count(self._unseen(before, now), ordered, at)
            if delivery.number <= reached:
                self._count(self._counted_anew(delivery, before), ordered, at)
            if at + 1 < len(ordered):
                self._count(self._cause(delivery, ordered[at + 1].acquired), ordered, at)
            reached, before = delivery.number, now
        for _ in range(reached, limit):
            self._count(self._unseen(before, math.inf), ordered, len(ordered))

    def _locked_at(self, delivery: Delivery, deliveries: Sequence[Delivery]) -> float:
        """When it was acquired; if it was read after later ones, by a member that was stopped: when that began."""
        if any(one.acquired < delivery.acquired and one.number > delivery.number for one in deliveries):
            for member, began, over in self._troubles.stopped:
                if self._is_read_late(delivery, member, began, over):
                    return began
        return delivery.acquired

    def _counted_anew(self, delivery: Delivery, before: float) -> str:
        """Why the number of this delivery has occurred already."""
        if any(self._is_read_late(delivery, *stop) for stop in self._troubles.stopped):
            return "read late: member stopped"
        return "counted anew: leader moved" if self._in_move(before, delivery.acquired) else ""

    @staticmethod
    def _is_read_late(delivery: Delivery, member: int, began: float, over: float) -> bool:
        """Whether it may have been locked while its member was stopped, which reads afterwards what came meanwhile."""
        return member == delivery.member and began < delivery.acquired <= over + _LATE

    def _count(self, cause: str, deliveries: Sequence[Delivery], at: int) -> None:
        if cause:
            self.counted[cause] += 1
        else:
            self.unexplained.append((deliveries, at))

    def _unseen(self, after: float, before: float) -> str:
        """The cause of a delivery that no log has: the member never read it. The answer was on its way to one that
        was killed, or that was stopped for longer than the lock, or on a connection that was cut."""
        if _is_within(self._kills, after, before):
            return "never read: member killed"
        if any(began <= before and end + _SLACK >= after for _, began, end in self._troubles.stopped):
            return "never read: member stopped"
        if self._in_move(after, before):
            return "never read: leader moved"
        return "never read: session lost" if _is_within(self._all_cuts, after, before) else ""

    def _in_move(self, after: float, before: float) -> bool:
        return any(began <= before + _SLACK and end + _SLACK >= after for began, end in self._troubles.leaders)

    def _cause(self, delivery: Delivery, next_at: float) -> str:
        """Why it was followed by another one; empty: no reason is known."""
        if delivery.sent is AcknowledgeType.ACCEPT and delivery.result is Acknowledged.DONE and not delivery.is_late:
            return ""  # it must not come again, or its member must be told
        if delivery.sent is AcknowledgeType.RELEASE and delivery.result is not None:
            if delivery.began is None:
                return "released before it began"
            return "released after its handler had failed" if delivery.failed is not None else "released"
        cut = _is_within(self._cuts.get(delivery.member, ()), delivery.acquired, next_at)
        reasons = {
            "member killed": self._troubles.killed.get(delivery.member, math.inf) <= next_at + _SLACK,
            "member stopped past its lock": any(
                self._has_outlasted(delivery, next_at, *stop) for stop in self._troubles.stopped
            ),
            "leader moved": self._in_move(delivery.acquired, next_at),
            "session lost": cut,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    def _has_outlasted(self, delivery: Delivery, next_at: float, member: int, began: float, over: float) -> bool:
        """Whether the lock ended while the member was stopped, and before the next delivery."""
        if member != delivery.member:
            return False
        first = began if self._is_read_late(delivery, member, began, over) else delivery.acquired
        first, last = max(first, delivery.renewed) + self._lock, max(delivery.acquired, delivery.renewed) + self._lock
        return began <= last and first <= over + _SLACK and first <= next_at + _SLACK


def _is_within(times: Sequence[float], after: float, before: float) -> bool:
    """Whether one of these ascending times is in a span, or close to it."""
    at = bisect.bisect_right(times, before + _SLACK) - 1
    return at >= 0 and times[at] >= after - _SLACK
