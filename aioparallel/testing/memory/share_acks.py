"""Acknowledgements of a member of a share group that wait to be sent to one node. Synchronous.

Brokers accept all acknowledgements of a partition in one request, or none. Those that were refused together are sent
again in two requests, and so on, until the wrong ones are alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence

from aioparallel.clients.messages.share_records import AcknowledgementBatch, AcknowledgeType
from aioparallel.group.share_client import AcknowledgeEnded
from aioparallel.records.record import TopicPartition

__all__ = ["Ack", "Acks", "Lock", "as_batches"]


class Lock:
    """The lock of one delivery. ``until``: when it ends."""

    __slots__ = ("until",)

    def __init__(self, until: float) -> None:
        self.until = until


class Ack:
    """One acknowledgement. ``ended`` is None for gaps, which nobody waits for."""

    __slots__ = ("ended", "in_doubt", "kind", "lock", "offset", "partition")

    def __init__(
        self, partition: TopicPartition, offset: int, kind: AcknowledgeType, ended: AcknowledgeEnded | None, lock: Lock
    ) -> None:
        self.partition = partition
        self.offset = offset
        self.kind = kind
        self.ended = ended
        self.lock = lock
        self.in_doubt = False
        """It was sent before, and may have been carried out."""


class Acks:
    """What waits, by partition."""

    def __init__(self) -> None:
        self._fresh: dict[TopicPartition, dict[int, Ack]] = {}
        self._parts: dict[TopicPartition, deque[list[Ack]]] = {}

    def __bool__(self) -> bool:
        return bool(self._fresh or self._parts)

    def __iter__(self) -> Iterator[Ack]:
        for part in self._fresh.values():
            yield from part.values()
        for parts in self._parts.values():
            for some in parts:
                yield from some

    def add(self, ack: Ack) -> Ack | None:
        """Add one. Returns the one that it replaces, a ``RENEW``."""
        for part in self._parts.get(ack.partition, ()):
            for at, known in enumerate(part):
                if known.offset == ack.offset:
                    part[at] = ack
                    return known
        fresh = self._fresh.setdefault(ack.partition, {})
        replaced = fresh.get(ack.offset)
        fresh[ack.offset] = ack
        return replaced

    def take(self) -> dict[TopicPartition, list[Ack]]:
        """What goes into the next request, ascending by offset."""
        taken: dict[TopicPartition, list[Ack]] = {}
        for partition, parts in list(self._parts.items()):
            taken[partition] = parts.popleft()
            if not parts:
                del self._parts[partition]
        for partition in self._fresh.keys() - taken.keys():
            fresh = self._fresh.pop(partition)
            taken[partition] = [fresh[offset] for offset in sorted(fresh)]
        return taken

    def put_back(self, acks: Sequence[Ack]) -> list[Ack]:
        """Those of one partition were not carried out: send them again, before all others. Returns those that were
        replaced meanwhile."""
        newer = self._fresh.get(acks[0].partition, {}) if acks else {}
        if kept := [ack for ack in acks if ack.offset not in newer]:
            self._parts.setdefault(kept[0].partition, deque()).appendleft(kept)
        return [ack for ack in acks if ack.offset in newer]

    def split(self, acks: Sequence[Ack]) -> list[Ack]:
        """Those of one partition were refused together: send them in two parts. Returns those that were replaced
        meanwhile."""
        middle = len(acks) // 2
        return self.put_back(acks[middle:]) + self.put_back(acks[:middle])

    def remove(self, partitions: Collection[TopicPartition]) -> list[Ack]:
        """Remove and return those of these partitions."""
        removed: list[Ack] = []
        for partition in partitions:
            removed += self._fresh.pop(partition, {}).values()
            removed += [ack for part in self._parts.pop(partition, ()) for ack in part]
        return removed

    def withdraw(self, partition: TopicPartition, offsets: Collection[int]) -> list[Ack]:
        """Remove and return those of these offsets."""
        gone = frozenset(offsets)
        return self._remove(lambda ack: ack.partition == partition and ack.offset in gone)

    def remove_late(self, now: float) -> list[Ack]:
        """Remove and return those whose locks have ended."""
        return self._remove(lambda ack: ack.lock.until <= now)

    def _remove(self, is_gone: Callable[[Ack], bool]) -> list[Ack]:
        removed = [ack for ack in self if is_gone(ack)]
        for partition in self.partitions() if removed else ():
            fresh = {offset: ack for offset, ack in self._fresh.pop(partition, {}).items() if not is_gone(ack)}
            parts = deque(
                kept for part in self._parts.pop(partition, ()) if (kept := [ack for ack in part if not is_gone(ack)])
            )
            if fresh:
                self._fresh[partition] = fresh
            if parts:
                self._parts[partition] = parts
        return removed

    def partitions(self) -> set[TopicPartition]:
        """Those with acknowledgements."""
        return {*self._fresh, *self._parts}


def as_batches(acks: Sequence[Ack]) -> tuple[AcknowledgementBatch, ...]:
    """The ranges of a request."""
    batches: list[AcknowledgementBatch] = []
    at = 0
    while at < len(acks):
        end = at + 1
        while end < len(acks) and acks[end].offset == acks[end - 1].offset + 1:
            end += 1
        kinds = tuple(ack.kind for ack in acks[at:end])
        one_kind = len(set(kinds)) == 1
        batches.append(AcknowledgementBatch(acks[at].offset, acks[end - 1].offset, kinds[:1] if one_kind else kinds))
        at = end
    return tuple(batches)
