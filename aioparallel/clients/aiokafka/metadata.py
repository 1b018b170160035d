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

from aioparallel.clients.aiokafka.aiokafka_errors import deadline
from aioparallel.clients.aiokafka.internals import ClusterView, ConfigsAnswer, Connections, Consumer, Fetcher
from aioparallel.records.record import TopicPartition

__all__ = ["LogEnds", "WholeName", "cleanup_policy", "keep_all_topics", "topic_partitions"]

_POLICY: Final = "cleanup.policy"
_READ_UNCOMMITTED: Final = 0


class WholeName:
    """A topic pattern for aiokafka that must match the whole name."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    def __repr__(self) -> str:
        return repr(self._pattern)

    def match(self, topic: str) -> object:
        """A match, or None."""
        return self._pattern.fullmatch(topic)


def keep_all_topics(connections: Connections) -> None:
    """Keep requesting all topics, for a subscription by pattern.

    When aiokafka meets an unknown partition it calls ``add_topic``, which would reduce the metadata to this one topic.
    The pattern would then match nothing else, and the group would rebalance.
    """
    connections.add_topic = lambda _topic: connections.force_metadata_update()


async def topic_partitions(
    consumer: Consumer, topics: Collection[str] | re.Pattern[str], timeout: float, retry_backoff: float
) -> set[TopicPartition]:
    """All partitions of these topics, or of those whose whole name matches. Requests all topics, so none is created."""
    async with deadline(timeout, f"asking for the partitions of {_named(topics)}"):
        cluster = await _all_topics(consumer, retry_backoff)
    known = cluster.topics(consumer._exclude_internal_topics)
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
            answer = cast("ConfigsAnswer", await connections.send(node, request, group=ConnectionGroup.DEFAULT))
    except (kafka.KafkaError, TimeoutError):
        return None
    return next((entry[1] for resource in answer.resources for entry in resource[4] if entry[0] == _POLICY), None)


async def _all_topics(consumer: Consumer, retry_backoff: float) -> ClusterView:
    while True:
        try:
            return await consumer._client.fetch_all_metadata()
        except kafka.KafkaError:
            # aiokafka hides the cause ("over all known brokers"); retry until the deadline.
            await asyncio.sleep(retry_backoff)


class LogEnds:
    """Queries where logs begin and end. aiokafka retries until the timeout."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    async def beginning(self, partitions: Collection[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        """The first offset of each log."""
        async with deadline(timeout, f"asking for the first offsets of {_listed(partitions)}"):
            found = await self._fetcher.beginning_offsets(list(partitions), timeout * 1000)
        return {TopicPartition(*tp): offset for tp, offset in found.items()}

    async def end(self, partitions: Collection[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        """The offset of the next record; under read_committed, the last stable offset."""
        return await self._end(self._fetcher, partitions, timeout)

    async def written(self, partitions: Collection[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        """The offset of the next record, including undecided transactions."""
        # A copy, because the isolation level is an attribute of the fetcher.
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
