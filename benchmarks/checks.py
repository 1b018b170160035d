"""Checks a run: the order of records, their completeness, its output, and the committed offsets.

Everything is computed on arrays, so checking half a million records takes a fraction of a second. Only the order across
a crash is checked by the public checker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.records.errors import AioparallelError
from aioparallel.records.record import TopicPartition
from aioparallel.testing import OrderChecker
from aioparallel.testing.event_log import Event, EventKind, replay
from benchmarks.evidence import Evidence, Integers
from benchmarks.workload import Kept, Lane, Workload, read_topic

__all__ = ["check_commits", "check_events", "check_lives", "check_output"]

SHOWN_BYTES: Final = 40
SHOWN: Final = 3
"""Problems of one kind that are listed."""


class Planned:
    """The records of a workload, numbered across all partitions."""

    def __init__(self, workload: Workload) -> None:
        self.counts = np.array([len(places) for places in workload.places])
        self.firsts = np.cumsum(self.counts) - self.counts
        self.keys = workload.keys[np.concatenate(workload.places)].astype(np.int64)
        self._names = workload.names

    def __len__(self) -> int:
        return len(self.keys)

    def numbers(self, partitions: Integers, offsets: Integers) -> Integers:
        """Numbers of records by place; -1 if the topic has no such record."""
        there = partitions < len(self.counts)
        partitions = np.where(there, partitions, 0)
        return np.where(there & (offsets < self.counts[partitions]), self.firsts[partitions] + offsets, -1)

    def partitions(self, numbers: Integers) -> Integers:
        """Partitions of records."""
        return np.searchsorted(self.firsts, numbers, "right") - 1

    def name(self, number: int) -> str:
        """Place and key of a record."""
        partition = int(np.searchsorted(self.firsts, number, "right")) - 1
        key = self._names[self.keys[number]]
        return f"partition {partition}, offset {number - self.firsts[partition]} (key {key!r})"


def check_events(
    seen: Evidence, workload: Workload, order: Lane, *, ends: bool = True, missing: bool = False, cut: bool = False
) -> list[str]:
    """Problems of a process's handlers, as sentences with partition, offset and key. Each record must be handled once,
    each end must follow its beginning, and the records of a lane must run one after the other by offset.

    ``ends``: whether handlers log their end; those that return at once log only their beginning. ``missing``: records
    may be missing, as the run was stopped or others had them. ``cut``: the process was killed, so ends may be missing.
    """
    plan = Planned(workload)
    numbers = plan.numbers(seen.partitions, seen.offsets)
    found = told(
        "unknown records",
        np.flatnonzero(numbers < 0),
        lambda at: f"partition {seen.partitions[at]}, offset {seen.offsets[at]}: the topic has no such record",
    )
    known = (numbers >= 0) & (ends | seen.began)
    numbers, kinds = numbers[known], seen.kinds[known]
    found += incomplete(plan, numbers, kinds, ends, missing, cut)
    if order != "unordered":
        found += out_of_order(plan, numbers, kinds == EventKind.BEGAN, order, ends)
    return found


def incomplete(plan: Planned, numbers: Integers, kinds: Integers, ends: bool, missing: bool, cut: bool) -> list[str]:
    """Records without a beginning or an end, or with several."""
    began, ended, failed = (np.bincount(numbers[kinds == kind], minlength=len(plan)) for kind in EventKind)
    name = plan.name
    found = told(
        "records handled more than once", np.flatnonzero(began > 1), lambda at: f"{name(at)}: began {began[at]} times"
    )
    if not missing:
        found += told("records never handled", np.flatnonzero(began == 0), lambda at: f"{name(at)}: was never handled")
    found += told("handlers that failed", np.flatnonzero(failed), lambda at: f"{name(at)}: its handler failed")
    if not ends:
        return found
    found += told(
        "records ended too often",
        np.flatnonzero(ended > np.maximum(began, 1)),
        lambda at: f"{name(at)}: ended {ended[at]} times",
    )
    if not cut:
        without = np.flatnonzero(ended + failed < began)
        found += told("handlers without an end", without, lambda at: f"{name(at)}: its handler never ended")
    begins = kinds == EventKind.BEGAN
    early = np.flatnonzero(first_places(numbers, ~begins, len(plan)) < first_places(numbers, begins, len(plan)))
    return found + told("ends before the beginning", early, lambda at: f"{name(at)}: ended without having begun")


def first_places(numbers: Integers, chosen: npt.NDArray[np.bool_], count: int) -> Integers:
    """The first position of each number among the chosen ones; the end of the array if there is none."""
    first = np.full(count, numbers.size)
    places = np.flatnonzero(chosen)[::-1]
    first[numbers[places]] = places  # reversed, so that the first position is written last
    return first


def out_of_order(plan: Planned, numbers: Integers, begins: npt.NDArray[np.bool_], order: Lane, ends: bool) -> list[str]:
    """Handlers of one lane that overlap or run in the wrong order."""
    lanes = plan.keys[numbers] if order == "key" else plan.partitions(numbers)
    by_lane = np.argsort(lanes, kind="stable")  # keeps the order of events within a lane
    numbers, begins, lanes = numbers[by_lane], begins[by_lane], lanes[by_lane]
    before, after, follows = numbers[:-1], numbers[1:], (lanes[1:] == lanes[:-1]) & begins[1:]
    overlap = follows & begins[:-1] & ends

    def tell(what: str) -> Callable[[int], str]:
        return lambda at: f"{plan.name(after[at])}: {what.format(f'{plan.name(before[at])} of the same {order}')}"

    found = told("handlers that overlap", np.flatnonzero(overlap), tell("began before {} had ended"))
    descending = np.flatnonzero(follows & ~overlap & (after < before))
    return found + told("records out of order", descending, tell("began after {}"))


def told(kind: str, wrong: Integers, tell: Callable[[int], str]) -> list[str]:
    """The first problems of a kind, and their number."""
    shown = [tell(one) for one in wrong[:SHOWN].tolist()]
    return shown if len(wrong) <= SHOWN else [*shown, f"{kind}: {len(wrong):,} in all"]


def check_lives(
    lives: Sequence[Evidence], workload: Workload, order: Lane, *, ends: bool = True, together: bool = False
) -> list[str]:
    """The same check for several processes of a group: one after the other, all but the last killed; or ``together``,
    at the same time. No process may handle a record twice, and together they must handle all. After a crash an
    interrupted record must come before later ones of its lane."""
    found, plan = list[str](), Planned(workload)
    done = np.zeros(len(plan), np.bool_)
    for number, life in enumerate(lives, 1):
        cut = not together and number < len(lives)
        wrong = check_events(life, workload, order, ends=ends, missing=True, cut=cut)
        found += [f"process {number}: {problem}" for problem in wrong]
        numbers = plan.numbers(life.partitions, life.offsets)
        done[numbers[(numbers >= 0) & (life.kinds == (EventKind.ENDED if ends else EventKind.BEGAN))]] = True
    found += told("records never handled", np.flatnonzero(~done), lambda at: f"{plan.name(at)}: was never handled")
    if order != "unordered" and not together:
        found += skipped(lives, workload, OrderChecker(order))
    return found


def skipped(lives: Sequence[Evidence], workload: Workload, checker: OrderChecker) -> list[str]:
    """Records that a crash interrupted and that their lane has skipped."""
    keys = workload.keys_by_offset

    def key_of(partition: int, offset: int) -> bytes | None:
        known = partition < len(keys) and offset < len(keys[partition])
        return keys[partition][offset] if known else None

    for number, life in enumerate(lives):
        if number:
            checker.crashed()
        replay(life.events(), key_of, checker)
    wrong = [str(violation) for violation in checker.violations if violation.rule == "skipped"]
    return told("records that were skipped", np.arange(len(wrong)), wrong.__getitem__)


def check_output(bootstrap_servers: str, topic: str, workload: Workload, order: Lane) -> list[str]:
    """Check that an output topic has one record for each input with its key and value, in order of keys."""
    places, wrong = list[tuple[int, int]](), list[str]()
    for kept in read_topic(bootstrap_servers, topic, workload.shape.partitions):
        if (place := place_of(kept, workload)) is not None:
            places.append(place)
            continue
        shown = f"key {kept.key!r}, value {(kept.value or b'')[:SHOWN_BYTES]!r}"
        wrong.append(f"partition {kept.partition}, offset {kept.offset}: it is no record of the input ({shown})")
    found = told("records that are not of the input", np.arange(len(wrong)), wrong.__getitem__)
    produced = Evidence.of([Event(EventKind.BEGAN, *place) for place in places])
    return [f"its output: {one}" for one in found + check_events(produced, workload, order, ends=False)]


def place_of(kept: Kept, workload: Workload) -> tuple[int, int] | None:
    """Partition and offset of the input that the record is a copy of; None if it is none."""
    try:
        partition, offset = map(int, (kept.value or b"").split(maxsplit=2)[:2])
        message = workload.message(partition, offset)
    except (ValueError, IndexError):
        return None
    same = min(partition, offset) >= 0 and (message["key"], message["value"]) == (kept.key, kept.value)
    return (partition, offset) if same else None


async def check_commits(bootstrap_servers: str, topic: str, group: str, workload: Workload) -> list[str]:
    """Partitions whose committed offset is not the end offset, as sentences."""
    ends = {TopicPartition(topic, partition): len(places) for partition, places in enumerate(workload.places)}
    try:
        async with Admin(bootstrap_servers) as admin:
            found = await admin.committed(group, list(ends))
    except (AioparallelError, TimeoutError) as error:
        return [f"the group's committed offsets could not be read: {error}"]
    committed = {place: found[place].offset if place in found else 0 for place in ends}
    wrong = [
        f"partition {place.partition}: committed up to offset {committed[place]} of {end}"
        for place, end in ends.items()
        if committed[place] != end
    ]
    return told("partitions not committed", np.arange(len(wrong)), wrong.__getitem__)
