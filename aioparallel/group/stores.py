"""Where positions are read from and written to: the seam between a member of a group and whatever keeps its offsets.

A position is an offset and a text beside it, the offset map. The opener takes partitions over through a store before
it reads them, and the committer writes through it; neither knows what is behind it. A store may keep positions in the
group itself (:class:`BrokerOffsets`), in a table beside the results, or write them in one transaction with outputs; and
one store may go round another, to read and write what belongs to a partition beside its position.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from aioparallel.group.client import Client, CommitFault, Committed, Generation
from aioparallel.records import TopicPartition

__all__ = ["BrokerOffsets", "OffsetStore", "Positions"]


class Positions(Protocol):
    """Where positions are read from. All its methods are called on one event loop.

    Every call with a ``timeout`` (seconds) returns or raises within it, whatever is behind it. It never raises for what
    passes by itself.
    """

    async def take_over(
        self, partitions: Collection[TopicPartition], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, Committed | None]:
        """From now on these partitions are this member's: shut out whoever wrote for them before, *then* read where
        they stand; None: nothing is stored. Those of which that is not decided yet are not in the result: they are
        asked for again.

        Called before a partition is read, again until it is answered, and not for a partition that is kept under a new
        generation. Raises TimeoutError, and ClientError for what waiting does not mend.
        """

    async def stored(self, partitions: Collection[TopicPartition], timeout: float) -> Collection[TopicPartition]:
        """Those of these partitions for which a position is stored, whoever has them. Takes nothing over. Raises
        TimeoutError, and ClientError for what waiting does not mend."""

    def release(self, partition: TopicPartition) -> None:
        """This partition went, and nothing more is written for it until it is taken over again: what is kept for it in
        memory may go."""


class OffsetStore(Positions, Protocol):
    """Keeps positions, fenced with the member's generation."""

    async def commit(
        self, positions: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        """Write these, in one attempt, if the member of ``generation`` still has them. A result for each of them: None
        means that it will be found by the next ``take_over``, whoever asks. What belongs to a position (outputs, marks)
        is written and acknowledged before it, or with it.

        Never two at a time for one group. Without an answer it is RETRIABLE for each: it may have been written. A
        caller who is cancelled meanwhile knows nothing.
        """


class BrokerOffsets:
    """The group's committed offsets: the :class:`OffsetStore` of Kafka itself. The coordinator fences, by generation
    and member, and keeps nothing here."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def take_over(
        self, partitions: Collection[TopicPartition], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, Committed | None]:
        """The group's committed offsets and texts. The join has shut out the owner before already."""
        return {**dict.fromkeys(partitions), **await self._client.committed(partitions, timeout)}

    async def commit(
        self, positions: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        """One OffsetCommit request."""
        return await self._client.commit(positions, generation, timeout)

    async def stored(self, partitions: Collection[TopicPartition], timeout: float) -> Collection[TopicPartition]:
        """Those with a committed offset."""
        return (await self._client.committed(partitions, timeout)).keys()

    def release(self, partition: TopicPartition) -> None:
        """Nothing is kept for it."""
