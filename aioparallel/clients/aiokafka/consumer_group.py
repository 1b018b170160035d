"""A member of a group of the new protocol (KIP-848), on the connections and the fetcher of aiokafka.

::

    group_member.py         epochs, what is owned, what heartbeats say, what their answers mean    synchronous
    consumer_membership.py  one coroutine: heartbeats, and what their answers mean
    group_reconciler.py     takes partitions, and gives them away
    own_assignment.py       what aiokafka fetches, partition by partition
    group_node.py           who coordinates the group
    topic_names.py          the names of assigned topics
    group_refusals.py       errors for users
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection
from typing import Final

import aiokafka.errors as kafka

from aioparallel.clients.aiokafka.broker_watch import BrokerWatch
from aioparallel.clients.aiokafka.consumer_membership import ConsumerMembership
from aioparallel.clients.aiokafka.fetching import FetchWalk
from aioparallel.clients.aiokafka.group_member import GroupMember, Subscribed
from aioparallel.clients.aiokafka.group_node import GroupNode, LookUpRefused
from aioparallel.clients.aiokafka.internals import Consumer
from aioparallel.clients.aiokafka.own_assignment import OwnAssignment
from aioparallel.clients.aiokafka.settings import ConsumerSettings
from aioparallel.clients.aiokafka.topic_names import TopicNames
from aioparallel.clients.messages.assignments import new_member_id
from aioparallel.clients.messages.consumer_groups import with_inline_flags
from aioparallel.group.client import Generation, RebalanceListener
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition

__all__ = ["ConsumerGroup"]

logger = logging.getLogger(__name__)

_PART: Final = 0.6
"""The part of a timeout for leaving. Closing sends nothing more, and the partitions of a member that has not left wait
for its session."""


class ConsumerGroup:
    """See :class:`~aioparallel.clients.aiokafka.client.Group` for each method."""

    assigns_in_steps = True

    def __init__(
        self,
        settings: ConsumerSettings,
        consumer: Consumer,
        broker_watch: BrokerWatch,
        walk: FetchWalk,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._settings = settings
        self._consumer = consumer
        self._broker_watch = broker_watch
        self._walk = walk
        self._on_failure = on_failure
        self.coordinator = GroupNode(consumer._client, settings.group_id, broker_watch.brokers)
        self._membership: ConsumerMembership | None = None

    def subscribe(self, topics: Collection[str] | re.Pattern[str], listener: RebalanceListener) -> None:
        settings, connections = self._settings, self._consumer._client
        subscribed = Subscribed(
            group_id=settings.group_id,
            topics=() if isinstance(topics, re.Pattern) else tuple(sorted(topics)),
            pattern=_re2(topics) if isinstance(topics, re.Pattern) else None,
            instance_id=settings.instance_id,
            rack=settings.rack,
            rebalance_timeout=settings.rebalance_timeout,
            assignor=settings.remote_assignor,
        )
        self._membership = ConsumerMembership(
            GroupMember(subscribed, new_member_id()),
            self.coordinator,
            TopicNames(connections, self._broker_watch.brokers),
            _Positions(OwnAssignment(self._consumer._subscription), self._walk),
            listener,
            retry_backoff=settings.retry_backoff,
            on_failure=self._on_failure,
        )
        self._membership.start()

    def check(self) -> None:
        """Failures are reported by ``on_failure``."""

    def fenced(self, generation: Generation, *, instance_fenced: bool = False) -> None:
        if self._membership is not None:
            self._membership.doubt(generation)

    def removed(self, generation: Generation, *, instance_fenced: bool = False) -> None:
        if self._membership is not None:
            self._membership.removed(generation)

    def stale(self, generation: Generation) -> None:
        if self._membership is not None:
            self._membership.stale(generation)

    def give_up(self, why: str) -> None:
        """Report all partitions as lost, and close. Brokers may refuse the protocol to a member that has some."""
        if self._membership is not None:
            self._membership.give_up(why)

    def close(self) -> None:
        if self._membership is not None:
            self._membership.close()

    async def leave(self, timeout: float) -> None:
        if self._membership is None:
            return
        try:
            async with asyncio.timeout(timeout * _PART):
                await self._membership.leave()
        except (kafka.KafkaError, LookUpRefused, OSError, TimeoutError) as error:
            logger.debug("The group was not left: %r", error, extra={"action": "group_not_left"})


class _Positions:
    """What aiokafka fetches."""

    def __init__(self, assignment: OwnAssignment, walk: FetchWalk) -> None:
        self._assignment = assignment
        self._walk = walk

    def add(self, partitions: Collection[TopicPartition]) -> None:
        self._assignment.add(partitions)
        for partition in partitions:
            self._walk.park(partition)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._walk.pause(partition)

    def remove(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._walk.forget(partition)
        self._assignment.remove(partitions)


def _re2(pattern: re.Pattern[str]) -> str:
    """The pattern for the brokers, which match whole names. Raises ConfigurationError if it has no such form."""
    if pattern.flags & re.VERBOSE:
        raise ConfigurationError(
            "topics", pattern, "a pattern without re.VERBOSE: the brokers match it, in the syntax of RE2/J"
        )
    return with_inline_flags(pattern)
