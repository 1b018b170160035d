"""The bytes of fetch responses, for as long as aiokafka holds them undecoded.

aiokafka's objects do not give them back, and where a record cannot be decoded nothing else has its neighbours. So they
are kept as they come; that is a reference to what is in memory anyway. And a broker that cannot read its own log says
so with CORRUPT_MESSAGE, after which aiokafka asks the same again without a pause, and tells nobody: here that becomes
an error of its partition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from aiokafka import TopicPartition as Place  # its own: it takes no other
from aiokafka.client import ConnectionGroup
from aiokafka.consumer.fetcher import FetchError as AiokafkaFetchError
from aiokafka.protocol.fetch import FetchRequest

from aioparallel.clients.aiokafka.internals import FetchAnswer, Fetcher, SubscriptionState
from aioparallel.codes import ErrorCode
from aioparallel.errors import FetchFailed
from aioparallel.records import TopicPartition

__all__ = ["FetchResponses"]

_CODE: Final = 1
_DATA: Final = -1
"""Where a partition's part of a response has it."""


class FetchResponses:
    """Of one fetcher. Puts itself before ``send`` of its connections, once.

    What ``send`` returns aiokafka puts into its buffers in the same step of the event loop, so there is no moment at
    which the bytes here and the data there are of different responses.
    """

    def __init__(self, fetcher: Fetcher, subscriptions: SubscriptionState) -> None:
        self._fetcher = fetcher
        self._subscriptions = subscriptions
        self._bytes: dict[TopicPartition, bytes] = {}
        connections = fetcher._client
        self._send = cast("Callable[..., Any]", connections.send)
        connections.send = self.send  # type: ignore[method-assign]

    async def send(self, node_id: int, request: object, *, group: int = ConnectionGroup.DEFAULT) -> object:
        """``AIOKafkaClient.send``."""
        answer = await self._send(node_id, request, group=group)
        if isinstance(request, FetchRequest):
            self._keep(request, cast("FetchAnswer", answer))
        return answer

    def taken(self, partition: TopicPartition) -> bytes:
        """What was fetched of it; from now on it is the caller's to keep. Empty: it is not known."""
        return self._bytes.pop(partition, b"")

    def forget_what_is_gone(self) -> None:
        """Keep nothing that aiokafka does not keep any more."""
        if len(self._bytes) > len(self._fetcher._records):
            self._bytes = {tp: data for tp, data in self._bytes.items() if tp in self._fetcher._records}

    def _keep(self, request: Any, answer: FetchAnswer) -> None:
        for topic, partitions in answer.topics:
            for part in cast("list[tuple[Any, ...]]", partitions):
                partition = TopicPartition(topic, part[0])
                if part[_CODE] == ErrorCode.CORRUPT_MESSAGE:
                    self._tell_corrupt(request, partition)
                elif data := part[_DATA]:
                    self._bytes[partition] = data

    def _tell_corrupt(self, request: Any, partition: TopicPartition) -> None:
        """An error in the place of data, if it was asked for from where the partition stands now."""
        subscription = self._subscriptions.subscription
        assignment = None if subscription is None else subscription.assignment
        if assignment is None or not assignment.active or partition in self._fetcher._records:
            return
        state = assignment.state_value(partition)
        asked = {(topic, number): offset for topic, partitions in request.topics for number, offset, *_ in partitions}
        if state is None or not state.has_valid_position or state.position != asked.get(partition):
            return
        failure = FetchFailed(
            partition,
            state.position,
            "its leader says that its own log is damaged there (CORRUPT_MESSAGE); nothing was skipped. Let a replica "
            "lead that has it whole, or delete what is damaged: kafka-delete-records.sh",
        )
        self._fetcher._records[cast("TopicPartition", Place(*partition))] = cast(
            "Any", AiokafkaFetchError(error=failure, backoff=0.0)
        )
        for waiter in tuple(self._fetcher._fetch_waiters):
            self._fetcher._notify(waiter)
