"""Where a partition without a committed position starts."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

from aioparallel.config.options import Options
from aioparallel.group.client import Client
from aioparallel.group.offset_stores import Positions
from aioparallel.records.record import TopicPartition
from aioparallel.records.timestamps import first_timestamp_at

__all__ = ["Choice", "Starts", "TopicPositions"]


class TopicPositions(NamedTuple):
    """The partitions of one topic, and those of them with a committed position."""

    partitions: frozenset[int]
    committed: frozenset[int]

    @property
    def highest(self) -> int:
        """The highest partition of the topic."""
        return max(self.partitions, default=-1)

    def is_new(self, number: int) -> bool:
        """Whether this partition was added after the group began to read the topic."""
        return bool(self.committed) and number > max(self.committed)


class Choice(NamedTuple):
    """The option that decides where a partition starts, and its value."""

    option: Literal["auto_offset_reset", "auto_offset_reset_new_partitions"]
    policy: Literal["earliest", "latest", "error"]


class Starts:
    """Finds start offsets: by ``start_at``, then by ``auto_offset_reset``, or by ``auto_offset_reset_new_partitions``
    for new partitions. ``positions``: where the group's positions are stored.
    """

    def __init__(self, client: Client, positions: Positions, options: Options) -> None:
        self._client = client
        self._positions = positions
        self._options = options
        self._by_time = isinstance(options.start_at, dt.datetime)
        # With auto_offset_reset="error" no partition may start without a committed position, not even a new one.
        is_error = options.auto_offset_reset == "error"
        self._of_new = "error" if is_error else options.auto_offset_reset_new_partitions
        self.differ = not self._by_time and options.auto_offset_reset != self._of_new
        """Whether new partitions start at another place than others."""

    async def ends(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        """Return the ends of these logs, if a partition may start there. Ask for them first: records written during
        later requests are then after the start."""
        policies = {self._options.auto_offset_reset}
        if self.differ:
            policies.add(self._of_new)
        if partitions and (self._by_time or "latest" in policies):
            return await self._client.end_offsets(partitions, timeout)
        return {}

    async def topics(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[str, TopicPositions]:
        """Return which partitions of the topics have a committed position. Empty if no start depends on that."""
        if not (self.differ and partitions):
            return {}
        names = {partition.topic for partition in partitions}
        return await self.committed({*partitions, *await self._client.partitions(names, timeout)}, timeout)

    async def committed(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[str, TopicPositions]:
        """Return the same, given all partitions of the topics."""
        stored = await self._positions.stored(partitions, timeout)
        numbers: defaultdict[str, set[int]] = defaultdict(set)
        for topic, number in partitions:
            numbers[topic].add(number)
        return {
            topic: TopicPositions(
                frozenset(some), frozenset(number for number in some if TopicPartition(topic, number) in stored)
            )
            for topic, some in numbers.items()
        }

    def choice(self, partition: TopicPartition, topics: Mapping[str, TopicPositions]) -> Choice:
        """Return the option that applies to a partition without a committed position."""
        topic = topics.get(partition.topic)
        if topic is not None and topic.is_new(partition.partition):
            return Choice("auto_offset_reset_new_partitions", self._options.auto_offset_reset_new_partitions)
        return Choice("auto_offset_reset", self._options.auto_offset_reset)

    async def of(
        self,
        partitions: Collection[TopicPartition],
        ends: Mapping[TopicPartition, int],
        topics: Mapping[str, TopicPositions],
        timeout: float,
    ) -> Mapping[TopicPartition, int]:
        """Return the start of each partition, without those whose option is ``"error"`` and those whose log the cluster
        does not know. ``ends``, ``topics``: from the methods of these names."""
        chosen = await self._by_start_at(partitions, ends, timeout)
        policies = {p: self.choice(p, topics).policy for p in partitions if p not in chosen}
        earliest = [partition for partition, policy in policies.items() if policy == "earliest"]
        begins = await self._client.beginning_offsets(earliest, timeout) if earliest else {}
        latest = {p: ends[p] for p, policy in policies.items() if policy == "latest" and p in ends}
        return {**chosen, **begins, **latest}

    async def after_reset(self, partition: TopicPartition, timeout: float) -> int | None:
        """Return the beginning or end of a log, as ``auto_offset_reset`` says, after a position was outside of it."""
        is_latest = self._options.auto_offset_reset == "latest"
        ask = self._client.end_offsets if is_latest else self._client.beginning_offsets
        return (await ask([partition], timeout)).get(partition)

    async def _by_start_at(
        self, partitions: Collection[TopicPartition], ends: Mapping[TopicPartition, int], timeout: float
    ) -> Mapping[TopicPartition, int]:
        start_at = self._options.start_at
        if start_at is None or not partitions:
            return {}
        if not isinstance(start_at, dt.datetime):
            return {partition: start_at[partition] for partition in partitions if partition in start_at}
        timestamp = first_timestamp_at(start_at)
        found = await self._client.offsets_for_times(dict.fromkeys(partitions, timestamp), timeout)
        # A log without records that late starts at its end.
        later = {p: ends[p] for p in partitions if found.get(p) is None and p in ends}
        return {**{p: offset for p, offset in found.items() if offset is not None}, **later}
