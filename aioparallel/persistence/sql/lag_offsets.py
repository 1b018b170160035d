"""Commits the positions of a database to Kafka as well, as plain offsets."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Final

from aioparallel.group.assignment import Assignment
from aioparallel.group.client import Client, CommitFault, Committed, Generation
from aioparallel.records.record import TopicPartition

__all__ = ["LagOffsets"]

_TIMEOUT: Final = 1.0
"""Seconds for a commit. The position itself is stored already."""
_AGAIN: Final = 1.0
"""Seconds until a commit without an acknowledgement is sent again."""


class LagOffsets:
    """Tells the group how far its members are. Lag tools read that, and members with ``until="end"`` that wait for each
    other; no record depends on it.

    A commit that is lost, or has the epoch of before a rebalance, is repeated: no later one may follow.
    """

    def __init__(self, client: Client, assignments: Callable[[], Collection[Assignment]]) -> None:
        self._client = client
        self._assignments = assignments
        self._untold: dict[TopicPartition, Committed] = {}
        self._lock = asyncio.Lock()

    async def tell(self, positions: Mapping[TopicPartition, Committed], generation: Generation) -> None:
        """Commit these offsets, without their maps. Returns also if that fails."""
        self._untold |= {partition: committed._replace(metadata="") for partition, committed in positions.items()}
        await self._send(positions, generation)

    def release(self, partition: TopicPartition) -> None:
        """Forget a partition that this member no longer owns."""
        self._untold.pop(partition, None)

    async def run(self) -> None:
        """Repeat what was not acknowledged, until cancelled."""
        while True:
            await asyncio.sleep(_AGAIN)
            again: defaultdict[Generation, list[TopicPartition]] = defaultdict(list)
            for assignment in self._assignments():
                if assignment.partition in self._untold and assignment.may_commit():
                    again[assignment.generation].append(assignment.partition)
            for generation, partitions in again.items():
                await self._send(partitions, generation)

    async def _send(self, partitions: Collection[TopicPartition], generation: Generation) -> None:
        async with self._lock:
            sent = {partition: self._untold[partition] for partition in partitions if partition in self._untold}
            results = await self._client.commit(sent, generation, _TIMEOUT) if sent else {}
            for partition, fault in results.items():
                if fault is not CommitFault.RETRIABLE and self._untold.get(partition) is sent[partition]:
                    del self._untold[partition]
