"""Who gets which partition. Deterministic: the same members give the same answer, whatever their order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from aioparallel.records import TopicPartition

__all__ = ["Subscription", "assign"]


class Subscription(NamedTuple):
    """What a member tells the group when it joins."""

    partitions: frozenset[TopicPartition]
    """All partitions of the topics it asks for, as far as it knows them."""
    owned: frozenset[TopicPartition] = frozenset()
    """Cooperative: what it holds, and goes on holding while the group rebalances. Eager: nothing."""


def assign(members: Mapping[str, Subscription]) -> dict[str, frozenset[TopicPartition]]:
    """Share all partitions so that the members' counts differ by one at most.

    What a member owns it keeps, up to its share. A partition that must move from one member to another is
    given to nobody yet: its owner learns that it is gone, gives it up and joins again, and the rebalance this
    starts hands it on. That is the cooperative protocol of KIP-429; without owned partitions the first
    rebalance does it all. (Counts may differ more where members subscribe to different topics.)
    """
    owners = {p: member for member in sorted(members) for p in members[member].owned}
    planned = _plan(members)
    return {member: frozenset(p for p in plan if owners.get(p, member) == member) for member, plan in planned.items()}


def _plan(members: Mapping[str, Subscription]) -> dict[str, list[TopicPartition]]:
    plan: dict[str, list[TopicPartition]] = {member: [] for member in sorted(members)}
    every = set[TopicPartition]().union(*(subscription.partitions for subscription in members.values()))
    shares = _shares(members, len(every))
    for member, taken in plan.items():
        subscription = members[member]
        mine = sorted(subscription.owned & subscription.partitions & every)
        taken.extend(mine[: shares[member]])
        every.difference_update(taken)
    for partition in sorted(every):
        able = [member for member in plan if partition in members[member].partitions]
        plan[min(able, key=lambda member: len(plan[member]))].append(partition)
    return plan


def _shares(members: Mapping[str, Subscription], total: int) -> dict[str, int]:
    """How many each may keep. Who owns most gets the odd ones, so that nothing moves without need."""
    each, odd = divmod(total, len(members)) if members else (0, 0)
    by_owned = sorted(members, key=lambda member: (-len(members[member].owned), member))
    return {member: each + (rank < odd) for rank, member in enumerate(by_owned)}
