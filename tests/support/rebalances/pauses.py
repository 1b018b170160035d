"""What the members of a group did under a steady load: how long partitions paused, and what ran twice. Pure."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from aioparallel.testing import DeliveryChecker, OrderChecker

__all__ = ["Handling", "Pause", "Stretch", "Taken", "beyond", "judge", "pauses", "percentile", "repeats"]


class Handling(NamedTuple):
    """A handler ran, or began to. Times are seconds of CLOCK_MONOTONIC."""

    began: float
    ended: float
    member: int
    partition: int
    number: int
    has_succeeded: bool


class Taken(NamedTuple):
    """A member was assigned a partition. ``at``: as above."""

    partition: int
    at: float
    member: int


class Stretch(NamedTuple):
    """A time from one change of the members to the next, or of a fault."""

    began: float
    is_fault: bool


class Pause(NamedTuple):
    """The longest one of a partition in a stretch."""

    seconds: float
    partition: int
    stretch: int
    """Its index."""
    has_moved: bool
    """Whether the partition got another member, or came back from one."""


def pauses(
    handlings: Sequence[Handling],
    taken: Iterable[Taken],
    produced: Sequence[float],
    stretches: Sequence[Stretch],
    end: float,
) -> list[Pause]:
    """The longest pause of each partition in each stretch; the last stretch ends at ``end``.

    A pause is the time between the begins of two records that run one after the other, without the time between their
    production. It counts where the later one begins; if a fault was in it, then there.

    ``handlings`` are sorted, and ``produced`` tells when each number was produced.
    """
    starts, owners = [one.began for one in stretches], sorted(taken)
    longest: defaultdict[tuple[int, int], tuple[float, bool]] = defaultdict(lambda: (0.0, False))
    before: dict[int, Handling] = {}
    seen: set[tuple[int, int]] = set()
    for one in handlings:
        if (one.partition, one.number) in seen:
            continue
        seen.add((one.partition, one.number))
        last = before.get(one.partition)
        before[one.partition] = one
        if last is None or last.began < starts[0] or one.began > end:
            continue
        spacing = max(0.0, produced[one.number] - produced[last.number])
        first, stretch = (bisect.bisect_right(starts, at) - 1 for at in (last.began, one.began))
        stretch = next((at for at in range(first, stretch) if stretches[at].is_fault), stretch)
        since, now = (bisect.bisect(owners, (one.partition, at)) for at in (last.began, one.began))
        came = one.member != last.member or any(owner.member != last.member for owner in owners[since:now])
        seconds, has_moved = longest[stretch, one.partition]
        longest[stretch, one.partition] = max(seconds, one.began - last.began - spacing), has_moved or came
    return [Pause(seconds, where[1], where[0], has_moved) for where, (seconds, has_moved) in longest.items()]


def beyond(found: Iterable[Pause], control: Iterable[Pause]) -> list[Pause]:
    """How much longer they are than those of another group, at the same time and of the same partition."""
    there = {(one.stretch, one.partition): one.seconds for one in control}
    return [one._replace(seconds=max(0.0, one.seconds - there.get((one.stretch, one.partition), 0.0))) for one in found]


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that so large a part of all does not exceed; NaN without values."""
    return sorted(values)[math.ceil(part * len(values)) - 1] if values else math.nan


def judge(
    handlings: Sequence[Handling], key: Callable[[int], bytes], produced: set[tuple[int, int]]
) -> tuple[OrderChecker, DeliveryChecker[tuple[int, int]]]:
    """What the checkers say. Records are identified by partition and number. The order is that of the handlers up to
    the first one that succeeded, of each record: also those of different members must not overlap."""
    order, delivery = OrderChecker(), DeliveryChecker[tuple[int, int]]()
    for record in produced:
        delivery.produced(record)
    steps = [(at, is_end, one) for one in handlings for is_end, at in enumerate((one.began, one.ended))]
    done: set[tuple[int, int]] = set()
    skipped: set[Handling] = set()
    for _, is_end, one in sorted(steps):
        record = one.partition, one.number
        if not is_end:
            if record in done:
                skipped.add(one)
            else:
                order.started(key(one.number), *record)
            continue
        if one.has_succeeded:
            delivery.handled(record)
            done.add(record)
        if one not in skipped:
            order.ended(key(one.number), *record)
    return order, delivery


def repeats(handlings: Sequence[Handling]) -> list[Handling]:
    """Those of records whose handler has succeeded before."""
    done: dict[tuple[int, int], float] = {}
    for one in handlings:
        if one.has_succeeded:
            record = one.partition, one.number
            done[record] = min(one.ended, done.get(record, math.inf))
    return [one for one in handlings if one.began >= done.get((one.partition, one.number), math.inf)]
