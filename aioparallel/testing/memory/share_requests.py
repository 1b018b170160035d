"""The requests of a share session: its epoch, its partitions, and the ids of their topics. Synchronous."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

from aioparallel.clients.messages.assignments import TopicPartitions
from aioparallel.clients.messages.share_records import (
    CLOSE_SESSION,
    OPEN_SESSION,
    AcknowledgePartition,
    AcknowledgeTopic,
    AcquiredRange,
    AcquireMode,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareFetchResponse,
)
from aioparallel.records.record import TopicPartition
from aioparallel.testing.memory.broker import InMemoryBroker
from aioparallel.testing.memory.share_acks import Ack, as_batches

__all__ = ["ShareRequests"]

_BATCH_SIZE: Final = 500
_DELETED: Final = bytes(16)
"""No topic has this id."""


class ShareRequests:
    """The requests of one member to one node."""

    def __init__(self, broker: InMemoryBroker, group_id: str, member_id: str) -> None:
        self._broker = broker
        self._group_id = group_id
        self._member_id = member_id
        self._epoch = OPEN_SESSION
        # Partitions of the session, with the ids of their topics; and as they will be after the fetch under way.
        self._known: dict[TopicPartition, bytes] = {}
        self._next: dict[TopicPartition, bytes] = {}
        self._names: dict[tuple[bytes, int], TopicPartition] = {}

    @property
    def is_open(self) -> bool:
        """Whether there is a session. Else a fetch opens one, and cannot acknowledge."""
        return self._epoch != OPEN_SESSION

    def forget_session(self) -> None:
        """The session has ended."""
        self._epoch, self._known, self._next = OPEN_SESSION, {}, {}

    def accepted(self) -> None:
        """The last request had no error for all of it."""
        self._epoch += 1
        self._known = self._next

    def fetch(
        self, partitions: frozenset[TopicPartition], most: int, acks: Mapping[TopicPartition, Sequence[Ack]]
    ) -> ShareFetchRequest:
        """Fetch from these partitions, and acknowledge."""
        self._next = wanted = {one: self._broker.topic_id(one.topic) for one in partitions}
        added = [one for one, topic_id in wanted.items() if self._known.get(one) != topic_id]
        forgotten = [(topic_id, one) for one, topic_id in self._known.items() if wanted.get(one) != topic_id]
        return ShareFetchRequest(
            group_id=self._group_id,
            member_id=self._member_id,
            share_session_epoch=self._epoch,
            max_wait_ms=0,
            min_bytes=1,
            max_records=most,
            batch_size=_BATCH_SIZE,
            share_acquire_mode=AcquireMode.RECORD_LIMIT,
            topics=self._topics({**dict.fromkeys(added, ()), **acks}),
            forgotten_topics_data=tuple(TopicPartitions(topic_id, (one.partition,)) for topic_id, one in forgotten),
        )

    def acknowledge(
        self, acks: Mapping[TopicPartition, Sequence[Ack]], *, renewing: bool = False
    ) -> ShareAcknowledgeRequest:
        """Acknowledge these."""
        return self._acknowledge(self._epoch, acks, renewing)

    def close(self) -> ShareAcknowledgeRequest:
        """Close the session."""
        return self._acknowledge(CLOSE_SESSION, {}, False)

    def _acknowledge(
        self, epoch: int, acks: Mapping[TopicPartition, Sequence[Ack]], renewing: bool
    ) -> ShareAcknowledgeRequest:
        self._next = self._known
        return ShareAcknowledgeRequest(
            group_id=self._group_id,
            member_id=self._member_id,
            share_session_epoch=epoch,
            is_renew_ack=renewing,
            topics=self._topics(acks),
        )

    def _topics(self, partitions: Mapping[TopicPartition, Sequence[Ack]]) -> tuple[AcknowledgeTopic, ...]:
        ids = {partition: self._broker.topic_id(partition.topic) or _DELETED for partition in partitions}
        self._names |= {(topic_id, one.partition): one for one, topic_id in ids.items()}
        return tuple(
            AcknowledgeTopic(
                topic_id, tuple(AcknowledgePartition(one.partition, as_batches(partitions[one])) for one in some)
            )
            for topic_id, some in groupby(sorted(partitions), key=ids.__getitem__)
        )

    def partition(self, topic_id: bytes, number: int) -> TopicPartition:
        """The partition of a response."""
        return self._names[topic_id, number]

    def acquired(self, answer: ShareFetchResponse) -> dict[TopicPartition, Sequence[AcquiredRange]]:
        """What was acquired, by partition."""
        return {
            self.partition(topic.topic_id, one.partition_index): one.acquired_records
            for topic in answer.responses
            for one in topic.partitions
            if one.acquired_records
        }
