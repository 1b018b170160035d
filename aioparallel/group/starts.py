"""Where a partition starts for which the group has committed nothing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping

from aioparallel.group.client import Client
from aioparallel.options import Options
from aioparallel.records import TopicPartition

__all__ = ["Starts"]


class Starts:
    """Start offsets by ``start_at``, then by ``auto_offset_reset``."""

    def __init__(self, client: Client, group_id: str, options: Options) -> None:
        self._client = client
        self._group_id = group_id
        self._options = options

    async def of(self, partitions: Collection[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        """The start of each partition; those that have none under ``auto_offset_reset="error"`` are left out."""
        chosen = await self._by_start_at(partitions, timeout)
        rest = [partition for partition in partitions if partition not in chosen]
        return {**chosen, **await self.by_policy(rest, timeout)}

    async def by_policy(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        """The beginning or the end of each log, as ``auto_offset_reset`` says."""
        match self._options.auto_offset_reset:
            case "earliest" if partitions:
                return await self._client.beginning_offsets(partitions, timeout)
            case "latest" if partitions:
                return await self._client.end_offsets(partitions, timeout)
        return {}

    async def _by_start_at(self, partitions: Collection[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        start_at = self._options.start_at
        if start_at is None:
            return {}
        if not isinstance(start_at, dt.datetime):
            return {partition: start_at[partition] for partition in partitions if partition in start_at}
        milliseconds = int(start_at.timestamp() * 1000)
        found = await self._client.offsets_for_times(dict.fromkeys(partitions, milliseconds), timeout)
        later = [partition for partition in partitions if found.get(partition) is None]
        # Nothing that late yet: start with what comes next.
        ends = await self._client.end_offsets(later, timeout) if later else {}
        return {**{p: offset for p, offset in found.items() if offset is not None}, **ends}
