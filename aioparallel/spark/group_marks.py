"""Whose a committed offset is: the mark that Spark's commits carry in their metadata. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from aioparallel.group.client import Committed
from aioparallel.records import TopicPartition

__all__ = ["Position", "mark_of", "stranger"]

_MARK: Final = "aioparallel.spark query "


class Position(NamedTuple):
    """The next offset to read, and the mark of the query that has come so far."""

    offset: int
    mark: str


def mark_of(query_id: UUID) -> str:
    """The metadata of a commit. The id is that of the checkpoint: it stays when the query is started again."""
    return f"{_MARK}{query_id}"


def stranger(
    committed: Mapping[TopicPartition, Committed],
    offered: Mapping[TopicPartition, Position],
    acknowledged: Mapping[TopicPartition, str],
    *,
    take_over: bool,
) -> str | None:
    """Who else has committed to the group, in words; None: nobody whose position the commit would move.

    ``acknowledged``: the marks of this process's last commits. A query may follow another one of its process.
    ``take_over``: positions of others count only where this process has committed before: then they are at work.
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
        who = f"the {metadata.removeprefix('aioparallel.spark ')}" if is_ours else "somebody else"
        return f"has offset {offset} of {partition} by {who}"
    return None
