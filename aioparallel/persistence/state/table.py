"""The values of one partition, by key. Plain objects, no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

__all__ = ["Frozen", "Table"]

S = TypeVar("S")

_SHARDS: Final = 64


class Table(Generic[S]):
    """Values by key, of which a copy can be taken as they are at one moment while they change.

    In shards, so that no step takes long: of what is frozen, a shard is copied before the first change to it. With a
    million keys that is 0.3 ms each time.
    """

    __slots__ = ("_frozen", "_shards")

    def __init__(self) -> None:
        self._shards: list[dict[bytes, S]] = [{} for _ in range(_SHARDS)]
        self._frozen: Frozen[S] | None = None

    @property
    def count(self) -> int:
        """Keys that have a value."""
        return sum(map(len, self._shards))

    def get(self, key: bytes, initial: S) -> S:
        """The value of a key, or ``initial``."""
        return self._shards[hash(key) % _SHARDS].get(key, initial)

    def set(self, key: bytes, value: S | None) -> None:
        """It has this value now; None: it has none."""
        number = hash(key) % _SHARDS
        if self._frozen is not None:
            self._frozen.before_change(number)
        if value is None:
            self._shards[number].pop(key, None)
        else:
            self._shards[number][key] = value

    def freeze(self) -> Frozen[S]:
        """All as it is now. One at a time; :meth:`Frozen.release` ends it."""
        self._frozen = Frozen(self, self._shards)
        return self._frozen

    def thaw(self, frozen: Frozen[S]) -> None:
        """Nobody looks at that any more."""
        if self._frozen is frozen:
            self._frozen = None

    def items(self) -> Iterator[tuple[bytes, S]]:
        """All keys and values; nothing may change meanwhile."""
        for shard in self._shards:
            yield from shard.items()


class Frozen(Generic[S]):
    """A table as it was at one moment."""

    __slots__ = ("_copies", "_left", "_shards", "_table", "count")

    def __init__(self, table: Table[S], shards: list[dict[bytes, S]]) -> None:
        self._table = table
        self._shards = shards
        self._left = set(range(len(shards)))
        self._copies: dict[int, list[tuple[bytes, S]]] = {}
        self.count = table.count

    def before_change(self, number: int) -> None:
        """This shard changes next."""
        if number in self._left:
            self._left.remove(number)
            self._copies[number] = [*self._shards[number].items()]

    def shards(self) -> Iterator[list[tuple[bytes, S]]]:
        """All of it, once, part by part; the table may change in between."""
        for number in range(len(self._shards)):
            self.before_change(number)
            yield self._copies.pop(number)

    def release(self) -> None:
        """Keep no copies any more."""
        self._table.thaw(self)
        self._copies.clear()
        self._left.clear()
