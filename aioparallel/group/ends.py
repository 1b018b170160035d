"""When a run with ``until="end"`` ends, if a log loses its tail, or if others have some of the partitions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from aioparallel.group.assigned_partitions import AssignedPartitions
from aioparallel.group.assignment import Assignment, AssignmentState
from aioparallel.group.client import REQUEST_TIMEOUT, Client
from aioparallel.records.record import TopicPartition

__all__ = ["Ends"]

logger = logging.getLogger(__name__)

_INTERVAL = 1.0  # seconds between two checks
_LONGEST_SESSION: Final = 60.0
"""Seconds after which brokers remove a member that sends no heartbeats, by default at most."""


@dataclass(eq=False, repr=False)
class Ends:
    """Lowers the targets that are beyond the ends of their logs, and then calls ``on_change()``. An unclean leader
    election may lose the tail of a log, and such a target would never be reached.

    The end offset in the last fetch response is only a hint, because a new leader may report too little for a moment.
    So the cluster is asked before a target is lowered.

    In the new group protocol a member may have no partitions yet, because a member that has crashed still has them. So
    a run that has reached the end of its own partitions waits for the commits of all others, until members that have
    crashed are removed for sure. The others may wait for its own commits, so it calls ``commit_soon()`` meanwhile.
    """

    _client: Client
    _assigned: AssignedPartitions
    _targets: Mapping[TopicPartition, int]
    _rebalance_timeout: float
    _commit_soon: Callable[[], None]
    _on_change: Callable[[], None]
    _reached: set[TopicPartition] = field(default_factory=set)  # by the group, as its commits say
    _held: frozenset[TopicPartition] = frozenset()
    _waits_since: float | None = None

    def may_end(self) -> bool:
        """Whether the run may end, once all of its own partitions have reached their targets."""
        if not self._client.assigns_in_steps:
            return True
        held = frozenset(self._assigned.assignments)
        if not self._elsewhere():
            return True
        now = asyncio.get_running_loop().time()
        if self._waits_since is None or held != self._held:
            if self._waits_since is None:
                logger.info(
                    "This member has read its %d partitions to the end. It waits until the group has committed the %d "
                    "others, or takes over what comes, for at most %.0f s without a change",
                    len(held),
                    len(self._elsewhere()),
                    _LONGEST_SESSION + self._rebalance_timeout,
                    extra={"action": "end_elsewhere", "partitions": len(self._elsewhere())},
                )
            self._held, self._waits_since = held, now
        return now - self._waits_since > _LONGEST_SESSION + self._rebalance_timeout

    def _elsewhere(self) -> set[TopicPartition]:
        return self._targets.keys() - self._assigned.assignments.keys() - self._reached

    async def run(self) -> None:
        """Check targets until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL)
            if doubtful := [
                assignment for assignment in self._assigned.assignments.values() if self._seems_cut(assignment)
            ]:
                await self._ask(doubtful)
            if self._waits_since is not None:
                self._commit_soon()
                await self._look_elsewhere()
                self._on_change()

    async def _look_elsewhere(self) -> None:
        """Find out which partitions of other members have reached their targets, or have no records before these."""
        with contextlib.suppress(TimeoutError):  # the next check asks again
            found = await self._client.committed(self._elsewhere(), REQUEST_TIMEOUT)
            self._reached |= {at for at, committed in found.items() if committed.offset >= self._targets[at]}
            if not (left := self._elsewhere()):
                return
            ends = await self._client.end_offsets(left, REQUEST_TIMEOUT)
            begins = await self._client.beginning_offsets(left, REQUEST_TIMEOUT)
            for partition in left & begins.keys():
                target = min(self._targets[partition], ends.get(partition, self._targets[partition]))
                if begins[partition] >= target or (partition in found and found[partition].offset >= target):
                    self._reached.add(partition)

    def _seems_cut(self, assignment: Assignment) -> bool:
        if assignment.state is not AssignmentState.OPEN or assignment.resetting:
            return False
        end = self._client.end_offset_seen(assignment.partition)
        return end is not None and assignment.ledger.position >= end and end < assignment.target

    async def _ask(self, doubtful: list[Assignment]) -> None:
        try:
            ends = await self._client.end_offsets([assignment.partition for assignment in doubtful], REQUEST_TIMEOUT)
        except TimeoutError:
            if len(doubtful) > 1:  # a partition without a leader must not delay the others
                await asyncio.gather(*[self._ask([assignment]) for assignment in doubtful])
            return  # the next check asks again
        for assignment in doubtful:
            end = ends.get(assignment.partition)
            # Skipped are assignments that have gone meanwhile, and logs that have grown beyond their target. A log that
            # ends below the position is skipped as well: the next fetch reports it, and a reset handles it.
            if end is None or not assignment.current or not assignment.ledger.position <= end < assignment.target:
                continue
            logger.warning(
                "%s: the log ends at offset %d, before offset %d at which it ended at the start: its tail was lost",
                assignment.partition,
                end,
                assignment.target,
                extra={"action": "target_lowered", "end": end, "target": assignment.target},
            )
            self._assigned.lower_target(assignment, end)
        self._on_change()
