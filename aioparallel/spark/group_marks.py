"""Marks in the metadata of Spark's commits, which tell from which query a committed offset is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from aioparallel.group.client import Committed
from aioparallel.records.record import TopicPartition

__all__ = ["Position", "mark_of", "stranger"]

_MARK: Final = "aioparallel.spark query "


class Position(NamedTuple):
    """The next offset to read, and the mark of the query that has read up to it."""

    offset: int
    mark: str


def mark_of(query_id: UUID) -> str:
    """The metadata of a commit. The query id belongs to the checkpoint and survives restarts."""
    return f"{_MARK}{query_id}"


def stranger(
    committed: Mapping[TopicPartition, Committed],
    offered: Mapping[TopicPartition, Position],
    acknowledged: Mapping[TopicPartition, str],
    *,
    take_over: bool,
) -> str | None:
    """Describes a foreign commit whose position would be moved; None if there is none.

    ``acknowledged``: marks of this process's last commits; a query may replace another one of its process.
    ``take_over``: foreign positions count only if this process has committed before: then the other is still running.
    """
    for partition, (offset, metadata, *_) in sorted(committed.items()):
        is_ours = metadata.startswith(_MARK)
        mine = acknowledged.get(partition)
        if metadata == mine or (partition in offered and metadata == offered[partition].mark):
            continue
        if is_ours and partition not in offered:
            continue  # another query, of other partitions
        if take_over and mine is None:
            continue
        who = f"the {metadata.removeprefix('aioparallel.spark ')}" if is_ours else "another program"
        return f"has offset {offset} of {partition} committed by {who}"
    return None
