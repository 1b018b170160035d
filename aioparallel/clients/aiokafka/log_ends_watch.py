"""Queries the log ends of assigned partitions that no fetch reports, and detects missing topics.

A fetch response contains the log end of each of its partitions. aiokafka does not fetch a partition while the buffer is
full or its data is not taken yet. The lag would not change then, and a broker failure would stay unnoticed. So such
partitions are queried, with one request per leader.

If the cluster does not have a topic, the group silently continues without it. Metadata is requested until the topic
appears. That may be soon: a broker that has just started may not know all topics yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final

from aioparallel.clients.aiokafka.fetching import FetchWalk
from aioparallel.clients.aiokafka.internals import Connections
from aioparallel.clients.aiokafka.message_classes import grouped
from aioparallel.clients.aiokafka.metadata import ends_at_leader
from aioparallel.clients.last_contacts import LastContacts
from aioparallel.records.record import TopicPartition

__all__ = ["LogEndsWatch"]

logger = logging.getLogger(__name__)

_PAUSE: Final = 2.0
"""Seconds between two checks."""
_OLD: Final = 3.0
"""Seconds after which a log end is queried."""
_LIMIT: Final = 5.0
"""Timeout of a request in seconds."""
_GONE: Final = 5.0
"""Seconds before a topic is reported as missing."""
_LATEST: Final = -1


class LogEndsWatch:
    """Watches the partitions that ``walk`` reads, for one client."""

    def __init__(
        self, connections: Connections, walk: FetchWalk, last_contacts: LastContacts, *, read_committed: bool
    ) -> None:
        self._connections = connections
        self._walk = walk
        self._contacts = last_contacts
        self._read_committed = read_committed
        self.topics: Collection[str] = ()
        """Topics subscribed by name."""
        self._missed_since: dict[str, float] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_PAUSE)
            self._look_for_topics()
            old = filter(self._is_old, self._walk.assigned)
            by_leader = grouped((leader, each) for each in old if (leader := self._leader(each)) is not None)
            await asyncio.gather(*(self._ask(leader, asked) for leader, asked in by_leader.items()))

    @property
    def leaderless(self) -> tuple[TopicPartition, ...]:
        return tuple(sorted(partition for partition in self._walk.assigned if self._leader(partition) is None))

    @property
    def missing(self) -> tuple[str, ...]:
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
        heard = self._contacts.since_end_received(partition)
        return self._walk.is_read(partition) and (heard is None or heard > _OLD)

    async def _ask(self, leader: int, partitions: Collection[TopicPartition]) -> None:
        try:
            async with asyncio.timeout(_LIMIT):
                ends = await ends_at_leader(
                    self._connections, leader, partitions, _LATEST, read_committed=self._read_committed
                )
        except Exception as error:  # of any kind: keep watching
            logger.debug("Broker %d does not tell log ends: %r", leader, error, extra={"action": "no_log_ends"})
            return
        seen = [partition for partition, end in ends.items() if self._walk.see_end(partition, end)]
        self._contacts.end_received(seen)
