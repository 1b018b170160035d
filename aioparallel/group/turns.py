"""Sessions whose first position is committed after another one's: each waits for its turn, and holds up no other."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from aioparallel.group.client import REQUEST_TIMEOUT
from aioparallel.group.first_order import awaited, next_to_go
from aioparallel.group.sessions import Session, SessionState
from aioparallel.group.starts import Starts, TopicPositions
from aioparallel.records import TopicPartition

__all__ = ["Spawn", "Turns"]

logger = logging.getLogger(__name__)

_PAUSE: Final = 0.2
"""Seconds between two looks at what is committed."""
_TOLD: Final = 5.0
"""Seconds of waiting after which a line tells of it."""

Spawn = Callable[[Coroutine[Any, Any, None], str], None]


class _Wait:
    """Of one session. ``start``: where it begins when its turn comes."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.awaited = -1
        self.since = 0.0
        self.told = False


class Turns:
    """The order of :mod:`~aioparallel.group.first_order`, kept among the members of a group.

    ``longest_wait``: seconds for which one position is awaited; by then the group has given the partition of a dead
    member to another one. ``begin(starts)`` opens those whose turn it is. ``spawn(work, name)`` runs a task, and ends
    it with the run.
    """

    def __init__(
        self, starts: Starts, longest_wait: float, *, begin: Callable[[Mapping[Session, int]], None], spawn: Spawn
    ) -> None:
        self._starts = starts
        self._longest_wait = longest_wait
        self._begin = begin
        self._spawn = spawn
        self._waits: defaultdict[str, dict[Session, _Wait]] = defaultdict(dict)  # by topic
        self._seen: dict[str, TopicPositions] = {}
        self._looking: set[str] = set()  # topics, each in a task of its own

    def waits(self, session: Session) -> bool:
        """Whether it waits for its turn."""
        return session in self._waits[session.partition.topic]

    def enter(self, starts: Mapping[Session, int], topics: Mapping[str, TopicPositions]) -> None:
        """Begin those of these whose turn it is; the others begin later. ``topics``: what is committed of theirs; of
        one that is not among them no order is kept."""
        self._begin({session: start for session, start in starts.items() if session.partition.topic not in topics})
        for topic, seen in topics.items():
            entering = {session: start for session, start in starts.items() if session.partition.topic == topic}
            if not entering:
                continue
            self._waits[topic] |= {session: _Wait(start) for session, start in entering.items()}
            self._advance(topic, seen)
            if self._waits[topic] and topic not in self._looking:
                self._looking.add(topic)
                self._spawn(self._look(topic), "turns")

    async def _look(self, topic: str) -> None:
        """Look what is committed until nobody waits. Without an answer the deadlines hold all the same."""
        while self._waits[topic]:
            await asyncio.sleep(_PAUSE)
            partitions = [TopicPartition(topic, number) for number in self._seen[topic].partitions]
            try:
                seen = (await self._starts.committed(partitions, REQUEST_TIMEOUT))[topic]
            except TimeoutError:
                seen = self._seen[topic]
            # Who entered meanwhile may know of more partitions, and of more that is committed.
            self._advance(topic, _joined(seen, self._seen[topic]))
        self._looking.discard(topic)

    def _advance(self, topic: str, seen: TopicPositions) -> None:
        waits = self._waits[topic]
        for session in [session for session in waits if session.state is not SessionState.OPENING]:
            del waits[session]  # went while it waited
        self._seen[topic] = seen
        late = self._late(waits, seen)
        numbers = {session.partition.partition for session in waits}
        going = late | next_to_go(numbers - late, seen.committed | late, seen.highest)
        starts = {session: wait.start for session, wait in waits.items() if session.partition.partition in going}
        for session in starts:
            del waits[session]
        self._begin(starts)

    def _late(self, waits: Mapping[Session, _Wait], seen: TopicPositions) -> set[int]:
        """Partitions that have waited for long enough. Tells of them, and of those that wait for a while."""
        now = asyncio.get_running_loop().time()
        late: list[Session] = []
        slow: list[Session] = []
        going = next_to_go({session.partition.partition for session in waits}, seen.committed, seen.highest)
        for session, wait in waits.items():
            if session.partition.partition in going:
                continue
            awaits = awaited(session.partition.partition, seen.committed, seen.highest)
            if awaits != wait.awaited:
                wait.awaited, wait.since = awaits, now
            if now - wait.since >= self._longest_wait:
                late.append(session)
            elif now - wait.since >= _TOLD and not wait.told:
                wait.told = True
                slow.append(session)
        if slow:
            logger.warning(
                "%s waits until a first position is committed for partition %d%s",
                *_told(slow, waits),
                extra={"action": "start_waits", "partitions": len(slow)},
            )
        if late:
            logger.warning(
                "%s starts though no first position is committed for partition %d, which may be taken for an old or a "
                "new one when it starts later%s",
                *_told(late, waits),
                extra={"action": "start_out_of_turn", "partitions": len(late)},
            )
        return {session.partition.partition for session in late}


def _told(sessions: Sequence[Session], waits: Mapping[Session, _Wait]) -> tuple[TopicPartition, int, str]:
    first = sessions[0]
    more = f" (and {len(sessions) - 1} more partitions)" if len(sessions) > 1 else ""
    return first.partition, waits[first].awaited, more


def _joined(one: TopicPositions, other: TopicPositions) -> TopicPositions:
    return TopicPositions(one.partitions | other.partitions, one.committed | other.committed)
