"""The offsets that are complete and not in the state, written as one or more texts. Pure.

A partition keeps those since the older of its two full snapshots. Usually they are few, and the increment holds them.
They are many if nearly all records are dead-lettered, or no full snapshot can be written. Records have a maximum size,
so many offsets are written to records before the increment; see :mod:`~aioparallel.persistence.state.increments`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from aioparallel.offsets import decode_offset_map, encode_offset_map

__all__ = ["LARGEST_PIECE", "NONE", "Unapplied", "UnappliedOffsets", "pieces_of", "read_unapplied", "write_unapplied"]

LARGEST_PIECE: Final = 512 * 1024
"""Bytes of a text: the size of a piece of a full snapshot, which the topics of a state accept."""
_LISTED: Final = 1_000_000
"""Offsets in one text, at most: a map with four times as many is refused."""
_SEALED: Final = 500_000
"""Offsets that are encoded again with each commit that adds some, at most: this takes about 100 ms. The texts of
earlier offsets are kept."""


class Unapplied(NamedTuple):
    """Offsets as the incomplete ones of an offset map that starts at ``first``."""

    first: int
    text: str


NONE: Final = Unapplied(0, "")


def write_unapplied(offsets: Collection[int]) -> Unapplied:
    """Encode offsets in any order."""
    ordered = sorted(offsets)
    return Unapplied(ordered[0], encode_offset_map(ordered[0], ordered[-1], ordered, limit=None)) if ordered else NONE


def read_unapplied(found: Unapplied) -> Sequence[int]:
    """Returns the offsets, ascending. Raises ValueError."""
    return decode_offset_map(*found).incompletes


def pieces_of(ordered: Sequence[int], most: int) -> Iterator[Unapplied]:
    """Encode ascending offsets in texts of ``most`` bytes at most."""
    if not ordered:
        return
    if len(ordered) <= _LISTED:
        one = write_unapplied(ordered)
        if len(one.text.encode()) <= most or len(ordered) == 1:
            yield one
            return
    middle = len(ordered) // 2
    yield from pieces_of(ordered[:middle], most)
    yield from pieces_of(ordered[middle:], most)


class UnappliedOffsets:
    """The set of one partition's offsets that are not in its state."""

    def __init__(self, offsets: Iterable[int] = ()) -> None:
        self._all = set(offsets)
        self._new = set(self._all)  # not in a kept text
        self._kept: list[Unapplied] = []
        self._texts: tuple[Unapplied, ...] | None = None  # None: the set has changed
        self._most = LARGEST_PIECE

    def __len__(self) -> int:
        return len(self._all)

    def add(self, offset: int) -> None:
        """Add one offset."""
        self._all.add(offset)
        self._new.add(offset)
        self._texts = None

    def keep(self, is_kept: Callable[[int], bool]) -> None:
        """Remove all other offsets."""
        self._all = {offset for offset in self._all if is_kept(offset)}
        self._forget_texts()

    def texts(self, most: int) -> Sequence[Unapplied]:
        """Returns texts of ``most`` bytes at most, whose union is the set. Usually it is one."""
        if most != self._most:
            self._most = most
            self._forget_texts()
        if self._texts is None:
            new = [*pieces_of(sorted(self._new), most)]
            self._texts = (*self._kept, *new)
            if len(self._new) >= _SEALED:
                self._kept += new
                self._new = set()
        return self._texts

    def _forget_texts(self) -> None:
        self._new, self._kept, self._texts = set(self._all), [], None
