"""What is kept beside the positions of sessions: the seam for everything that must survive together with them.

A companion keeps something for each partition that this member holds: what was seen already, the state of each key. It
is restored before a session's first record, looks at records before they start, hears of those that are complete, and
is saved before the offsets are committed that stand for them. So what is committed is never ahead of what was saved.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from aioparallel.group.client import CommitFault, Committed, Generation
from aioparallel.group.stores import OffsetStore
from aioparallel.observe.health import Problem
from aioparallel.records import Record, TopicPartition

__all__ = ["Accompanied", "Beside", "Companion"]


class Beside(Protocol):
    """A companion's view of one session. Gone with it: what was let through and is not complete counts for nothing."""

    def fresh(self, records: Sequence[Record]) -> Sequence[Record]:
        """Those of these records, fetched now and ascending by offset, that are to run. The others are complete at
        once."""

    def completed(self, offset: int) -> None:
        """A record that was to run has its outcome. Never after the session was dropped."""

    def completed_all(self, offsets: Sequence[int]) -> None:
        """The same for several."""


class Companion(Protocol):
    """Keeps something for each partition. All its methods are called on one event loop."""

    left_out: int
    """Records that did not have to run."""

    async def restore(self, partitions: Collection[TopicPartition], timeout: float) -> None:
        """Find what was saved for these, within ``timeout`` seconds. Called after they were taken over, so that nobody
        else saves for them any more whose commit would count; again after a TimeoutError, and goes on then where it
        was. Raises TimeoutError, and ClientError for what waiting does not mend."""

    def beside(self, partition: TopicPartition) -> Beside:
        """The view of a new session, which may be made before its partition is restored."""

    async def save(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, CommitFault]:
        """Save all that is known of these now; those that were not saved within ``timeout`` seconds, and why. Never two
        at a time for one group. What was not acknowledged may have been written: to write it again, or to find it,
        changes nothing.
        """

    def release(self, partition: TopicPartition) -> None:
        """This partition went: what is kept for it in memory may go."""

    def problems(self) -> Sequence[Problem]:
        """What somebody should look at."""


class Accompanied:
    """An :class:`~aioparallel.group.stores.OffsetStore` with a companion beside it.

    Positions are read first and the companion restored then; the companion is saved first and positions are written
    then. What the companion knows may be ahead of the positions it is saved with, never behind.
    """

    def __init__(self, store: OffsetStore, companion: Companion) -> None:
        self._store = store
        self._companion = companion
        self._releases: Counter[TopicPartition] = Counter()

    async def take_over(
        self, partitions: Collection[TopicPartition], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, Committed | None]:
        """See :class:`~aioparallel.group.stores.OffsetStore`."""
        ends = asyncio.get_running_loop().time() + timeout
        before = {partition: self._releases[partition] for partition in partitions}
        found = await self._store.take_over(partitions, generation, timeout)
        # One that went meanwhile may be here again, restored for another session that runs by now.
        still = [partition for partition in found if self._releases[partition] == before[partition]]
        if still:
            await self._companion.restore(still, _left(ends))
        return found

    async def commit(
        self, positions: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        """See :class:`~aioparallel.group.stores.OffsetStore`."""
        ends = asyncio.get_running_loop().time() + timeout
        unsaved = await self._companion.save(positions, timeout / 2)
        saved = {partition: committed for partition, committed in positions.items() if partition not in unsaved}
        results: dict[TopicPartition, CommitFault | None] = {**unsaved}
        if saved:
            results |= await self._store.commit(saved, generation, _left(ends))
        return results

    def release(self, partition: TopicPartition) -> None:
        """See :class:`~aioparallel.group.stores.OffsetStore`."""
        self._releases[partition] += 1
        self._companion.release(partition)
        self._store.release(partition)


def _left(ends: float) -> float:
    return max(0.0, ends - asyncio.get_running_loop().time())
