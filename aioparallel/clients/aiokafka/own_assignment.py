"""An assignment that changes partition by partition while aiokafka fetches for it.

aiokafka replaces its assignment as a whole at each rebalance: it cancels all fetches, drops all fetched data, and
forgets all positions. Here the partitions that stay keep their state, their data and their fetches in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, cast

from aiokafka import TopicPartition as Place  # required by aiokafka
from aiokafka.consumer.subscription_state import Assignment, TopicPartitionState

from aioparallel.clients.aiokafka.internals import SubscriptionState
from aioparallel.records.record import TopicPartition

if TYPE_CHECKING:
    _Base = object
else:
    _Base = Assignment

__all__ = ["OwnAssignment"]


class OwnAssignment(_Base):
    """Replaces the assignment of a subscription, which becomes one of partitions that the caller chooses."""

    def __init__(self, subscriptions: SubscriptionState) -> None:
        self._topic_partitions: frozenset[TopicPartition] = frozenset()
        self._tp_state: dict[TopicPartition, Any] = {}
        # aiokafka asks for the state of a partition again when the answer to its fetch comes. This one has no position,
        # so the answer is dropped.
        self._gone = TopicPartitionState(self)
        self._gone.pause()
        self.unassign_future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.commit_refresh_needed = asyncio.Event()
        subscriptions.assign_from_user(())
        cast("Any", subscriptions.subscription)._assignment = self

    def add(self, partitions: Collection[TopicPartition]) -> None:
        """Assign these. Each has no position yet, so that it must be parked before aiokafka's next turn."""
        for partition in partitions:
            self._tp_state[self._key(partition)] = TopicPartitionState(self)
        self._topic_partitions = frozenset(self._tp_state)

    def remove(self, partitions: Collection[TopicPartition]) -> None:
        """Assign these no more."""
        for partition in partitions:
            if (state := self._tp_state.pop(self._key(partition), None)) is not None and state.paused:
                state.resume()  # aiokafka waits for it
        self._topic_partitions = frozenset(self._tp_state)

    def state_value(self, tp: TopicPartition) -> Any:
        return self._tp_state.get(tp, self._gone)

    @staticmethod
    def _key(partition: TopicPartition) -> Any:
        return Place(*partition)
