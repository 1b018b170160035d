"""Loss, duplicates and key order, computed from what the handler and the service wrote down.

Both write the same events, so both are judged by the same rules, those of ``aioparallel.testing.checkers``: a record
is *lost* when it was produced and never completed; a *duplicate* is a completion beyond a record's first. To the
checker's order of keys within and across processes comes one rule more, because here every record of a key is
known: none may begin before the one that precedes it in its key was completed, in this process or an earlier one.
Going back to a completed record, as after a session that timed out, is a duplicate and no violation. Records without
a key have no order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aioparallel.cli.demo.events import Event, Kind, Place
from aioparallel.testing.checkers import DeliveryChecker, OrderChecker

__all__ = ["Check", "Keys", "Observed", "observe", "predecessors"]

Keys = Mapping[Place, bytes | None]


@dataclass(frozen=True, slots=True)
class Check:
    """One promise, whether it held, and the figures behind it."""

    promise: str
    passed: bool
    figures: str


@dataclass(frozen=True, slots=True)
class Observed:
    """What one log of events amounts to.

    ``calls`` began; ``records`` were completed, each counted once. ``seconds`` is from the first beginning to the
    last completion.
    """

    calls: int
    records: int
    duplicates: int
    lost: int
    key_order_violations: int
    seconds: float

    @property
    def rate(self) -> float:
        """Records (not calls) per second."""
        return self.records / self.seconds if self.seconds else 0.0


def observe(events: Sequence[Event], keys: Keys) -> Observed:
    """Judge a log of events, oldest first, about the produced records ``keys``."""
    delivery = DeliveryChecker[Place]()
    for place in keys:
        delivery.produced(place)
    began = [event.at for event in events if event.kind == Kind.BEGAN]
    ended = [event.at for event in events if event.kind == Kind.COMPLETED]
    for event in events:
        if event.kind == Kind.COMPLETED:
            delivery.handled(event.place)
    counts = delivery.statistics()
    return Observed(
        calls=len(began),
        records=counts.handled,
        duplicates=counts.duplicates,
        lost=counts.lost,
        key_order_violations=key_order_violations(events, keys),
        seconds=(max(ended) - min(began)) / 1e9 if began and ended else 0.0,
    )


def predecessors(keys: Keys) -> dict[Place, Place]:
    """For each record with a key: the one before it in its key, if there is one."""
    last: dict[tuple[int, bytes], Place] = {}
    before: dict[Place, Place] = {}
    for place in sorted(keys):
        key = keys[place]
        if key is None:
            continue
        lane = place.partition, key
        if lane in last:
            before[place] = last[lane]
        last[lane] = place
    return before


def key_order_violations(events: Iterable[Event], keys: Keys) -> int:
    """How many beginnings broke the order of their key."""
    checker = OrderChecker()
    before = predecessors(keys)
    completed: set[Place] = set()
    run = violations = 0
    for event in events:
        place = event.place
        key = keys.get(place)
        if event.kind == Kind.COMPLETED:
            completed.add(place)
        if event.run < run:
            continue  # the service still answers a process that was killed
        if event.run > run:
            run = event.run
            checker.crashed()
        if event.kind != Kind.BEGAN:
            checker.ended(key, place.partition, place.offset)
            continue
        known = len(checker.violations)
        checker.started(key, place.partition, place.offset)
        new = checker.violations[known:]
        broken = any(violation.rule != "backwards" or place not in completed for violation in new)
        overtaking = place in before and before[place] not in completed
        violations += broken or overtaking
    return violations
