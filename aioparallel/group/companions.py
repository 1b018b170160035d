"""What is kept beside the positions of sessions: the seam for everything that must survive together with them.

A companion keeps something for each partition that this member holds: what was seen already, the state of each key. It
is restored before a session's first record, looks at records before they start, hears of those that are complete, and
is saved before the offsets are committed that stand for them, or with them. So what is committed is never ahead of what
was saved.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from aioparallel.group.client import CommitFault, Committed, Generation
from aioparallel.group.stores import OffsetStore, Positions
from aioparallel.observe.health import Problem
from aioparallel.observe.stats import StateStats
from aioparallel.records import Outgoing, Record, TopicPartition

if TYPE_CHECKING:
    from aioparallel.group.sessions import Session

__all__ = ["EMPTY", "Accompanied", "AccompaniedPositions", "Beside", "Companion", "TransactionalCompanion"]


EMPTY: Final[Mapping[int, Hashable]] = MappingProxyType({})


class Beside(Protocol):
    """A companion's view of one session. Gone with it: what was let through and is not complete counts for nothing."""

    @property
    def has_news(self) -> bool:
        """Whether something is to be saved with the next commit that no outcome has brought."""

    def fresh(self, records: Sequence[Record]) -> Sequence[Record]:
        """Those of these records, fetched now and ascending by offset, that are to run. The others are complete at
        once."""

    def put_away(self, offset: int) -> None:
        """A record that was to run is dead-lettered or skipped, which completes it next."""

    def completed(self, offset: int) -> None:
        """A record that was to run has its outcome. Never after the session was dropped."""

    def completed_all(self, offsets: Sequence[int]) -> None:
        """The same for several."""

    def acknowledged(self) -> None:
        """The session was committed, with what was saved last."""

    def lanes(self) -> Mapping[int, Hashable]:
        """Where a record must not be committed before another one of its lane is: the lane of each that is complete and
        not committed."""


class Companion(Protocol):
    """Keeps something for each partition. All its methods are called on one event loop."""

    left_out: int
    """Records that did not have to run."""

    async def restore(
        self, found: Mapping[TopicPartition, Committed | None], timeout: float
    ) -> Collection[TopicPartition]:
        """Find what was saved for these, whose positions are known. Called after they were taken over, so that nobody
        else saves for them any more whose commit would count.

        Returns those that are ready, within ``timeout`` seconds: the others, if there are any, are asked for again, and
        it goes on then where it was; as it does after a TimeoutError. Raises that, and ClientError for what waiting
        does not mend.
        """

    def beside(self, session: Session) -> Beside:
        """The view of a new session, which may be made before its partition is restored."""

    async def save(
        self, positions: Mapping[TopicPartition, Committed], timeout: float
    ) -> Mapping[TopicPartition, CommitFault]:
        """Save all that is known of these now, which are committed next; those that were not saved within ``timeout``
        seconds, and why. Never two at a time for one group. What was not acknowledged may have been written: to write
        it again, or to find it, changes nothing.
        """

    def release(self, partition: TopicPartition) -> None:
        """This partition went: what is kept for it in memory may go."""

    async def work(self) -> None:
        """What it does by itself while the run lasts, until it is cancelled. An error ends the run."""

    async def finish(self) -> None:
        """The run ends, all is committed: what makes the next start quicker may be done now."""

    async def close(self) -> None:
        """Nothing more is asked."""

    def problems(self) -> Sequence[Problem]:
        """What somebody should look at."""

    def stats(self) -> StateStats | None:
        """What is kept, where that is a state of keys."""


class TransactionalCompanion(Companion, Protocol):
    """One that can be saved in the same transaction as positions and outputs, in the place of :meth:`save`."""

    def outputs(self, partition: TopicPartition, committed: Committed) -> Sequence[Outgoing]:
        """What is to be written in the transaction that commits this."""

    def too_large(self) -> None:
        """One of these was refused for its size: from now on less is to be in each."""


class AccompaniedPositions:
    """:class:`~aioparallel.group.stores.Positions` with a companion beside them: they are read first, and the companion
    is restored then. A partition is taken over when it is."""

    def __init__(self, positions: Positions, companion: Companion) -> None:
        self._positions = positions
        self._companion = companion
        self._releases: Counter[TopicPartition] = Counter()

    async def take_over(
        self, partitions: Collection[TopicPartition], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, Committed | None]:
        """See :class:`~aioparallel.group.stores.Positions`."""
        ends = asyncio.get_running_loop().time() + timeout
        before = {partition: self._releases[partition] for partition in partitions}
        found = await self._positions.take_over(partitions, generation, timeout)
        # One that went meanwhile may be here again, restored for another session that runs by now.
        still = {partition: committed for partition, committed in found.items() if self._is(partition, before)}
        if not still:
            return {}
        ready = await self._companion.restore(still, _left(ends))
        return {partition: found[partition] for partition in ready if self._is(partition, before)}

    async def stored(self, partitions: Collection[TopicPartition], timeout: float) -> Collection[TopicPartition]:
        """See :class:`~aioparallel.group.stores.Positions`."""
        return await self._positions.stored(partitions, timeout)

    def _is(self, partition: TopicPartition, before: Mapping[TopicPartition, int]) -> bool:
        return self._releases[partition] == before[partition]

    def release(self, partition: TopicPartition) -> None:
        """See :class:`~aioparallel.group.stores.Positions`."""
        self._releases[partition] += 1
        self._companion.release(partition)
        self._positions.release(partition)


class Accompanied(AccompaniedPositions):
    """An :class:`~aioparallel.group.stores.OffsetStore` with a companion beside it, which is saved first; positions are
    written then. What the companion knows may be ahead of the positions it is saved with, never behind."""

    def __init__(self, store: OffsetStore, companion: Companion) -> None:
        super().__init__(store, companion)
        self._store = store

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


def _left(ends: float) -> float:
    return max(0.0, ends - asyncio.get_running_loop().time())
