"""Detects partitions that make no progress although there is more to read. Plain: no I/O.

Known causes are handled where they occur: a follower that hangs, a broker that answers without records, a client that
waits for ever. This reports the unknown ones.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Client
from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.records.record import TopicPartition

__all__ = ["Stalls"]

logger = logging.getLogger(__name__)

_AT_MOST: Final = 5
"""The most problems of one kind that are listed one by one."""


class _Wait(NamedTuple):
    """A partition with more to read, and when it was first seen at its position. ``kind``: why it waits."""

    kind: ProblemKind
    position: int
    since: float
    behind: int
    """Offsets between the position and the end."""


class Stalls:
    """The stalled partitions of one member. ``after``: seconds without progress before a partition is reported."""

    def __init__(self, client: Client, after: float) -> None:
        self._client = client
        self._after = after
        self._waits: dict[TopicPartition, _Wait] = {}
        self._logged: set[TopicPartition] = set()

    def look(self, asked: Iterable[Assignment], now: float) -> None:
        """Check these assignments and log those that are stalled. ``asked``: assignments that the current fetch
        includes."""
        waits = {
            assignment.partition: wait for assignment in asked if (wait := self._wait_of(assignment, now)) is not None
        }
        self._logged &= waits.keys()
        self._waits = waits
        for partition, wait in waits.items():
            if now - wait.since >= self._after and partition not in self._logged:
                self._logged.add(partition)
                logger.warning(
                    "%s",
                    _text(partition, wait, now),
                    extra={"action": "stalled" if wait.kind is ProblemKind.STALLED else "open_transaction"},
                )

    def _wait_of(self, assignment: Assignment, now: float) -> _Wait | None:
        partition, position = assignment.partition, assignment.ledger.position
        end = self._client.end_offset_seen(partition)
        written = self._client.written_end_seen(partition)
        if end is not None and end > position:
            kind, behind = ProblemKind.STALLED, end - position
        elif end is not None and written is not None and written > end:
            kind, behind = ProblemKind.OPEN_TRANSACTION, written - end
        else:
            return None
        before = self._waits.get(partition)
        is_same = before is not None and (before.kind, before.position) == (kind, position)
        return _Wait(kind, position, before.since if before is not None and is_same else now, behind)

    def problems(self, now: float) -> Iterator[Problem]:
        """Yield a problem for each stalled partition."""
        for kind in (ProblemKind.STALLED, ProblemKind.OPEN_TRANSACTION):
            found = [
                (partition, wait)
                for partition, wait in sorted(self._waits.items())
                if wait.kind is kind and now - wait.since >= self._after
            ]
            for partition, wait in found[:_AT_MOST]:
                yield Problem(kind, _text(partition, wait, now))
            if len(found) > _AT_MOST:
                yield Problem(kind, f"and {len(found) - _AT_MOST} more partitions")


def _text(partition: TopicPartition, wait: _Wait, now: float) -> str:
    seconds = now - wait.since
    if wait.kind is ProblemKind.OPEN_TRANSACTION:
        return (
            f"{partition}: a transaction of another producer has been open at offset {wait.position} for "
            f"{seconds:.0f} s; the {wait.behind:,} offsets from there on cannot be read before it ends"
        )
    return (
        f"{partition}: nothing was read at offset {wait.position} for {seconds:.0f} s; {wait.behind:,} offsets are left"
    )
