"""Chooses the broker to read each partition from (KIP-392): the follower that the leader prefers for this client's
rack, as long as it answers; otherwise the leader.

aiokafka only follows the leader's preference. If that follower hangs, aiokafka waits for the request timeout. If it was
restarted, aiokafka asks it, is refused and is sent back, without end: the leader prefers it as long as it counts as in
sync. If it is not in the metadata yet, aiokafka asks the leader a thousand times a second. Therefore:

* A fetch from a follower has a timeout. A follower that fails is avoided for a while, longer each time.
* A leader is asked without the rack, so that it answers itself, if the follower is avoided or unknown.
* If a follower returns an error for a partition, the partition is read from its leader, which may prefer the follower
  again later. A restarted follower may lack records, so its OFFSET_OUT_OF_RANGE says nothing about the end of the log.
* A preference expires after half a minute, because a follower that is cut off from its leader answers without new
  records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any, Final

import aiokafka.errors as kafka
from aiokafka.client import ConnectionGroup
from aiokafka.protocol.fetch import FetchRequest

from aioparallel.clients.aiokafka.connector import close_silent
from aioparallel.clients.aiokafka.internals import Fetcher
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.record import TopicPartition

__all__ = ["ReadReplicas"]

logger = logging.getLogger(__name__)

_LIMIT: Final = 3.0
"""Seconds for a follower's answer, beyond the fetch's maximum wait."""
_HINT: Final = 30.0
"""Seconds for which a preference is valid before the leader is asked again."""
_BY_LEADER: Final = 5.0
"""Seconds for which a leader is asked without the rack."""
_AVOIDED: Final = 10.0
_AVOIDED_LONGEST: Final = 300.0
"""Shortest and longest time in seconds for which a failed follower is avoided. The time doubles with each failure."""


class ReadReplicas:
    """The read replicas of one fetcher. Wraps two of its methods and ``send`` of its connections, if a ``client_rack``
    is set. ``fetch_wait``: the fetch's maximum wait in seconds."""

    def __init__(self, fetcher: Fetcher, fetch_wait: float) -> None:
        self._fetcher = fetcher
        self._connections = fetcher._client
        self._limit = fetch_wait + _LIMIT
        self._loop = asyncio.get_running_loop()
        self._avoided: dict[int, tuple[float, float]] = {}  # end time and length
        self._by_leader: dict[TopicPartition, float] = {}  # end time
        if fetcher._client_rack:
            fetcher._select_read_replica = self.select
            fetcher._update_preferred_read_replica = self.named
            self._send = self._connections.send
            self._connections.send = self.send  # type: ignore[method-assign]

    def select(self, partition: TopicPartition) -> int | None:
        """``Fetcher._select_read_replica``: the broker to fetch from."""
        leader = self._connections.cluster.leader_for_partition(partition)
        if (hint := self._fetcher._preferred_read_replica.get(partition)) is not None:
            follower, until = hint
            if self._loop.time() < until and self._may_be_asked(follower):
                return follower
            del self._fetcher._preferred_read_replica[partition]
        return leader

    def named(self, partition: TopicPartition, follower: int) -> None:
        """``Fetcher._update_preferred_read_replica``: the leader prefers this follower. -1: the leader answers
        itself."""
        if follower < 0:
            return
        if self._may_be_asked(follower):
            self._fetcher._preferred_read_replica[partition] = follower, self._loop.time() + _HINT
            return
        if self._connections.cluster.broker_metadata(follower) is None:
            self._connections.force_metadata_update()
        self._by_leader[partition] = self._loop.time() + _BY_LEADER

    def _may_be_asked(self, follower: int) -> bool:
        is_avoided = follower in self._avoided and self._loop.time() < self._avoided[follower][0]
        return not is_avoided and self._connections.cluster.broker_metadata(follower) is not None

    async def send(self, node_id: int, request: Any, *, group: int = ConnectionGroup.DEFAULT) -> Any:
        """``AIOKafkaClient.send``, with a timeout for fetches from followers."""
        if not isinstance(request, FetchRequest):
            return await self._send(node_id, request, group=group)
        asked = [TopicPartition(topic, number) for topic, parts in request.topics for number, *_ in parts]
        followed = {p for p in asked if self._connections.cluster.leader_for_partition(p) != node_id}
        if self._is_by_leader(asked):
            request._rack_id = ""  # the request's other partitions are read from this broker as well
        if not followed:
            return await self._send(node_id, request, group=group)
        try:
            async with asyncio.timeout(self._limit):
                answer = await self._send(node_id, request, group=group)
        except TimeoutError:
            # Close the connection, so that a late answer does not compete with the leader's.
            failure = close_silent(self._connections, node_id, group)
            self._avoid(node_id, "it does not answer")
            raise failure from None
        except kafka.KafkaError as error:
            self._avoid(node_id, repr(error))
            raise
        self._avoided.pop(node_id, None)
        self._leave_to_leaders(answer, followed)
        return answer

    def _is_by_leader(self, asked: Collection[TopicPartition]) -> bool:
        now = self._loop.time()
        self._by_leader = {partition: until for partition, until in self._by_leader.items() if until > now}
        return any(partition in self._by_leader for partition in asked)

    def _avoid(self, follower: int, why: str) -> None:
        _, before = self._avoided.get(follower, (0.0, _AVOIDED / 2))
        seconds = min(before * 2, _AVOIDED_LONGEST)
        self._avoided[follower] = self._loop.time() + seconds, seconds
        logger.info(
            "Broker %d, the preferred read replica for this rack, fails: partitions are read from their leaders for "
            "%.0f s: %s",
            follower,
            seconds,
            why,
            extra={"action": "follower_avoided", "node": follower},
        )

    def _leave_to_leaders(self, answer: Any, followed: Collection[TopicPartition]) -> None:
        """Read partitions from their leaders for which a follower returned an error. aiokafka drops its preference
        after any error, and asks the leader again."""
        for topic, entries in answer.topics:
            for index, (number, code, *rest) in enumerate(entries):
                partition = TopicPartition(topic, number)
                if code == ErrorCode.NONE or partition not in followed:
                    continue
                self._by_leader[partition] = self._loop.time() + _BY_LEADER
                if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    entries[index] = (number, int(ErrorCode.REPLICA_NOT_AVAILABLE), *rest)
