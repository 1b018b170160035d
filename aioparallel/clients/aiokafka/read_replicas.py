"""Which broker each partition is read from (KIP-392): the follower that its leader names for this client's rack, for as
long as that follower answers; else the leader.

aiokafka follows the leader's hint alone. A follower that stands still is then waited for until the request times out.
One that was restarted is asked, refused and named again, without end: the leader names it for as long as it counts as
in sync. And a follower that the metadata does not list yet is named a thousand times a second. Here

* a fetch from a follower has a limit, and a follower that fails is avoided for a while, longer each time;
* the leader of a partition whose follower is avoided, or unknown, is asked without the rack, so that it answers itself;
* a follower that has an error for a partition sends it back to its leader, which may name it again later: one that was
  restarted does not have all yet, and OFFSET_OUT_OF_RANGE from one says nothing about where the log ends;
* the hint is good for half a minute. A follower that is cut off from its leader answers, and has nothing new.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any, Final, cast

import aiokafka.errors as kafka
from aiokafka.client import ConnectionGroup
from aiokafka.conn import CloseReason
from aiokafka.protocol.fetch import FetchRequest

from aioparallel.clients.aiokafka.internals import FetchAnswer, Fetcher
from aioparallel.codes import ErrorCode
from aioparallel.records import TopicPartition

__all__ = ["ReadReplicas"]

logger = logging.getLogger(__name__)

_LIMIT: Final = 3.0
"""Seconds for a follower's answer, beyond the time for which it may keep a fetch."""
_HINT: Final = 30.0
"""Seconds for which a partition is read from the follower that its leader has named, before the leader is asked anew.
"""
_BY_LEADER: Final = 5.0
"""Seconds for which a leader is asked without the rack, before it may name a follower again."""
_AVOIDED: Final = 10.0
_AVOIDED_LONGEST: Final = 300.0
"""Seconds without fetches from a follower that has failed; twice as many each time."""


class ReadReplicas:
    """Of one fetcher. Does nothing without a ``client_rack``; else it puts itself before two of the fetcher's methods
    and ``send`` of its connections, once. ``fetch_wait``: seconds for which a broker may keep a fetch waiting."""

    def __init__(self, fetcher: Fetcher, fetch_wait: float) -> None:
        self._fetcher = fetcher
        self._connections = fetcher._client
        self._limit = fetch_wait + _LIMIT
        self._loop = asyncio.get_running_loop()
        self._avoided: dict[int, tuple[float, float]] = {}  # until when, and for how long
        self._by_leader: dict[TopicPartition, float] = {}  # until when
        if fetcher._client_rack:
            fetcher._select_read_replica = self.select
            fetcher._update_preferred_read_replica = self.named
            self._send = cast("Callable[..., Any]", self._connections.send)
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
        """``Fetcher._update_preferred_read_replica``: the leader has named this broker in place of an answer. -1: it
        answers itself."""
        if follower < 0:
            return
        if self._may_be_asked(follower):
            self._fetcher._preferred_read_replica[partition] = follower, self._loop.time() + _HINT
            return
        if self._connections.cluster.broker_metadata(follower) is None:
            self._connections.force_metadata_update()
        self._by_leader[partition] = self._loop.time() + _BY_LEADER

    def _may_be_asked(self, follower: int) -> bool:
        """Whether the metadata knows it, and it has not failed lately."""
        is_avoided = follower in self._avoided and self._loop.time() < self._avoided[follower][0]
        return not is_avoided and self._connections.cluster.broker_metadata(follower) is not None

    async def send(self, node_id: int, request: object, *, group: int = ConnectionGroup.DEFAULT) -> object:
        """``AIOKafkaClient.send``."""
        if not isinstance(request, FetchRequest):
            return await self._send(node_id, request, group=group)
        asked = [TopicPartition(topic, number) for topic, parts in request.topics for number, *_ in parts]
        followed = {p for p in asked if self._connections.cluster.leader_for_partition(p) != node_id}
        if self._is_by_leader(asked):
            request._rack_id = ""  # what else is in it is read from this broker, too
        if not followed:
            return await self._send(node_id, request, group=group)
        try:
            async with asyncio.timeout(self._limit):
                answer = await self._send(node_id, request, group=group)
        except TimeoutError:
            # A late answer would come beside the leader's.
            if (connection := self._connections._conns.get((node_id, group))) is not None:
                connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
            self._avoid(node_id, "it does not answer")
            raise kafka.RequestTimedOutError(f"broker {node_id} does not answer") from None
        except kafka.KafkaError as error:
            self._avoid(node_id, repr(error))
            raise
        self._avoided.pop(node_id, None)
        self._leave_to_leaders(cast("FetchAnswer", answer), followed)
        return cast("object", answer)

    def _is_by_leader(self, asked: Collection[TopicPartition]) -> bool:
        now = self._loop.time()
        found = [partition for partition in asked if partition in self._by_leader]
        for partition in found:
            if self._by_leader[partition] <= now:
                del self._by_leader[partition]
        return any(partition in self._by_leader for partition in found)

    def _avoid(self, follower: int, why: str) -> None:
        _, before = self._avoided.get(follower, (0.0, _AVOIDED / 2))
        seconds = min(before * 2, _AVOIDED_LONGEST)
        self._avoided[follower] = self._loop.time() + seconds, seconds
        logger.info(
            "Broker %d, a follower that leaders name for this rack, fails: partitions are read from their leaders for "
            "%.0f s: %s",
            follower,
            seconds,
            why,
            extra={"action": "follower_avoided", "node": follower},
        )

    def _leave_to_leaders(self, answer: FetchAnswer, followed: Collection[TopicPartition]) -> None:
        """What a follower has answered with an error. aiokafka forgets its hint at any, and asks again."""
        for topic, parts in answer.topics:
            entries = cast("list[tuple[Any, ...]]", parts)
            for index, (number, code, *rest) in enumerate(entries):
                partition = TopicPartition(topic, number)
                if code == ErrorCode.NONE or partition not in followed:
                    continue
                self._by_leader[partition] = self._loop.time() + _BY_LEADER
                if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    entries[index] = (number, int(ErrorCode.REPLICA_NOT_AVAILABLE), *rest)
