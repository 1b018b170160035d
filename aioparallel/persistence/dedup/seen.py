"""One session's records: which are copies, and what is remembered when they are complete. Pure."""

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
    """What was found in some records."""

    copies: int
    unknown: int
    """Records whose headers do not say where they came from."""
    example: Record | None
    """One of these."""


class Seen(PartitionState):
    """What one partition has seen.

    A copy of a record that was let through is left out before that one is complete: as long as it is not, its offset is
    not complete, and it runs again wherever that must be. So what was let through is known here, and goes with the
    session; what is complete goes into the memory of the partition, which stays.

    ``memory()``: the partition's, restored by the time records come. ``tell`` hears what was found.
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
            # It was sent again, and is handled now: what else comes with its coordinates is a copy.
            self._memory().remember(identity._replace(tag=""))

    def dead_lettered(self, offset: int) -> None:
        """The record is complete but not handled: a later one with the same coordinates is no copy. A record that was
        skipped, or went to a retry topic, has been seen."""
        self._forget(offset)

    def _forget(self, offset: int) -> tuple[Identity, Position] | None:
        known = self._by_offset.pop(offset, None)
        if known is not None and (begun := self._begun.get(known[0])) is not None and is_latest(begun, known[1]):
            del self._begun[known[0]]
        return known
