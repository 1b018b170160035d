"""The order in which the first positions of a topic are committed, and the assignments that wait for their turn.

A partition is new to a group if its number is above all partitions that the group has committed. Members start at the
same time, read the committed positions at different times, and may crash at any time. This order makes sure that they
still agree on which partitions are new:

* Nothing is committed: the highest partition is committed first. A member that reads the positions later finds all
  other partitions below it, and takes none of them for new.
* Something is committed: the partitions above it are committed in ascending order. If a member crashes in between, no
  gap remains below a committed partition. So no member takes a new partition for one whose offset has expired.

Partitions of one member go in one commit. Assignments that wait do not delay the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final

from aioparallel.group.assignment import Assignment, AssignmentState
from aioparallel.group.client import REQUEST_TIMEOUT
from aioparallel.group.starts import Starts, TopicPositions
from aioparallel.records.record import TopicPartition

__all__ = ["Spawn", "Turns", "awaited", "next_to_go"]

logger = logging.getLogger(__name__)

_PAUSE: Final = 0.2
"""Seconds between two requests for the committed positions."""
_LOG_AFTER: Final = 5.0
"""An assignment that waits for so many seconds is logged."""

Spawn = Callable[[Coroutine[Any, Any, None], str], object]


def next_to_go(waiting: Collection[int], committed: Collection[int], highest: int) -> set[int]:
    """Return which of a member's waiting partitions may be committed now, in one commit. ``highest``: the highest
    partition of the topic."""
    if not committed:
        return set(waiting) if highest in waiting else set()
    top = max(committed)
    going = {number for number in waiting if number < top}
    following = top + 1
    while following in waiting:
        going.add(following)
        following += 1
    return going


def awaited(number: int, committed: Collection[int], highest: int) -> int:
    """Return the partition for which this one waits, if it may not be committed yet."""
    return number - 1 if committed else highest


class _Wait:
    """One waiting assignment. ``start``: the offset at which it begins when its turn comes."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.awaited = -1
        self.since = 0.0
        self.is_logged = False


class Turns:
    """Keeps the order of first positions among the members of a group.

    ``longest_wait``: seconds to wait for one position. By then the group has given the partition of a crashed member to
    another one. ``begin(starts)`` opens the assignments whose turn it is. ``spawn(work, name)`` runs a task that ends
    with the run.
    """

    def __init__(
        self, starts: Starts, longest_wait: float, *, begin: Callable[[Mapping[Assignment, int]], None], spawn: Spawn
    ) -> None:
        self._starts = starts
        self._longest_wait = longest_wait
        self._begin = begin
        self._spawn = spawn
        self._waits: defaultdict[str, dict[Assignment, _Wait]] = defaultdict(dict)  # by topic
        self._seen: dict[str, TopicPositions] = {}
        self._polled: set[str] = set()  # topics that a task polls

    def waits(self, assignment: Assignment) -> bool:
        """Whether the assignment waits for its turn."""
        return assignment in self._waits[assignment.partition.topic]

    def enter(self, starts: Mapping[Assignment, int], topics: Mapping[str, TopicPositions]) -> None:
        """Begin the assignments whose turn it is. The others begin later. ``topics``: the committed positions of their
        topics. Assignments of topics that are missing there begin at once."""
        self._begin(
            {assignment: start for assignment, start in starts.items() if assignment.partition.topic not in topics}
        )
        for topic, seen in topics.items():
            entering = {
                assignment: start for assignment, start in starts.items() if assignment.partition.topic == topic
            }
            if not entering:
                continue
            self._waits[topic] |= {assignment: _Wait(start) for assignment, start in entering.items()}
            self._advance(topic, seen)
            if self._waits[topic] and topic not in self._polled:
                self._polled.add(topic)
                self._spawn(self._poll(topic), "turns")

    async def _poll(self, topic: str) -> None:
        """Poll the committed positions until no assignment waits. Without an answer the deadlines still apply."""
        while self._waits[topic]:
            await asyncio.sleep(_PAUSE)
            partitions = [TopicPartition(topic, number) for number in self._seen[topic].partitions]
            try:
                seen = (await self._starts.committed(partitions, REQUEST_TIMEOUT))[topic]
            except TimeoutError:
                seen = self._seen[topic]
            # An assignment that entered meanwhile may have seen more partitions, and more committed positions.
            self._advance(topic, _joined(seen, self._seen[topic]))
        self._polled.discard(topic)

    def _advance(self, topic: str, seen: TopicPositions) -> None:
        waits = self._waits[topic]
        for assignment in [assignment for assignment in waits if assignment.state is not AssignmentState.OPENING]:
            del waits[assignment]  # it has gone meanwhile
        self._seen[topic] = seen
        late = self._late(waits, seen)
        numbers = {assignment.partition.partition for assignment in waits}
        going = late | next_to_go(numbers - late, seen.committed | late, seen.highest)
        starts = {
            assignment: wait.start for assignment, wait in waits.items() if assignment.partition.partition in going
        }
        for assignment in starts:
            del waits[assignment]
        self._begin(starts)

    def _late(self, waits: Mapping[Assignment, _Wait], seen: TopicPositions) -> set[int]:
        """Return the partitions that have waited too long and begin out of turn. Logs long waits."""
        now = asyncio.get_running_loop().time()
        late: list[Assignment] = []
        slow: list[Assignment] = []
        going = next_to_go({assignment.partition.partition for assignment in waits}, seen.committed, seen.highest)
        for assignment, wait in waits.items():
            if assignment.partition.partition in going:
                continue
            awaits = awaited(assignment.partition.partition, seen.committed, seen.highest)
            if awaits != wait.awaited:
                wait.awaited, wait.since = awaits, now
            if now - wait.since >= self._longest_wait:
                late.append(assignment)
            elif now - wait.since >= _LOG_AFTER and not wait.is_logged:
                wait.is_logged = True
                slow.append(assignment)
        if slow:
            logger.warning(
                "%s waits until a first position is committed for partition %d%s",
                *_log_arguments(slow, waits),
                extra={"action": "start_waits", "partitions": len(slow)},
            )
        if late:
            logger.warning(
                "%s starts although no first position is committed for partition %d, which may be taken for an old or "
                "a new one when it starts later%s",
                *_log_arguments(late, waits),
                extra={"action": "start_out_of_turn", "partitions": len(late)},
            )
        return {assignment.partition.partition for assignment in late}


def _log_arguments(
    assignments: Sequence[Assignment], waits: Mapping[Assignment, _Wait]
) -> tuple[TopicPartition, int, str]:
    first = assignments[0]
    more = f" (and {len(assignments) - 1} more partitions)" if len(assignments) > 1 else ""
    return first.partition, waits[first].awaited, more


def _joined(one: TopicPositions, other: TopicPositions) -> TopicPositions:
    return TopicPositions(one.partitions | other.partitions, one.committed | other.committed)
