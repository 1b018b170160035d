"""Topics and log ends, without creating topics."""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Collection, Mapping
from typing import Final, cast

import aiokafka.errors as kafka
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.client import ConnectionGroup
from aiokafka.protocol.admin import DescribeConfigsRequest

from aioparallel.clients.aiokafka.errors import deadline
from aioparallel.clients.aiokafka.internals import ClusterView, ConfigsAnswer, Connections, Consumer, Fetcher
from aioparallel.records import TopicPartition

__all__ = ["LogEnds", "WholeName", "cleanup_policy", "keep_all_topics", "topic_partitions"]

_POLICY: Final = "cleanup.policy"
_READ_UNCOMMITTED: Final = 0


class WholeName:
    """A pattern for aiokafka, which asks ``match``: here the whole name of the topic must match."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    def __repr__(self) -> str:
        return repr(self._pattern)

    def match(self, topic: str) -> object:
        """A match, or None."""
        return self._pattern.fullmatch(topic)


def keep_all_topics(connections: Connections) -> None:
    """For a subscription by pattern: go on asking for all topics.

    aiokafka's ``add_topic``, called for a partition it does not know, would begin a list with this one topic; the
    pattern would then match nothing else, and the group would rebalance.
    """
    connections.add_topic = lambda _topic: connections.force_metadata_update()


async def topic_partitions(
    consumer: Consumer, topics: Collection[str] | re.Pattern[str], timeout: float, retry_backoff: float
) -> set[TopicPartition]:
    """All partitions of these topics, or of those whose whole name matches. Asks for all topics: creates none."""
    async with deadline(timeout, f"asking for the partitions of {_named(topics)}"):
        cluster = await _all_topics(consumer, retry_backoff)
    known = cluster.topics(consumer._exclude_internal_topics)
    names = filter(topics.fullmatch, known) if isinstance(topics, re.Pattern) else set(topics)
    return {TopicPartition(name, number) for name in names for number in cluster.partitions_for_topic(name) or ()}


async def cleanup_policy(connections: Connections, topic: str, timeout: float) -> str | None:
    """The topic's ``cleanup.policy``, asked of any broker, once; None where that does not tell: not for everybody, or
    not at all."""
    node = connections.get_random_node()
    if node is None:
        return None
    request = DescribeConfigsRequest(resources=[(ConfigResourceType.TOPIC, topic, [_POLICY])])
    try:
        async with asyncio.timeout(timeout):
            answer = cast("ConfigsAnswer", await connections.send(node, request, group=ConnectionGroup.DEFAULT))
    except (kafka.KafkaError, TimeoutError):
        return None
    return next((entry[1] for resource in answer.resources for entry in resource[4] if entry[0] == _POLICY), None)


async def _all_topics(consumer: Consumer, retry_backoff: float) -> ClusterView:
    while True:
        try:
            return await consumer._client.fetch_all_metadata()
        except kafka.KafkaError:
            # aiokafka says "over all known brokers" and not why; whatever it was, the deadline ends it.
            await asyncio.sleep(retry_backoff)


class LogEnds:
    """Where logs begin and end, asked from the brokers. aiokafka tries on for the time it is given."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    async def beginning(self, partitions: Collection[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        """The first offset each log holds."""
        async with deadline(timeout, f"asking for the first offsets of {_listed(partitions)}"):
            found = await self._fetcher.beginning_offsets(list(partitions), timeout * 1000)
        return {TopicPartition(*tp): offset for tp, offset in found.items()}

    async def end(self, partitions: Collection[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        """The offset the next record gets; under read_committed the end of what is decided."""
        return await self._end(self._fetcher, partitions, timeout)

    async def written(self, partitions: Collection[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        """The offset the next record gets, whatever is decided."""
        # One that asks for the other isolation level: the level is the fetcher's, no argument.
        fetcher = copy.copy(self._fetcher)
        fetcher._isolation_level = _READ_UNCOMMITTED
        return await self._end(fetcher, partitions, timeout)

    @staticmethod
    async def _end(
        fetcher: Fetcher, partitions: Collection[TopicPartition], timeout: float
    ) -> dict[TopicPartition, int]:
        async with deadline(timeout, f"asking for the end offsets of {_listed(partitions)}"):
            found = await fetcher.end_offsets(list(partitions), timeout * 1000)
        return {TopicPartition(*tp): offset for tp, offset in found.items()}

    async def at(self, times: Mapping[TopicPartition, int], timeout: float) -> dict[TopicPartition, int | None]:
        """The first offset at or after each time (milliseconds since the epoch), or None."""
        async with deadline(timeout, f"asking for offsets by time of {_listed(times)}"):
            found = await self._fetcher.get_offsets_by_times(dict(times), timeout * 1000)
        return {TopicPartition(*tp): None if at is None else at.offset for tp, at in found.items()}


def _named(topics: Collection[str] | re.Pattern[str]) -> str:
    return f"topics like {topics.pattern!r}" if isinstance(topics, re.Pattern) else ", ".join(sorted(topics))


def _listed(partitions: Collection[TopicPartition]) -> str:
    first = ", ".join(str(TopicPartition(*tp)) for tp in sorted(partitions)[:5])
    return first if len(partitions) <= 5 else f"{first} and {len(partitions) - 5} more"
