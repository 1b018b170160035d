"""Where the logs of assigned partitions end, for those that nothing tells of; and topics that are not there.

A fetch tells it of each partition that it asks for. While the buffer is full, or what was fetched is not taken yet,
nothing is asked: the lag would stand still, and a broker could be gone unseen. So such partitions are asked about by
themselves, each leader by a request of its own.

A topic that the cluster does not have is nobody's partition: the group goes on without it, in silence. Metadata is
asked for until it is there again, which may be at once: a broker that has just started may not know all topics yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection
from typing import Final, cast

from aiokafka.protocol.offset import OffsetRequest

from aioparallel.clients.aiokafka.fetching import FetchWalk
from aioparallel.clients.aiokafka.internals import Connections, OffsetAnswer
from aioparallel.clients.last_contacts import LastContacts
from aioparallel.codes import ErrorCode
from aioparallel.records import TopicPartition

__all__ = ["LogEndsWatch"]

logger = logging.getLogger(__name__)

_PAUSE: Final = 2.0
"""Seconds between two looks."""
_OLD: Final = 3.0
"""Seconds after which somebody is asked."""
_LIMIT: Final = 5.0
"""Seconds for an answer."""
_GONE: Final = 5.0
"""Seconds after which a topic is told as missing."""
_LATEST: Final = -1


class LogEndsWatch:
    """Of one client, over what its ``walk`` reads."""

    def __init__(
        self, connections: Connections, walk: FetchWalk, last_contacts: LastContacts, *, read_committed: bool
    ) -> None:
        self._connections = connections
        self._walk = walk
        self._contacts = last_contacts
        self._read_committed = read_committed
        self.topics: Collection[str] = ()
        """Those that are read by their names."""
        self._missed_since: dict[str, float] = {}

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(_PAUSE)
            self._look_for_topics()
            by_leader: defaultdict[int, list[TopicPartition]] = defaultdict(list)
            for partition in filter(self._is_old, self._walk.assigned):
                if (leader := self._leader(partition)) is not None:
                    by_leader[leader].append(partition)
            await asyncio.gather(*(self._ask(leader, asked) for leader, asked in by_leader.items()))

    @property
    def leaderless(self) -> tuple[TopicPartition, ...]:
        """Assigned partitions without a leader."""
        return tuple(sorted(partition for partition in self._walk.assigned if self._leader(partition) is None))

    @property
    def missing(self) -> tuple[str, ...]:
        """Topics that the cluster has not had for a while."""
        now = asyncio.get_running_loop().time()
        return tuple(sorted(topic for topic, since in self._missed_since.items() if now - since >= _GONE))

    def _look_for_topics(self) -> None:
        known = self._connections.cluster.partitions_for_topic
        now = asyncio.get_running_loop().time()
        missed = [topic for topic in self.topics if known(topic) is None]
        self._missed_since = {topic: self._missed_since.get(topic, now) for topic in missed}
        if missed:
            self._connections.force_metadata_update()

    def _leader(self, partition: TopicPartition) -> int | None:
        leader = self._connections.cluster.leader_for_partition(partition)
        return None if leader is None or leader < 0 else leader

    def _is_old(self, partition: TopicPartition) -> bool:
        """Whether it is read, and nothing was heard of it for a while."""
        heard = self._contacts.since_heard(partition)
        return self._walk.is_read(partition) and (heard is None or heard > _OLD)

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
                if code == ErrorCode.NONE and self._walk.see_end(asked, offset):
                    self._contacts.heard([asked])
