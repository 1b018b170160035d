"""Offsets that are complete and not in the state, as they are written: in as many pieces as they take. Pure.

Of a partition they are those since the older of two full snapshots. Most often there are few. Where nearly everything
is put away, or no full snapshot can be written, they are many, and a record of a topic has a largest size: so an
increment holds them only as long as they are few, and then stands behind records that hold them. See
:mod:`~aioparallel.persistence.state.increments`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from aioparallel.offsets import decode_offset_map, encode_offset_map

__all__ = ["LARGEST_PIECE", "NONE", "Unapplied", "UnappliedOffsets", "pieces_of", "read_unapplied", "write_unapplied"]

LARGEST_PIECE: Final = 512 * 1024
"""Bytes of a text, as large as a piece of a full snapshot: topics of a state take that."""
_LISTED: Final = 1_000_000
"""Offsets in one text, at most: a map that lists four times as many is refused."""
_SEALED: Final = 500_000
"""Offsets that are written anew with each commit that adds some, at most: that takes about 100 ms. Those before are
kept as texts."""


class Unapplied(NamedTuple):
    """Offsets, as they are written."""

    first: int
    text: str


NONE: Final = Unapplied(0, "")


def write_unapplied(offsets: Collection[int]) -> Unapplied:
    """These, in any order."""
    ordered = sorted(offsets)
    return Unapplied(ordered[0], encode_offset_map(ordered[0], ordered[-1], ordered, limit=None)) if ordered else NONE


def read_unapplied(found: Unapplied) -> Sequence[int]:
    """Ascending. Raises ValueError."""
    return decode_offset_map(*found).incompletes


def pieces_of(ordered: Sequence[int], most: int) -> Iterator[Unapplied]:
    """These, which ascend, in texts of ``most`` bytes at most."""
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
    """Those of one partition, as a set that can be written."""

    def __init__(self, offsets: Iterable[int] = ()) -> None:
        self._all = set(offsets)
        self._new = set(self._all)  # in no text that is kept
        self._kept: list[Unapplied] = []
        self._texts: tuple[Unapplied, ...] | None = None  # None: something has come, or gone
        self._most = LARGEST_PIECE

    def __len__(self) -> int:
        return len(self._all)

    def add(self, offset: int) -> None:
        """One more."""
        self._all.add(offset)
        self._new.add(offset)
        self._texts = None

    def keep(self, is_kept: Callable[[int], bool]) -> None:
        """Only those of which this says so."""
        self._all = {offset for offset in self._all if is_kept(offset)}
        self._forget_texts()

    def texts(self, most: int) -> Sequence[Unapplied]:
        """All of them, in texts of ``most`` bytes at most: their union. Most often it is one."""
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
