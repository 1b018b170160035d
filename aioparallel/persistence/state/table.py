"""The values of one partition, by key. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

__all__ = ["Frozen", "Table"]

S = TypeVar("S")

_SHARDS: Final = 64


class Table(Generic[S]):
    """Values by key, with consistent copies that are read while the table changes.

    The table has shards, so that no step takes long. While a copy is read, each shard is copied before its first
    change. With a million keys, copying a shard takes 0.3 ms.
    """

    __slots__ = ("_frozen", "_shards")

    def __init__(self) -> None:
        self._shards: list[dict[bytes, S]] = [{} for _ in range(_SHARDS)]
        self._frozen: Frozen[S] | None = None

    @property
    def count(self) -> int:
        """The number of keys that have a value."""
        return sum(map(len, self._shards))

    def get(self, key: bytes, initial: S) -> S:
        """Returns the value of a key, or ``initial``."""
        return self._shards[hash(key) % _SHARDS].get(key, initial)

    def set(self, key: bytes, value: S | None) -> None:
        """Set the value of a key; None deletes it."""
        number = hash(key) % _SHARDS
        if self._frozen is not None:
            self._frozen.before_change(number)
        if value is None:
            self._shards[number].pop(key, None)
        else:
            self._shards[number][key] = value

    def freeze(self) -> Frozen[S]:
        """Returns a copy of the current values. Only one may exist at a time; :meth:`Frozen.release` frees it."""
        self._frozen = Frozen(self, self._shards)
        return self._frozen

    def thaw(self, frozen: Frozen[S]) -> None:
        """Stop copying shards for this copy."""
        if self._frozen is frozen:
            self._frozen = None

    def items(self) -> Iterator[tuple[bytes, S]]:
        """Yield all keys and values. The table must not change meanwhile."""
        for shard in self._shards:
            yield from shard.items()


class Frozen(Generic[S]):
    """The values of a table at one moment."""

    __slots__ = ("_copies", "_left", "_shards", "_table", "count")

    def __init__(self, table: Table[S], shards: list[dict[bytes, S]]) -> None:
        self._table = table
        self._shards = shards
        self._left = set(range(len(shards)))
        self._copies: dict[int, list[tuple[bytes, S]]] = {}
        self.count = table.count

    def before_change(self, number: int) -> None:
        """Copy this shard, which is about to change, unless it is copied."""
        if number in self._left:
            self._left.remove(number)
            self._copies[number] = [*self._shards[number].items()]

    def shards(self) -> Iterator[list[tuple[bytes, S]]]:
        """Yield each shard once. The table may change in between."""
        for number in range(len(self._shards)):
            self.before_change(number)
            yield self._copies.pop(number)

    def release(self) -> None:
        """Free the copies."""
        self._table.thaw(self)
        self._copies.clear()
        self._left.clear()
