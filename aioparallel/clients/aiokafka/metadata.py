"""Topics and log ends, without creating topics."""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, TypeVar

import aiokafka.errors as kafka
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.client import ConnectionGroup
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.offset import OffsetRequest

from aioparallel.clients.aiokafka.aiokafka_errors import deadline
from aioparallel.clients.aiokafka.internals import ClusterView, Connections, Fetcher
from aioparallel.clients.aiokafka.message_classes import grouped
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.record import TopicPartition

__all__ = [
    "WholeName",
    "all_metadata",
    "cleanup_policy",
    "ends_at_leader",
    "keep_all_topics",
    "listed",
    "log_offsets",
    "log_ranges",
    "read_uncommitted",
    "topic_partitions",
]

T = TypeVar("T")

_POLICY: Final = "cleanup.policy"
_READ_UNCOMMITTED: Final = 0
_LATEST: Final = -1
_EARLIEST: Final = -2


class WholeName:
    """A topic pattern for aiokafka that must match the whole name."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    def __repr__(self) -> str:
        return repr(self._pattern)

    def match(self, topic: str) -> object:
        return self._pattern.fullmatch(topic)


def keep_all_topics(connections: Connections) -> None:
    """Keep requesting all topics, for a subscription by pattern.

    When aiokafka meets an unknown partition it calls ``add_topic``, which would reduce the metadata to this one topic.
    The pattern would then match nothing else, and the group would rebalance.
    """
    connections.add_topic = lambda _topic: connections.force_metadata_update()


async def all_metadata(connections: Connections) -> ClusterView:
    """The metadata of all topics. Raises NodeNotReadyError if no broker answers: a retry may succeed."""
    try:
        return await connections.fetch_all_metadata()
    except kafka.KafkaError as error:
        raise kafka.NodeNotReadyError from error  # aiokafka hides the cause ("over all known brokers")


async def topic_partitions(
    connections: Callable[[], Connections],
    topics: Collection[str] | re.Pattern[str],
    timeout: float,
    retry_backoff: float,
    exclude_internal_topics: bool = True,
) -> set[TopicPartition]:
    """All partitions of these topics, or of those whose whole name matches. Requests all topics, so none is created.

    ``connections()`` raises an error if the client cannot continue."""
    async with deadline(timeout, f"asking for the partitions of {_named(topics)}"):
        while True:
            try:
                cluster = await connections().fetch_all_metadata()
                break
            except kafka.KafkaError:
                # aiokafka hides the cause ("over all known brokers"); retry until the deadline.
                await asyncio.sleep(retry_backoff)
    known = cluster.topics(exclude_internal_topics)
    names = filter(topics.fullmatch, known) if isinstance(topics, re.Pattern) else set(topics)
    return {TopicPartition(name, number) for name in names for number in cluster.partitions_for_topic(name) or ()}


async def cleanup_policy(connections: Connections, topic: str, timeout: float) -> str | None:
    """The topic's ``cleanup.policy``, requested once from any broker. None if the request fails or is not allowed."""
    node = connections.get_random_node()
    if node is None:
        return None
    request = DescribeConfigsRequest(resources=[(ConfigResourceType.TOPIC, topic, [_POLICY])])
    try:
        async with asyncio.timeout(timeout):
            answer = await connections.send(node, request, group=ConnectionGroup.DEFAULT)
    except (kafka.KafkaError, TimeoutError):
        return None
    return next((entry[1] for resource in answer.resources for entry in resource[4] if entry[0] == _POLICY), None)


async def ends_at_leader(
    connections: Connections,
    leader: int,
    partitions: Collection[TopicPartition],
    which: int,
    *,
    read_committed: bool = False,
) -> dict[TopicPartition, int]:
    """The offsets that the leader reports for these logs, without those that it refuses. ``which``: -1 for the end, -2
    for the beginning. ``read_committed``: the end is the last stable offset."""
    topics = grouped((topic, (number, which)) for topic, number in partitions)
    answer = await connections.send(leader, OffsetRequest(-1, int(read_committed), list(topics.items())))
    return {
        TopicPartition(topic, number): offset
        for topic, answers in answer.topics
        for number, code, *_, offset in (entry[:4] for entry in answers)
        if code == ErrorCode.NONE
    }


async def log_ranges(
    connections: Connections, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, tuple[int, int]]:
    """The first and the next offset of each log. Left out are partitions that do not exist, as those of a topic that is
    deleted meanwhile, and partitions without a leader.

    Raises LeaderNotAvailableError if a leader refuses one of them: the metadata are old, or a topic has just gone."""
    cluster = await all_metadata(connections)
    leaders = ((cluster.leader_for_partition(partition), partition) for partition in partitions)
    by_leader = grouped((leader, partition) for leader, partition in leaders if leader is not None and leader >= 0)

    async def ask(which: int) -> dict[TopicPartition, int]:
        answers = [ends_at_leader(connections, leader, asked, which) for leader, asked in by_leader.items()]
        return {partition: at for answer in await asyncio.gather(*answers) for partition, at in answer.items()}

    begins, ends = await ask(_EARLIEST), await ask(_LATEST)
    asked = {partition for some in by_leader.values() for partition in some}
    if refused := asked.difference(begins.keys() & ends.keys()):
        raise kafka.LeaderNotAvailableError(min(refused))
    return {partition: (begins[partition], ends[partition]) for partition in asked}


async def log_offsets(
    fetcher: Fetcher,
    query: Callable[..., Awaitable[Mapping[TopicPartition, T]]],
    partitions: Collection[TopicPartition],
    timeout: float,
    what: str,
) -> dict[TopicPartition, T]:
    """The result of one of the fetcher's methods for these partitions, which aiokafka retries until the timeout.
    ``partitions``: with times, if it is a mapping."""
    asked = dict(partitions) if isinstance(partitions, Mapping) else list(partitions)
    # aiokafka would request the metadata of each unknown topic by itself, with a pause after each.
    for topic in {topic for topic, _ in asked}:
        if fetcher._client.cluster.partitions_for_topic(topic) is None:
            fetcher._client.add_topic(topic)
    async with deadline(timeout, f"asking for {what} of {listed(partitions)}"):
        found = await query(asked, timeout * 1000)
    return {TopicPartition(*tp): offset for tp, offset in found.items()}


def read_uncommitted(fetcher: Fetcher) -> Fetcher:
    """A copy, whose log ends include undecided transactions: the isolation level is an attribute of the fetcher."""
    copied = copy.copy(fetcher)
    copied._isolation_level = _READ_UNCOMMITTED
    return copied


def _named(topics: Collection[str] | re.Pattern[str]) -> str:
    return f"topics like {topics.pattern!r}" if isinstance(topics, re.Pattern) else ", ".join(sorted(topics))


def listed(partitions: Collection[TopicPartition]) -> str:
    """The first five of them, for a message."""
    first = ", ".join(str(TopicPartition(*tp)) for tp in sorted(partitions)[:5])
    return first if len(partitions) <= 5 else f"{first} and {len(partitions) - 5} more"
