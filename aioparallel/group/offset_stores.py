"""The interface to where positions are stored.

A position is an offset and a text, the offset map. The opener takes a partition over through a store before it is read,
and the committer writes through it. A store may keep positions as committed offsets of the group
(:class:`BrokerOffsets`) or in a table next to the results, or write them in one transaction with outputs. A store may
also wrap another one, to read and write more data of a partition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from aioparallel.group.client import Client, CommitFault, Committed, Generation
from aioparallel.records.record import TopicPartition

__all__ = ["BrokerOffsets", "OffsetStore", "Positions"]


class Positions(Protocol):
    """Where positions are read from. All methods are called on one event loop.

    Every call with a ``timeout`` (seconds) returns or raises within that time. Temporary problems raise nothing else
    than TimeoutError.
    """

    async def take_over(
        self, partitions: Collection[TopicPartition], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, Committed | None]:
        """Take these partitions over: fence their previous owners, *then* return their positions. None: nothing is
        stored. Partitions whose position is not decided yet are not in the result; the caller asks for them again.

        Called before a partition is read, until its position is in the result. Not called for a partition that is kept
        in a new generation. Raises TimeoutError, and ClientError for permanent problems.
        """

    async def stored(self, partitions: Collection[TopicPartition], timeout: float) -> Collection[TopicPartition]:
        """Return those of these partitions that have a stored position, whichever member owns them. Takes nothing over.
        Raises TimeoutError, and ClientError for permanent problems."""

    def release(self, partition: TopicPartition) -> None:
        """Forget what is in memory for this partition: nothing is written for it until it is taken over again."""


class OffsetStore(Positions, Protocol):
    """Stores positions, fenced with the member's generation."""

    async def commit(
        self, positions: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        """Write these positions in one attempt, if the member of ``generation`` still owns the partitions. Returns a
        result for each: None means that the next ``take_over`` of any member will find it. Data that belongs to a
        position (outputs, marks) must be stored before it or with it.

        Never called twice at a time for one group. Without an answer the result is RETRIABLE: the position may have
        been written. The same is true if the call is cancelled.
        """


class BrokerOffsets:
    """Kafka's own :class:`OffsetStore`: the group's committed offsets. The coordinator fences."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def take_over(
        self, partitions: Collection[TopicPartition], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, Committed | None]:
        """Return the group's committed offsets and texts. The join has fenced the previous owner already."""
        return {**dict.fromkeys(partitions), **await self._client.committed(partitions, timeout)}

    async def commit(
        self, positions: Mapping[TopicPartition, Committed], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, CommitFault | None]:
        """Send one OffsetCommit request."""
        return await self._client.commit(positions, generation, timeout)

    async def stored(self, partitions: Collection[TopicPartition], timeout: float) -> Collection[TopicPartition]:
        """Return the partitions with a committed offset."""
        return (await self._client.committed(partitions, timeout)).keys()

    def release(self, partition: TopicPartition) -> None:
        """Do nothing: nothing is in memory."""
