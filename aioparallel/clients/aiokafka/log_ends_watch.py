"""Where the logs of assigned partitions end, for those that nothing tells of.

A fetch tells it of each partition that it asks for. While the buffer is full, or what was fetched is not taken yet,
nothing is asked: the lag would stand still, and a broker could be gone unseen. So such partitions are asked about by
themselves, each leader by a request of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Final, cast

from aiokafka.protocol.offset import OffsetRequest

from aioparallel.clients.aiokafka.internals import Connections, OffsetAnswer, PartitionState, SubscriptionState
from aioparallel.clients.codes import ErrorCode
from aioparallel.clients.contacts import Contacts
from aioparallel.records import TopicPartition

__all__ = ["LogEndsWatch"]

logger = logging.getLogger(__name__)

_PAUSE: Final = 2.0
"""Seconds between two looks."""
_OLD: Final = 3.0
"""Seconds after which somebody is asked."""
_LIMIT: Final = 5.0
"""Seconds for an answer."""
_LATEST: Final = -1


class LogEndsWatch:
    """Of one client."""

    def __init__(
        self,
        connections: Connections,
        subscriptions: SubscriptionState,
        contacts: Contacts,
        *,
        read_committed: bool,
    ) -> None:
        self._connections = connections
        self._subscriptions = subscriptions
        self._contacts = contacts
        self._read_committed = read_committed

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(_PAUSE)
            by_leader: defaultdict[int, list[TopicPartition]] = defaultdict(list)
            for partition in self._old():
                leader = self._connections.cluster.leader_for_partition(partition)
                if leader is not None and leader >= 0:
                    by_leader[leader].append(partition)
            await asyncio.gather(*(self._ask(leader, asked) for leader, asked in by_leader.items()))

    @property
    def leaderless(self) -> tuple[TopicPartition, ...]:
        """Assigned partitions without a leader."""
        leader_of = self._connections.cluster.leader_for_partition
        return tuple(sorted(one for one in self._assigned() if (leader := leader_of(one)) is None or leader < 0))

    def _assigned(self) -> Iterable[TopicPartition]:
        subscription = self._subscriptions.subscription
        assignment = None if subscription is None else subscription.assignment
        return () if assignment is None else [TopicPartition(*tp) for tp in assignment.tps]

    def _state(self, partition: TopicPartition) -> PartitionState | None:
        subscription = self._subscriptions.subscription
        assignment = None if subscription is None else subscription.assignment
        return None if assignment is None else assignment.state_value(partition)

    def _old(self) -> Iterable[TopicPartition]:
        """Those that are read, and of which nothing was heard for a while."""
        for partition in self._assigned():
            state = self._state(partition)
            heard = self._contacts.since_heard(partition)
            if state is not None and not state.paused and (heard is None or heard > _OLD):
                yield partition

    async def _ask(self, leader: int, partitions: Collection[TopicPartition]) -> None:
        topics: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for topic, partition in partitions:
            topics[topic].append((partition, _LATEST))
        request = OffsetRequest(-1, int(self._read_committed), list(topics.items()))
        try:
            async with asyncio.timeout(_LIMIT):
                answer = cast("OffsetAnswer", await self._connections.send(leader, request))
        except Exception as error:  # whatever it is: the age of a lag is no reason to stop looking
            logger.debug("Broker %d does not tell log ends: %r", leader, error, extra={"action": "no_log_ends"})
            return
        for topic, told in answer.topics:
            for number, code, *_, offset in (entry[:4] for entry in told):
                asked = TopicPartition(topic, number)
                state = self._state(asked)
                if code != ErrorCode.NONE or state is None:
                    continue
                self._contacts.heard([asked])
                if self._read_committed:
                    state.lso = offset
                if not self._read_committed or state.highwater is None:
                    state.highwater = offset
