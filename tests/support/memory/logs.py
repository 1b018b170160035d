"""Logs as plain lists, and a client that reads them: for what reads topics, without a group, in virtual steps."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from typing import Any, cast

from aioparallel.group.client import Client, Fetched, Span
from aioparallel.records.record import Outgoing, Record, TopicPartition

__all__ = ["Logs"]

Places = Collection[TopicPartition]


class Logs:
    """Partitions by name. What is read of them comes in portions of three records."""

    def __init__(self, policies: Mapping[str, str] | None = None) -> None:
        self._logs: dict[TopicPartition, list[Record]] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._begins: dict[TopicPartition, int] = {}
        self._policies = policies or {}

    @property
    def client(self) -> Client:
        """What reads them."""
        return cast("Client", self)

    def append(self, output: Outgoing, partition: int = 0) -> int:
        """One more; its offset."""
        place = TopicPartition(output.topic, partition)
        offset = self._ends.get(place, 0)
        record: Record[Any, Any] = Record(*place, offset, output.key, output.value, tuple(output.headers))
        self._logs.setdefault(place, []).append(record)
        self._ends[place] = offset + 1
        return offset

    def of(self, place: TopicPartition) -> list[Record]:
        """What it holds."""
        return self._logs.get(place, [])

    def compact(self, place: TopicPartition) -> None:
        """Of each key the last one stays."""
        last = {record.key: record.offset for record in self.of(place)}
        self._logs[place] = [record for record in self.of(place) if last[record.key] == record.offset]

    def remove(self, place: TopicPartition, offset: int) -> None:
        """That one is gone."""
        self._logs[place] = [record for record in self.of(place) if record.offset != offset]

    def truncate(self, place: TopicPartition, begins: int) -> None:
        """What is before is deleted."""
        self._begins[place] = max(begins, self._begins.get(place, 0))
        self._logs[place] = [record for record in self.of(place) if record.offset >= begins]

    # -- the client -------------------------------------------------------------------------------------

    async def partitions(self, topics: Iterable[str], timeout: float) -> set[TopicPartition]:
        """See :class:`~aioparallel.group.client.Client`. One each."""
        return {TopicPartition(topic, 0) for topic in topics}

    async def cleanup_policy(self, topic: str, timeout: float) -> str | None:
        """See :class:`~aioparallel.group.client.Client`."""
        return self._policies.get(topic)

    async def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> dict[TopicPartition, int]:
        """See :class:`~aioparallel.group.client.Client`."""
        return {partition: self._begins.get(partition, 0) for partition in partitions}

    async def end_offsets(self, partitions: Places, timeout: float) -> dict[TopicPartition, int]:
        """See :class:`~aioparallel.group.client.Client`."""
        return {partition: self._ends.get(partition, 0) for partition in partitions}

    async def written_end_offsets(self, partitions: Places, timeout: float) -> dict[TopicPartition, int]:
        """See :class:`~aioparallel.group.client.Client`. Nothing is undecided here."""
        return await self.end_offsets(partitions, timeout)

    async def read(self, spans: Mapping[TopicPartition, Span]) -> AsyncGenerator[Fetched, None]:
        """See :class:`~aioparallel.group.client.Client`."""
        for place, span in spans.items():
            found = [record for record in self.of(place) if span.start <= record.offset < span.end]
            for at in range(0, len(found), 3):
                # New records: the reader may deserialise them.
                portion = [Record(*place, one.offset, one.key, one.value, one.headers) for one in found[at : at + 3]]
                yield Fetched(place, portion, portion[-1].offset + 1)
            yield Fetched(place, [], span.end)
