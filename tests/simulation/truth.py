"""What really happened, told by handlers, listeners and acknowledgements; and what breaks a promise, found at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable
from typing import NamedTuple

from aioparallel.records.record import Produced, TopicPartition

__all__ = ["Hold", "Lane", "Place", "Run", "Truth"]


class Place(NamedTuple):
    """Where a record stands in the log."""

    partition: TopicPartition
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}@{self.offset}"


class Hold:
    """One assignment of a partition to a member, as its listener hears of it."""

    def __init__(self, member: str, partition: TopicPartition) -> None:
        self.member = member
        self.partition = partition
        self.left_at = math.inf
        """When the member was told to give it away, or lost it."""
        self.is_over = False
        """Given away, or lost."""
        self.is_void = False
        """The group has given the partition to somebody else, and this member does not know yet."""
        self.done: dict[int, float] = {}
        """Offsets whose handler has returned None here, so they are complete, and since when the engine must know."""
        self.latest: dict[Hashable, int] = {}

    @property
    def is_sound(self) -> bool:
        """Whether what the member completes and commits still counts."""
        return not self.is_void and self.left_at == math.inf


class Run:
    """One call of a handler."""

    def __init__(self, number: int, place: Place, lane: Lane | None, hold: Hold, attempt: int, began: float) -> None:
        self.number = number
        self.place = place
        self.lane = lane
        self.hold = hold
        self.attempt = attempt
        self.began = began
        self.was_cancelled = False
        self.has_returned = False
        """The handler has, and something else goes on for it: a deferral, an async iterator."""
        self.outputs: int | None = None
        self.acknowledged: dict[int, Produced] = {}


class Lane:
    """Records that must run one after the other: what the log holds of them, and how far they are over."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.frontier = 0
        self.running: dict[Run, None] = {}

    def next_allowed(self, over: Collection[int]) -> int | None:
        """The first offset that is not over yet; None when all are."""
        while self.frontier < len(self.offsets) and self.offsets[self.frontier] in over:
            self.frontier += 1
        return self.offsets[self.frontier] if self.frontier < len(self.offsets) else None


class Truth:
    """Keeps it, and collects violations. ``tell`` writes to the story."""

    def __init__(
        self,
        lane_of: Callable[[bytes | None, bytes | None], Hashable],
        tell: Callable[[str], None],
        now: Callable[[], float],
        *,
        begins_late: bool,
    ) -> None:
        self.violations: list[str] = []
        # A handler in a task of its own begins a turn of the loop after its record was started.
        self._late = 1e-4 if begins_late else -1.0
        self._now = now
        self.events = 0
        self._lane_of = lane_of
        self._tell = tell
        self._lanes: dict[tuple[TopicPartition, Hashable], Lane] = {}
        self._lane_at: dict[Place, tuple[Hashable, Lane | None]] = {}
        self.expected: dict[TopicPartition, set[int]] = {}
        self.over: dict[TopicPartition, set[int]] = {}
        self.over_by_outputs: set[Place] = set()
        self.holds: dict[tuple[str, TopicPartition], Hold] = {}
        self.runs: list[Run] = []
        self.running: dict[str, dict[Run, None]] = {}
        self.crashed: set[str] = set()
        self.quiet: dict[str, float] = {}
        """Members that were told to start nothing, paused or stopped, and when."""

    def violated(self, what: str) -> None:
        """A promise is broken."""
        self.violations.append(what)
        self._tell(f"VIOLATION {what}")

    # -- the log

    def appended(self, place: Place, key: bytes | None, value: bytes | None) -> None:
        """A record stands in the log, for this kind of reader."""
        self.expected.setdefault(place.partition, set()).add(place.offset)
        self.over.setdefault(place.partition, set())
        name = self._lane_of(key, value)
        lane = None
        if name is not None:
            lane = self._lanes.setdefault((place.partition, name), Lane())
            lane.offsets.append(place.offset)
        self._lane_at[place] = name, lane

    def removed(self, partition: TopicPartition, offsets: Collection[int]) -> None:
        """Compaction took them before anybody read."""
        for offset in offsets:
            self.expected[partition].remove(offset)
            _, lane = self._lane_at.pop(Place(partition, offset))
            if lane is not None:
                lane.offsets.remove(offset)

    def lane_of(self, place: Place) -> Lane | None:
        """Its lane; None for a record without order."""
        return self._lane_at[place][1]

    def unfinished(self) -> dict[TopicPartition, list[int]]:
        """What is not over yet."""
        left = {p: sorted(offsets - self.over[p]) for p, offsets in self.expected.items()}
        return {p: offsets for p, offsets in left.items() if offsets}

    # -- the group

    def assigned(self, member: str, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            for hold in self.holds.values():
                if hold.partition == partition and hold.member != member and not hold.is_over:
                    hold.is_void = True
            if (before := self.holds.get((member, partition))) is not None and not before.is_over:
                self.violated(f"{member} is assigned {partition}, which it holds")
            self.holds[member, partition] = Hold(member, partition)
        self._told(f"{member} is assigned {named(partitions)}")

    def leaving(self, member: str, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self.holds[member, partition].left_at = self._now()
        self._told(f"{member} gives away {named(partitions)}")

    def left(self, member: str, partitions: Collection[TopicPartition], how: str) -> None:
        for partition in partitions:
            hold = self.holds[member, partition]
            hold.is_over, hold.left_at = True, min(hold.left_at, self._now())
        self._told(f"{member} {how} {named(partitions)}")

    # -- handlers

    def started(self, member: str, place: Place, attempt: int) -> Run:
        """A handler was called."""
        now = self._now()
        name, lane = self._lane_at.get(place, (None, None))
        hold = self.holds.get((member, place.partition))
        if place.offset not in self.expected.get(place.partition, ()):
            self.violated(f"{member} runs {place}, which is not in the log for it")
        if hold is None:
            hold = Hold(member, place.partition)
            self.violated(f"{member} runs {place} of a partition that it never had")
        elif now - hold.left_at > self._late:
            self.violated(f"{member} starts {place} of a partition that it has given away or is giving away")
        if now - self.quiet.get(member, math.inf) > self._late:
            self.violated(f"{member} starts {place} though it is paused or stopped")
        run = Run(len(self.runs), place, lane, hold, attempt, now)
        if place.offset in hold.done:
            self.violated(f"{member} runs {place} again, which had succeeded under the same assignment")
        if lane is not None:
            self._check_lane(run, name, lane)
            lane.running[run] = None
        self.runs.append(run)
        self.running.setdefault(member, {})[run] = None
        self.events += 1
        return run

    def _check_lane(self, run: Run, name: Hashable, lane: Lane) -> None:
        place, hold = run.place, run.hold
        allowed = lane.next_allowed(self.over[place.partition])
        if allowed is not None and place.offset > allowed:
            self.violated(f"{hold.member} runs {place} of lane {name!r} before {allowed} is over")
        if place.offset < hold.latest.get(name, -1):
            self.violated(f"{hold.member} runs {place} of lane {name!r} after {hold.latest[name]}: backwards")
        hold.latest[name] = place.offset
        for other in [o for o in lane.running if o.has_returned and (o.hold.is_over or o.place == place)]:
            del lane.running[other]  # nobody tells it that what it has waited for was given up
        for other in lane.running:
            is_ours = other.hold.member == hold.member
            if not is_ours and (other.was_cancelled or other.hold.is_void or hold.is_void):
                continue
            if not is_ours and other.hold.member in self.crashed:
                continue
            self.violated(f"{hold.member} runs {place} of lane {name!r} while {other.hold.member} runs {other.place}")

    def ended(self, run: Run, how: str, *, is_over: bool = False, done_at: float | None = None) -> None:
        """The handler has ended. ``is_over``: with an outcome; ``done_at``: it can be nothing but complete then."""
        if run.lane is not None:
            run.lane.running.pop(run, None)
        self.running[run.hold.member].pop(run, None)
        self.events += 1
        if done_at is not None:
            run.hold.done[run.place.offset] = done_at
        if is_over:
            self.over[run.place.partition].add(run.place.offset)
        self._tell(f"{run.hold.member} ended {run.place} #{run.number}: {how}{'; over' if is_over else ''}")

    def acknowledged(self, run: Run, index: int, where: Produced) -> None:
        """The broker has this output."""
        if index in run.acknowledged:
            self.violated(f"output {index} of {run.place} #{run.number} was acknowledged twice")
        run.acknowledged[index] = where
        self._look_at_outputs(run)

    def produces(self, run: Run, outputs: int) -> None:
        """What the handler has given: it is over when all are acknowledged."""
        run.outputs = outputs
        self._look_at_outputs(run)

    def _look_at_outputs(self, run: Run) -> None:
        if run.outputs is not None and len(run.acknowledged) == run.outputs:
            if run.outputs and run.place.offset not in self.over[run.place.partition]:
                self.over_by_outputs.add(run.place)
            self.over[run.place.partition].add(run.place.offset)
            self._tell(f"{run.hold.member} produced all of {run.place} #{run.number}; over")

    def put_away(self, place: Place) -> None:
        """A dead letter stands in its topic, or the function has returned."""
        self.over[place.partition].add(place.offset)
        lane = self.lane_of(place)
        if lane is not None:
            for run in [run for run in lane.running if run.place == place and run.has_returned]:
                del lane.running[run]  # a second stray cancellation has ended what it waited for
        self._tell(f"{place} is put away; over")

    def _told(self, what: str) -> None:
        self.events += 1
        self._tell(what)


def named(partitions: Collection[TopicPartition]) -> str:
    """For people."""
    return ", ".join(map(str, partitions)) or "nothing"
