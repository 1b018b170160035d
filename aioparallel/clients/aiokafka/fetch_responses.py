"""Keeps the bytes of fetch responses while aiokafka holds them undecoded.

aiokafka's objects do not expose the bytes, which are needed when a record cannot be decoded. The bytes are in memory
anyway, so this costs only a reference.

A broker that cannot read its own log answers CORRUPT_MESSAGE. aiokafka then repeats the request without a pause, and
reports nothing. Here this becomes an error of the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from aiokafka import TopicPartition as Place  # required by aiokafka
from aiokafka.client import ConnectionGroup
from aiokafka.consumer.fetcher import FetchError as AiokafkaFetchError
from aiokafka.protocol.fetch import FetchRequest

from aioparallel.clients.aiokafka.internals import Fetcher, PartitionState, SubscriptionState
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import FetchFailed
from aioparallel.records.record import TopicPartition

__all__ = ["FetchResponses"]

_CODE: Final = 1
_DATA: Final = -1
"""Indices of the error code and the data within a partition's part of a response."""

_Asked = tuple[int, PartitionState | None]
"""The offset, and the state of the partition then."""
_NOT_ASKED: Final[_Asked] = (-1, None)


class FetchResponses:
    """The responses of one fetcher. Wraps ``send`` of its connections.

    aiokafka stores the result of ``send`` in its buffers in the same step of the event loop, so the bytes here and the
    data there always belong to the same response.
    """

    def __init__(self, fetcher: Fetcher, subscriptions: SubscriptionState) -> None:
        self._fetcher = fetcher
        self._subscriptions = subscriptions
        self._bytes: dict[TopicPartition, bytes] = {}
        connections = fetcher._client
        self._send: Callable[..., Any] = connections.send
        connections.send = self.send  # type: ignore[method-assign]

    async def send(self, node_id: int, request: object, *, group: int = ConnectionGroup.DEFAULT) -> Any:
        """``AIOKafkaClient.send``, which keeps the bytes of fetch responses."""
        if not isinstance(request, FetchRequest):
            return await self._send(node_id, request, group=group)
        of_fetch: Any = request
        asked = {
            TopicPartition(topic, number): (offset, self._state(TopicPartition(topic, number)))
            for topic, partitions in of_fetch.topics
            for number, offset, *_ in partitions
        }
        answer = await self._send(node_id, request, group=group)
        for topic, partitions in answer.topics:
            partitions[:] = [part for part in partitions if self._keep(TopicPartition(topic, part[0]), part, asked)]
        return answer

    def taken(self, partition: TopicPartition) -> bytes:
        """Return and forget the partition's bytes; empty if unknown."""
        return self._bytes.pop(partition, b"")

    def prune(self) -> None:
        """Forget bytes whose data aiokafka has dropped."""
        if len(self._bytes) > len(self._fetcher._records):
            self._bytes = {tp: data for tp, data in self._bytes.items() if tp in self._fetcher._records}

    def _keep(self, partition: TopicPartition, part: Any, asked: Mapping[TopicPartition, _Asked]) -> bool:
        """Keep the bytes of a partition's part. Returns False if aiokafka must not see it: the partition was given away
        and has come back meanwhile. aiokafka compares the offsets only, and the topic may be another one of that name.
        """
        offset, before = asked.get(partition, _NOT_ASKED)
        if (state := self._state(partition)) is not before:
            return False
        # aiokafka discards an answer about another position, such as a late one of the leader before.
        if state is not None and state.position == offset:
            if part[_CODE] == ErrorCode.CORRUPT_MESSAGE:
                self._report_corrupt(partition, offset)
            elif data := part[_DATA]:
                self._bytes[partition] = data
        return True

    def _state(self, partition: TopicPartition) -> PartitionState | None:
        """The state of an assigned partition with a position."""
        subscription = self._subscriptions.subscription
        assignment = None if subscription is None else subscription.assignment
        if assignment is None or not assignment.active:
            return None
        state = assignment.state_value(partition)
        return state if state is not None and state.has_valid_position else None

    def _report_corrupt(self, partition: TopicPartition, position: int) -> None:
        """Store an error for the partition."""
        if partition in self._fetcher._records:
            return
        failure = FetchFailed(
            partition,
            position,
            "its leader reports that its own log is damaged there (CORRUPT_MESSAGE); nothing was skipped. Make a "
            "replica with an intact log the leader, or delete the damaged records: kafka-delete-records.sh",
        )
        self._fetcher._records[cast("TopicPartition", Place(*partition))] = cast(
            "Any", AiokafkaFetchError(error=failure, backoff=0.0)
        )
        for waiter in tuple(self._fetcher._fetch_waiters):
            self._fetcher._notify(waiter)
