"""Detects logs that were replaced or truncated since they were last read (KIP-320, KIP-516).

aiokafka's metadata has neither topic ids nor leader epochs. A topic that was deleted and recreated has another id. A
log whose new leader lacks the newest records has another leader epoch from that position on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import aiokafka.errors as kafka

from aioparallel.clients.aiokafka.first_answer import first_answer
from aioparallel.clients.aiokafka.group_messages import leader_epoch_ends_request
from aioparallel.clients.aiokafka.internals import Connections
from aioparallel.clients.aiokafka.message_classes import grouped
from aioparallel.clients.aiokafka.metadata import ends_at_leader
from aioparallel.clients.aiokafka.metadata_messages import topic_ids_request
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.record import TopicPartition

__all__ = ["LogIdentity"]

logger = logging.getLogger(__name__)

_PAUSE: Final = 5.0
"""Seconds between two checks of ids and leaders."""
_SOON: Final = 0.5
"""Seconds between two checks while the id of a topic is unknown."""
_LIMIT: Final = 5.0
"""Timeout of a request in seconds."""
_FRESH: Final = 2.0
"""Seconds for newer metadata. Brokers that hang cost one second each."""
_LATE: Final = 0.5
"""Seconds to wait for other leaders after the first answer."""
_UNKNOWN: Final = -1
_LATEST, _EARLIEST = -1, -2


_Asking = asyncio.Task[Mapping[str, bytes] | kafka.KafkaError]


class LogIdentity:
    """Topic ids and leader epochs of one client's partitions, and how far their logs are still valid.

    ``brokers()``: the brokers in the order to ask them. ``assigned()``: the member's partitions. ``on_changed()`` is
    called when :attr:`changed` is not empty.
    """

    def __init__(
        self,
        connections: Connections,
        brokers: Callable[[], Collection[int]],
        assigned: Callable[[], Collection[TopicPartition]],
        on_changed: Callable[[], None],
    ) -> None:
        self._connections = connections
        self._brokers = brokers
        self._assigned = assigned
        self._on_changed = on_changed
        self._leaders: dict[TopicPartition, int] = {}
        self._has_ids = True
        self._asking: dict[frozenset[str], _Asking] = {}  # before it is sent
        self._requests: set[_Asking] = set()
        self.ids: dict[str, bytes] = {}
        self.changed: set[TopicPartition] = set()
        """Partitions with a new leader epoch or topic id that have not been examined since."""

    async def run(self) -> None:
        """Check again and again; ends if the brokers do not support topic ids."""
        while self._has_ids:
            topics = {partition.topic for partition in self._assigned()}
            if topics:
                await self._look(topics)
            await asyncio.sleep(_PAUSE if topics and topics <= self.ids.keys() else _SOON)

    async def _look(self, topics: Collection[str]) -> None:
        try:
            async with asyncio.timeout(_LIMIT):
                answer = await self._metadata(topics)
        except Exception as error:  # of any kind: keep checking
            logger.debug("No topic ids: %r", error, extra={"action": "no_topic_ids"})
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
                    self.changed.add(partition)
        for gone in self._leaders.keys() - held:
            del self._leaders[gone]
        self.changed &= held
        if self.changed:
            self._on_changed()

    async def _metadata(self, topics: Collection[str]) -> Any:
        """Ask one broker after the other: one that hangs would hold up every partition whose leader it was, because
        their new leaders are checked. None without ids. Raises the last KafkaError if all fail."""
        failure: kafka.KafkaError | None = None

        async def ask(node: int) -> Any:
            nonlocal failure
            try:
                return await self._connections.send(node, topic_ids_request(topics))
            except kafka.IncompatibleBrokerVersion:
                self._has_ids = False
            except kafka.KafkaError as error:
                failure = error
            return None

        answer = await first_answer(self._brokers(), ask)
        if answer is None and failure is not None and self._has_ids:
            raise failure
        return answer

    async def topic_ids(self, topics: Collection[str], timeout: float) -> dict[str, bytes]:
        """Query topic ids. Topics whose id is not available are left out. Raises TimeoutError."""
        if not self._has_ids:
            return {}
        async with asyncio.timeout(timeout):
            found = await asyncio.shield(self._asked_together(frozenset(topics)))
        if isinstance(found, Exception):
            raise TimeoutError(f"asking for the ids of {', '.join(topics)}: {found!r}") from found
        return dict(found)

    def close(self) -> None:
        for task in self._requests:
            task.cancel()

    def _asked_together(self, topics: frozenset[str]) -> _Asking:
        """One request for all callers of the same loop turn. When a broker fails, each of its partitions asks, and
        every answer covers all of them. No caller gets the answer to an earlier request."""
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
            self.ids.setdefault(topic, topic_id)  # run() reports a changed id
        return found

    # -- how far a log is valid

    async def valid_ends(self, epochs: Mapping[TopicPartition, int], timeout: float) -> dict[TopicPartition, int]:
        """See :meth:`Client.valid_ends <aioparallel.group.client.Client.valid_ends>`. Each leader gets a request of its
        own. Silent leaders are not waited for much longer than the others."""
        # A leader of earlier metadata may hang, and the partition have another one by now.
        await asyncio.wait([self._connections.force_metadata_update()], timeout=_FRESH)
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
        try:
            known = {partition: epoch for partition, epoch in epochs.items() if epoch != _UNKNOWN}
            found, foreign = await self._epoch_ends(leader, known)
            if foreign:
                found |= await ends_at_leader(self._connections, leader, foreign, _EARLIEST)
            if left := [partition for partition in epochs if epochs[partition] == _UNKNOWN]:
                found |= await ends_at_leader(self._connections, leader, left, _LATEST)
        except (kafka.KafkaError, OSError) as error:
            logger.debug("No log ends from broker %d: %r", leader, error, extra={"action": "no_log_ends"})
            self._connections.force_metadata_update()
            return {}
        return found

    async def _epoch_ends(
        self, leader: int, epochs: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, int], list[TopicPartition]]:
        """The end offsets of the epochs, and the partitions whose log never had the epoch."""
        if not epochs:
            return {}, []
        topics = grouped((topic, (number, epoch)) for (topic, number), epoch in epochs.items())
        try:
            answer = await self._connections.send(leader, leader_epoch_ends_request(topics))
        except kafka.IncompatibleBrokerVersion:
            return await ends_at_leader(self._connections, leader, list(epochs), _LATEST), []
        found: dict[TopicPartition, int] = {}
        foreign: list[TopicPartition] = []
        for topic, answers in answer.topics:
            for code, number, epoch, end in answers:
                if code != ErrorCode.NONE:
                    self._connections.force_metadata_update()
                elif epoch == _UNKNOWN or end < 0:
                    foreign.append(TopicPartition(topic, number))
                else:
                    found[TopicPartition(topic, number)] = end
        return found, foreign


def _topics_in(answer: Any) -> list[tuple[str, bytes, list[tuple[int, int]]]]:
    """Name, id, and number and leader epoch of each partition, of the topics that exist."""
    return [
        (
            topic[1],
            topic[2],
            [(entry[1], entry[3]) for entry in topic[4] if entry[3] >= 0],
        )
        for topic in answer.topics
        if topic[0] == ErrorCode.NONE and topic[1] and any(topic[2])
    ]
