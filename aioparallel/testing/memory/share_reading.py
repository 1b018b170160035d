"""The records of acquired offsets, from the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aioparallel.clients.messages.share_records import AcquiredRange
from aioparallel.group.share_client import Acquired, Unreadable
from aioparallel.records.record import Record, TopicPartition
from aioparallel.testing.memory.log import Stored

__all__ = ["read_acquired"]


def read_acquired(
    partition: TopicPartition,
    ranges: Iterable[AcquiredRange],
    entries: Sequence[Stored],
    damage: tuple[int, int | None] | None,
    until: float,
) -> tuple[Acquired, list[int]]:
    """What a member gets of these ranges, and the offsets without a record. ``damage``: the first unreadable offset,
    and the first one after that; ``until``: when the locks end."""
    stored = {entry.offset: entry for entry in entries if not entry.is_marker}
    found = Acquired(partition, records := [], counts := [], until, unreadable := [])
    gaps: list[int] = []
    for one in ranges:
        first, last, count = one.first_offset, one.last_offset, one.delivery_count
        start = end = last + 1
        if damage is not None:
            start, end = max(first, damage[0]), min(end, end if damage[1] is None else damage[1])
        if start < end:
            unreadable.append(Unreadable(start, end - 1, "corrupt() has damaged it", count))
        for offset in (*range(first, min(start, last + 1)), *range(max(end, first), last + 1)):
            if (entry := stored.get(offset)) is None:
                gaps.append(offset)
            else:
                records.append(Record(*partition, offset, entry.key, entry.value, entry.headers, entry.timestamp))
                counts.append(count)
    return found, gaps
