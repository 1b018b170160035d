"""The records of one assignment: leaves out copies, and remembers complete records. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from aioparallel.config.extension import PartitionState
from aioparallel.persistence.dedup.identities import (
    Identify,
    Identity,
    Position,
    RecordIdentity,
    covers,
    is_latest,
    joined,
)
from aioparallel.persistence.dedup.remembered import Memory
from aioparallel.records.record import Record

__all__ = ["Looked", "Seen"]


class Looked(NamedTuple):
    """What :meth:`Seen.select` found in some records."""

    copies: int
    unknown: int
    """Records whose headers do not name their source."""
    example: Record | None
    """One of these."""


class Seen(PartitionState):
    """What one partition has seen.

    Copies of a record that is still running are left out too. That is safe: until the record is complete, its offset is
    not committed, so it runs again if it must. Running records are known for this assignment only. Complete records are
    in the memory of the partition.

    ``memory()``: the partition's memory, restored before the first record. ``tell`` receives what was found.
    """

    def __init__(self, identify: Identify, memory: Callable[[], Memory], tell: Callable[[Looked], None]) -> None:
        self._identify = identify
        self._memory = memory
        self._tell = tell
        self._begun: dict[Identity, Position] = {}
        self._by_offset: dict[int, tuple[Identity, Position]] = {}

    def select(self, records: Sequence[Record]) -> Sequence[Record]:
        """Leave out copies."""
        begun, memory, identify = self._begun, self._memory(), self._identify
        fresh: list[Record] = []
        unknown, example = 0, None
        for record in records:
            known = identify(record)
            if known is None:
                unknown, example = unknown + 1, example or record
                fresh.append(record)
                continue
            identity, position = known
            before = begun.get(identity) or memory.position(identity)
            if before is not None and covers(before, position):
                continue
            begun[identity] = joined(before, position)
            self._by_offset[record.offset] = known
            fresh.append(record)
        if unknown or len(fresh) != len(records):
            self._tell(Looked(len(records) - len(fresh), unknown, example))
        return fresh

    def completed(self, offset: int) -> None:
        """Remember the record."""
        known = self._forget(offset)
        if known is None:
            return
        self._memory().remember(*known)
        identity = known[0]
        if isinstance(identity, RecordIdentity) and identity.tag:
            # The record was sent again on purpose, and is handled now: the untagged one is a copy from now on.
            self._memory().remember(identity._replace(tag=""))

    def dead_lettered(self, offset: int) -> None:
        """Do not remember the record: a later one with the same coordinates is not a copy.

        Skipped records, and records in retry topics, are remembered.
        """
        self._forget(offset)

    def _forget(self, offset: int) -> tuple[Identity, Position] | None:
        known = self._by_offset.pop(offset, None)
        if known is not None and (begun := self._begun.get(known[0])) is not None and is_latest(begun, known[1]):
            del self._begun[known[0]]
        return known
