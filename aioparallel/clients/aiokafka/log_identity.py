"""Whether the logs that are read are those that were read before (KIP-320, KIP-516).

aiokafka's metadata has neither topic ids nor leader epochs, and its batches hide the epoch that is in their bytes. A
topic that was deleted and made anew has another id, a log that a leader without its newest records has taken over has
another leader epoch from there on.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, cast

import aiokafka.errors as kafka
from aiokafka.protocol.offset import OffsetRequest

from aioparallel.clients.aiokafka.internals import Connections, FetchAnswer, OffsetAnswer
from aioparallel.clients.aiokafka.offset_messages import OffsetForLeaderEpoch, TopicIds
from aioparallel.codes import ErrorCode
from aioparallel.records import TopicPartition

__all__ = ["FetchedEpochs", "LogIdentity"]

logger = logging.getLogger(__name__)

_PAUSE: Final = 5.0
"""Seconds between two looks at ids and leaders."""
_SOON: Final = 0.5
"""The same while the id of some topic is not known."""
_LIMIT: Final = 5.0
"""Seconds for an answer."""
_LATE: Final = 0.5
"""Seconds that answers of other leaders are waited for after the first."""
_UNKNOWN: Final = -1
_LATEST, _EARLIEST = -1, -2
_HEAD: Final = struct.Struct(">qiib")
"""Of a batch: base offset, length of what follows these twelve bytes, leader epoch, and the format's version."""
_SIZED: Final = 12
_FIRST_WITH_EPOCH: Final = 2
_KEPT: Final = 64
"""Changes of the epoch within what is fetched and not taken."""


_Asking = asyncio.Task[Mapping[str, bytes] | kafka.KafkaError]


class FetchedEpochs:
    """Leader epochs of what was fetched, by partition: pairs of first offset and epoch."""

    def __init__(self) -> None:
        self._seen: dict[TopicPartition, list[tuple[int, int]]] = {}

    def heard(self, answer: FetchAnswer) -> None:
        """What a fetch brought, which may not be taken."""
        for topic, entries in answer.topics:
            for entry in entries:
                if entry[1] == ErrorCode.NONE and (data := cast("bytes | None", entry[-1])):
                    self._note(TopicPartition(topic, entry[0]), data)

    def _note(self, partition: TopicPartition, data: bytes) -> None:
        seen = self._seen.setdefault(partition, [])
        at, end = 0, len(data) - _HEAD.size
        while at <= end:
            offset, length, epoch, version = _HEAD.unpack_from(data, at)
            if length < 0:
                return  # not a batch; whoever decodes it says so
            at += _SIZED + length
            if version < _FIRST_WITH_EPOCH:
                continue
            if seen and offset < seen[-1][0]:
                del seen[bisect_right(seen, offset, key=lambda pair: pair[0]) :]  # it was sought back
            if not seen or seen[-1][1] != epoch:
                seen.append((offset, epoch))
        del seen[:-_KEPT]

    def taken(self, partition: TopicPartition, end: int) -> tuple[tuple[int, int], ...]:
        """Those of what was taken, up to this offset. What is older is forgotten."""
        seen = self._seen.get(partition)
        if not seen:
            return ()
        if len(seen) == 1:
            return (seen[0],) if seen[0][0] < end else ()
        at = bisect_right(seen, end - 1, key=lambda pair: pair[0])
        found = tuple(seen[:at])
        del seen[: max(0, at - 1)]
        return found

    def forget(self, partition: TopicPartition) -> None:
        """It is read from elsewhere."""
        self._seen.pop(partition, None)


class LogIdentity:
    """Of one client: topic ids and leaders, and what is left of a leader's records.

    ``assigned``: the partitions that the member holds. ``on_news()`` hears that :attr:`news` has something.
    """

    def __init__(
        self,
        connections: Connections,
        assigned: Callable[[], Collection[TopicPartition]],
        on_news: Callable[[], None],
    ) -> None:
        self._connections = connections
        self._assigned = assigned
        self._on_news = on_news
        self._leaders: dict[TopicPartition, int] = {}
        self._is_told = True
        self._asking: dict[frozenset[str], _Asking] = {}  # before it is sent
        self._requests: set[_Asking] = set()
        self.ids: dict[str, bytes] = {}
        self.news: set[TopicPartition] = set()
        """Partitions that another leader leads, or whose topic was made anew, since that was looked at last."""

    async def run(self) -> None:
        """Look, for ever; at the end of it where brokers tell no ids."""
        while self._is_told:
            topics = {partition.topic for partition in self._assigned()}
            if topics:
                await self._look(topics)
            await asyncio.sleep(_PAUSE if topics and topics <= self.ids.keys() else _SOON)

    async def _look(self, topics: Collection[str]) -> None:
        try:
            async with asyncio.timeout(_LIMIT):
                answer = await self._metadata(topics)
        except Exception as error:  # whatever it is, this goes on
            logger.debug("Nobody tells topic ids: %r", error, extra={"action": "no_topic_ids"})
            return
        if answer is None:
            return
        held = set(self._assigned())
        for topic, topic_id, leaders in _topics_in(answer):
            is_new = self.ids.get(topic, topic_id) != topic_id
            self.ids[topic] = topic_id
            for number, epoch in leaders:
                partition = TopicPartition(topic, number)
                before = self._leaders.get(partition, epoch)
                self._leaders[partition] = epoch
                if (is_new or before != epoch) and partition in held:
                    self.news.add(partition)
        for gone in self._leaders.keys() - held:
            del self._leaders[gone]
        self.news &= held
        if self.news:
            self._on_news()

    async def _metadata(self, topics: Collection[str]) -> Any:
        node = self._connections.get_random_node()
        if node is None:
            return None
        try:
            return await self._connections.send(node, TopicIds(topics))
        except kafka.IncompatibleBrokerVersion:
            self._is_told = False
            return None

    async def topic_ids(self, topics: Collection[str], timeout: float) -> dict[str, bytes]:
        """Asked now. Those that no broker tells are not in the result; raises TimeoutError."""
        if not self._is_told:
            return {}
        async with asyncio.timeout(timeout):
            found = await asyncio.shield(self._asked_together(frozenset(topics)))
        if isinstance(found, Exception):
            raise TimeoutError(f"asking for the ids of {', '.join(topics)}: {found!r}") from found
        return dict(found)

    def close(self) -> None:
        """Nobody waits for an answer any more."""
        for task in self._requests:
            task.cancel()

    def _asked_together(self, topics: frozenset[str]) -> _Asking:
        """One request for all who ask in the same turn: where a broker goes, each of its partitions asks, and each
        answer tells of all of them. Nobody gets an answer to what was asked before."""
        if (asking := self._asking.get(topics)) is None:
            asking = self._asking[topics] = asyncio.create_task(self._ask(topics), name="aioparallel-topic-ids")
            self._requests.add(asking)
            asking.add_done_callback(self._requests.discard)
        return asking

    async def _ask(self, topics: frozenset[str]) -> Mapping[str, bytes] | kafka.KafkaError:
        await asyncio.sleep(0)
        del self._asking[topics]
        try:
            answer = await self._metadata(topics)
        except kafka.KafkaError as error:
            return error
        found = {} if answer is None else {topic: topic_id for topic, topic_id, _ in _topics_in(answer)}
        for topic, topic_id in found.items():
            self.ids.setdefault(topic, topic_id)  # another one than before is news, of which run() tells
        return found

    # -- what is left of a log --------------------------------------------------------------------------

    async def valid_ends(self, epochs: Mapping[TopicPartition, int], timeout: float) -> dict[TopicPartition, int]:
        """See :meth:`Client.valid_ends <aioparallel.group.client.Client.valid_ends>`. Each leader is asked by itself;
        one that does not answer is not waited for much longer than the others."""
        by_leader: defaultdict[int, dict[TopicPartition, int]] = defaultdict(dict)
        for partition, epoch in epochs.items():
            leader = self._connections.cluster.leader_for_partition(partition)
            if leader is None or leader < 0:
                self._connections.add_topic(partition.topic)
                self._connections.force_metadata_update()
            else:
                by_leader[leader][partition] = epoch
        asking = {asyncio.create_task(self._ends(leader, asked)) for leader, asked in by_leader.items()}
        if not asking:
            return {}
        try:
            done, left = await asyncio.wait(asking, timeout=min(timeout, _LIMIT), return_when=asyncio.FIRST_COMPLETED)
            if left:
                done |= (await asyncio.wait(left, timeout=_LATE))[0]
            return {partition: end for task in done for partition, end in task.result().items()}
        finally:
            for task in asking:
                task.cancel()

    async def _ends(self, leader: int, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Those that this leader tells."""
        try:
            known = {partition: epoch for partition, epoch in epochs.items() if epoch != _UNKNOWN}
            found, foreign = await self._epoch_ends(leader, known)
            if foreign:
                found |= await self._log_ends(leader, foreign, _EARLIEST)
            if left := [partition for partition in epochs if epochs[partition] == _UNKNOWN]:
                found |= await self._log_ends(leader, left, _LATEST)
        except (kafka.KafkaError, OSError) as error:
            logger.debug("Broker %d does not tell what is left: %r", leader, error, extra={"action": "no_log_ends"})
            self._connections.force_metadata_update()
            return {}
        return found

    async def _epoch_ends(
        self, leader: int, epochs: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, int], list[TopicPartition]]:
        """And those whose log never had that leader."""
        if not epochs:
            return {}, []
        topics: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for (topic, number), epoch in epochs.items():
            topics[topic].append((number, epoch))
        try:
            answer = cast("Any", await self._connections.send(leader, OffsetForLeaderEpoch(topics)))
        except kafka.IncompatibleBrokerVersion:
            return await self._log_ends(leader, list(epochs), _LATEST), []
        found: dict[TopicPartition, int] = {}
        foreign: list[TopicPartition] = []
        for topic, told in answer.topics:
            for code, number, epoch, end in told:
                if code != ErrorCode.NONE:
                    self._connections.force_metadata_update()
                elif epoch == _UNKNOWN or end < 0:
                    foreign.append(TopicPartition(topic, number))
                else:
                    found[TopicPartition(topic, number)] = end
        return found, foreign

    async def _log_ends(
        self, leader: int, partitions: Collection[TopicPartition], which: int
    ) -> dict[TopicPartition, int]:
        """Where logs begin, or end, whatever is decided."""
        topics: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for topic, number in partitions:
            topics[topic].append((number, which))
        answer = cast("OffsetAnswer", await self._connections.send(leader, OffsetRequest(-1, 0, list(topics.items()))))
        return {
            TopicPartition(topic, number): offset
            for topic, told in answer.topics
            for number, code, *_, offset in (entry[:4] for entry in told)
            if code == ErrorCode.NONE
        }


def _topics_in(answer: Any) -> list[tuple[str, bytes, list[tuple[int, int]]]]:
    """Name, id, and each partition with its leader's epoch, of those that are there."""
    return [
        (
            topic[1],
            topic[2],
            [(entry[1], entry[3]) for entry in topic[4] if entry[3] >= 0],
        )
        for topic in answer.topics
        if topic[0] == ErrorCode.NONE and topic[1] and any(topic[2])
    ]
