"""The deduplication memory of one partition: the newest identities, in chunks. Pure.

A chunk is one record of the topic. A new identity goes into the newest chunk. So does an identity with a new position,
and leaves its old chunk. Above the limit, the oldest identities are forgotten. Chunks are small, so that a commit
rewrites little. Small neighbours are merged, so that there are few chunks.

Two owners of a partition may write at the same time: one that the group considers dead, and its successor. Their chunks
together are still right: each owner writes only what was seen, under chunk names of its own. A successor copies the
chunks it found to its own names, a few with each commit. It deletes the originals after all of them are copied, because
the earlier owner may still move entries from one to another.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from aioparallel.persistence.dedup.identities import ONCE, Identity, Mark, Position, covers, joined

__all__ = ["Change", "Changes", "Memory"]

_ENTRIES: Final = 1_000
"""Identities in one chunk, at most. Encoding a chunk takes about a millisecond."""
_BYTES: Final = 256 * 1024
"""Bytes of keys and digests in one chunk, about."""
_COPIED: Final = 10
"""Chunks of earlier owners that are copied with one commit."""


class _Chunk:
    """``version`` grows with each added identity.

    A removal alone causes no write: remembering an identity for longer does no harm.
    """

    __slots__ = ("entries", "is_own", "name", "number", "room", "version", "written")

    def __init__(self, name: str, number: int, *, is_own: bool) -> None:
        self.name = name
        self.number = number
        self.is_own = is_own
        self.entries: dict[Identity, Position] = {}
        self.room = _BYTES
        self.version = 0
        self.written = 0

    @property
    def is_full(self) -> bool:
        return len(self.entries) >= _ENTRIES or self.room <= 0


class Change(NamedTuple):
    """A chunk to write. ``entries`` is None if the chunk is to be deleted."""

    name: str
    number: int
    entries: Mapping[Identity, Position] | None


class Changes(NamedTuple):
    """The writes of one moment, in order. If only the first of them are stored, no stored identity is lost."""

    changes: Sequence[Change]
    versions: Sequence[tuple[_Chunk, int]]


class Memory:
    """The identities that were seen last, at most ``most``."""

    def __init__(self, most: int) -> None:
        self._most = most
        writer = uuid.uuid4().hex[:8]
        self._names = (f"{writer}-{count}" for count in itertools.count())
        self._chunks: list[_Chunk] = []  # by number, ascending
        self._where: dict[Identity, _Chunk] = {}
        self._gone: dict[str, int] = {}  # names and numbers of own chunks to delete
        self._gone_of_others: dict[str, int] = {}  # the same for chunks of earlier owners
        self._next_number = 0

    def __len__(self) -> int:
        return len(self._where)

    def position(self, identity: Identity) -> Position | None:
        """Returns the position up to which the identity was seen; None if it was not."""
        chunk = self._where.get(identity)
        return None if chunk is None else chunk.entries[identity]

    def remember(self, identity: Identity, position: Position = ONCE) -> None:
        """Add an identity that was seen up to this position."""
        chunk = self._where.get(identity)
        if chunk is not None:
            if covers(chunk.entries[identity], position):
                return
            position = joined(chunk.entries[identity], position)
            self._leave(identity, chunk)
        self._put(identity, position)
        if len(self._where) > self._most:
            self._forget_oldest()

    def restore(self, name: str, number: int, entries: Mapping[Identity, Position]) -> None:
        """Add a stored chunk. Call it first, in ascending order of the numbers."""
        chunk = _Chunk(name, number, is_own=False)
        chunk.version = chunk.written = 1
        self._chunks.append(chunk)
        self._next_number = max(self._next_number, number + 1)
        for identity, written in entries.items():
            position = written
            older = self._where.get(identity)
            if older is not None:
                position = joined(older.entries[identity], position)
                self._leave(identity, older)
            chunk.entries[identity] = position
            chunk.room -= _size(identity, position)
            self._where[identity] = chunk
        while len(self._where) > self._most:
            self._forget_oldest()

    # -- changes ----------------------------------------------------------------------------------------

    def changes(self) -> Changes:
        """Returns what must be written now."""
        self._tidy()
        if any(chunk.written != chunk.version for chunk in self._chunks):
            self._copy_others()
        # The newest first: entries only move to newer chunks, and a newer chunk must be stored before the older one is
        # stored without the entry.
        dirty = [chunk for chunk in reversed(self._chunks) if chunk.written != chunk.version]
        written = [Change(chunk.name, chunk.number, dict(chunk.entries)) for chunk in dirty]
        gone = [Change(name, number, None) for name, number in self._gone.items()]
        if all(chunk.is_own for chunk in self._chunks):
            gone += [Change(name, number, None) for name, number in self._gone_of_others.items()]
        return Changes([*written, *gone], [(chunk, chunk.version) for chunk in dirty])

    def written(self, changes: Changes) -> None:
        """These changes are acknowledged."""
        for chunk, version in changes.versions:
            chunk.written = max(chunk.written, version)
        for change in changes.changes:
            if change.entries is None:
                self._gone.pop(change.name, None)
                self._gone_of_others.pop(change.name, None)

    def _copy_others(self) -> None:
        # The newest first: the oldest may be forgotten before their turn.
        others = (chunk for chunk in reversed(self._chunks) if not chunk.is_own)
        for chunk in itertools.islice(others, _COPIED):
            self._go(chunk)
            chunk.name, chunk.is_own = next(self._names), True
            chunk.version += 1

    def _go(self, chunk: _Chunk) -> None:
        """Delete the chunk of this name with the next changes."""
        (self._gone if chunk.is_own else self._gone_of_others)[chunk.name] = chunk.number

    def _tidy(self) -> None:
        """Drop empty chunks, and merge neighbours that fit into one chunk."""
        kept: list[_Chunk] = []
        for chunk in self._chunks:
            if not chunk.entries:
                self._go(chunk)
                continue
            before = kept[-1] if kept else None
            # Not the newest: it is written often, so it stays small.
            if before is not None and chunk is not self._chunks[-1] and _fit(before, chunk):
                kept.pop()
                self._merge(before, chunk)
            kept.append(chunk)
        self._chunks = kept

    def _merge(self, older: _Chunk, newer: _Chunk) -> None:
        newer.entries = {**older.entries, **newer.entries}
        newer.room -= _BYTES - older.room
        newer.version += 1
        self._where.update(dict.fromkeys(older.entries, newer))
        self._go(older)

    # -- entries ----------------------------------------------------------------------------------------

    def _put(self, identity: Identity, position: Position) -> None:
        newest = self._chunks[-1] if self._chunks else None
        if newest is None or newest.is_full or not newest.is_own:
            # An earlier owner may still write its chunks, so nothing new goes into them.
            newest = _Chunk(next(self._names), self._next_number, is_own=True)
            self._next_number += 1
            self._chunks.append(newest)
        newest.entries[identity] = position
        newest.room -= _size(identity, position)
        newest.version += 1
        self._where[identity] = newest

    def _leave(self, identity: Identity, chunk: _Chunk) -> None:
        chunk.room += _size(identity, chunk.entries.pop(identity))

    def _forget_oldest(self) -> None:
        while not self._chunks[0].entries:
            self._go(self._chunks.pop(0))
        oldest = self._chunks[0]
        identity = next(iter(oldest.entries))
        self._leave(identity, oldest)
        del self._where[identity]


def _fit(older: _Chunk, newer: _Chunk) -> bool:
    return (
        older.is_own
        and newer.is_own
        and len(older.entries) + len(newer.entries) <= _ENTRIES
        and (_BYTES - older.room) + (_BYTES - newer.room) <= _BYTES
    )


def _size(identity: Identity, position: Position) -> int:
    return len(identity.key) + sum(map(len, position.digests)) if isinstance(identity, Mark) else 0
