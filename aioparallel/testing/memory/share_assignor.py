"""Assigns partitions to the members of a share group: each partition to one member at least, and each member one
partition at least, so that several members have the same one if there are more members than partitions."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from aioparallel.records.record import TopicPartition

__all__ = ["assign_shared"]


def assign_shared(
    wanted: Mapping[str, AbstractSet[TopicPartition]],
    before: Mapping[str, AbstractSet[TopicPartition]],
) -> dict[str, frozenset[TopicPartition]]:
    """The partitions of each member. ``wanted``: those that it subscribes to. ``before``: what it had; it keeps as much
    of this as is fair."""
    every = sorted(frozenset[TopicPartition]().union(*wanted.values()))
    if not every:
        return dict.fromkeys(wanted, frozenset[TopicPartition]())
    holders = -(-len(wanted) // len(every))
    most = -(-len(every) * holders // len(wanted))
    plan: dict[str, set[TopicPartition]] = {member: set() for member in sorted(wanted)}
    counts = dict.fromkeys(every, 0)

    def give(member: str, partition: TopicPartition) -> None:
        plan[member].add(partition)
        counts[partition] += 1

    for member, mine in plan.items():
        for partition in sorted(before.get(member, set()) & wanted[member]):
            if len(mine) < most and counts[partition] < holders:
                give(member, partition)
    for partition in every:
        candidates = [member for member in plan if partition in wanted[member]]
        while counts[partition] < min(holders, len(candidates)):
            give(min((m for m in candidates if partition not in plan[m]), key=lambda m: len(plan[m])), partition)
    for member, mine in plan.items():
        if not mine and wanted[member]:
            give(member, min(sorted(wanted[member]), key=lambda partition: counts[partition]))
    return {member: frozenset(mine) for member, mine in plan.items()}
