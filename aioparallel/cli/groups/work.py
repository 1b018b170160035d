"""What is left of a partition, by the group's commit and its offset map. Pure."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Final

from aioparallel.group.client import Committed
from aioparallel.offsets import OffsetMap, decode_offset_map
from aioparallel.offsets.encoding import format_of
from aioparallel.records.errors import OffsetMapError
from aioparallel.records.record import TopicPartition

__all__ = ["PartitionWork", "StoredMap", "work_of"]

_SPARK_MARK: Final = "aioparallel.spark query "
"""The beginning of the metadata of commits that show a Spark query's progress: ``spark/group_requests.py``."""


@dataclass(frozen=True, slots=True)
class StoredMap:
    """The metadata of a commit. ``format``: None if it is no map; then ``problem`` says why."""

    format: str | None
    characters: int
    """As Kafka counts them: UTF-16 code units."""
    problem: str | None = None
    is_of_spark: bool = False
    """Whether the group shows the progress of a Spark query, which has no map."""


@dataclass(frozen=True)
class PartitionWork:
    """One partition of a group.

    ``committed``: None if the group has committed nothing; then the log is counted from its beginning.
    ``begin``, ``end``: the first offset of the log, and the one of the next record.
    ``known``: which offsets are complete. ``stored``: None if the commit has no metadata.
    """

    partition: TopicPartition
    committed: int | None
    begin: int
    end: int
    known: OffsetMap
    stored: StoredMap | None = None

    @property
    def start(self) -> int:
        """The first offset that counts: the committed one, or the beginning of the log if that is higher."""
        return max(self.begin, self.known.base_offset)

    @property
    def lag(self) -> int:
        """As Kafka's tools count it."""
        return max(0, self.end - self.start)

    @cached_property
    def incomplete(self) -> int:
        """Incomplete offsets within the map."""
        offsets = self.known.incompletes
        return max(0, bisect_left(offsets, self.end) - bisect_left(offsets, self.start))

    @property
    def first_unread(self) -> int:
        """The first offset above the map."""
        return max(self.start, self.known.highest_succeeded + 1)

    @property
    def unread(self) -> int:
        """Offsets above the map."""
        return max(0, self.end - self.first_unread)

    @property
    def remaining(self) -> int:
        """Offsets that are not complete."""
        return self.incomplete + self.unread

    @cached_property
    def highest_completed(self) -> int | None:
        """The highest complete offset of the map; None if there is none."""
        highest = self.known.highest_succeeded
        for offset in reversed(self.known.incompletes):
            if offset != highest:
                break
            highest -= 1
        return highest if highest >= self.start else None

    @property
    def oldest(self) -> int | None:
        """The first offset that is not complete; None if nothing is left."""
        offsets = self.known.incompletes
        at = bisect_left(offsets, self.start)
        first = next(islice(offsets, at, None), self.first_unread)
        return first if first < self.end else None

    @property
    def is_above_log(self) -> bool:
        """Whether the commit is above the end of the log, which was truncated or belongs to another topic."""
        return self.committed is not None and self.committed > self.end


def work_of(partition: TopicPartition, committed: Committed | None, begin: int, end: int) -> PartitionWork:
    """What is left, by the commit. Metadata that is no map counts as none: its records would run again."""
    if committed is None:
        return PartitionWork(partition, None, begin, end, OffsetMap(begin, begin - 1))
    offset, metadata = committed.offset, committed.metadata
    stored: StoredMap | None = None
    try:
        known = decode_offset_map(offset, metadata)
        if metadata:
            stored = StoredMap(format_of(metadata), _characters(metadata))
    except OffsetMapError as error:
        known = OffsetMap(offset, offset - 1)
        stored = StoredMap(None, _characters(metadata), str(error), metadata.startswith(_SPARK_MARK))
    return PartitionWork(partition, offset, begin, end, known, stored)


def _characters(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
