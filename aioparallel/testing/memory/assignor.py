"""Assigns partitions to members. Deterministic: the result does not depend on the order of the members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from aioparallel.records.record import TopicPartition

__all__ = ["Subscription", "assign", "plan"]


class Subscription(NamedTuple):
    """What a member sends to the group when it joins."""

    partitions: frozenset[TopicPartition]
    """All partitions of the topics it subscribes to, as far as it knows them."""
    owned: frozenset[TopicPartition] = frozenset()
    """Cooperative: its partitions, which it keeps during the rebalance. Eager: empty."""


def assign(members: Mapping[str, Subscription]) -> dict[str, frozenset[TopicPartition]]:
    """Assign all partitions so that the members' counts differ by at most one.

    A member keeps its own partitions, up to its share. A partition that must move to another member is not assigned at
    first: its owner gives it up and joins again, and the resulting rebalance assigns it. That is the cooperative
    protocol of KIP-429. Without owned partitions the first rebalance assigns everything. (Counts may differ more if
    members subscribe to different topics.)
    """
    owners = {p: member for member in sorted(members) for p in members[member].owned}
    return {
        member: frozenset(p for p in partitions if owners.get(p, member) == member)
        for member, partitions in plan(members).items()
    }


def plan(members: Mapping[str, Subscription]) -> dict[str, list[TopicPartition]]:
    """Return what each member should have in the end, whoever has it now."""
    planned: dict[str, list[TopicPartition]] = {member: [] for member in sorted(members)}
    every = set[TopicPartition]().union(*(subscription.partitions for subscription in members.values()))
    shares = _shares(members, len(every))
    for member, taken in planned.items():
        subscription = members[member]
        mine = sorted(subscription.owned & subscription.partitions & every)
        taken.extend(mine[: shares[member]])
        every.difference_update(taken)
    for partition in sorted(every):
        candidates = [member for member in planned if partition in members[member].partitions]
        planned[min(candidates, key=lambda member: len(planned[member]))].append(partition)
    return planned


def _shares(members: Mapping[str, Subscription], total: int) -> dict[str, int]:
    """Number of partitions that each member may keep. The largest owners get the odd ones, to avoid unnecessary
    moves."""
    each, odd = divmod(total, len(members)) if members else (0, 0)
    by_owned = sorted(members, key=lambda member: (-len(members[member].owned), member))
    return {member: each + (rank < odd) for rank, member in enumerate(by_owned)}
