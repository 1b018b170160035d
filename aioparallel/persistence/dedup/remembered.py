"""What was seen of one partition: the newest identities, in chunks that are written and read as one. Pure.

It is a log of what was seen, kept as a topic is compacted: identities are put into the newest chunk, and one that is
seen further moves there from where it was. When there are more than may be remembered the oldest go. A chunk is small,
so that a commit rewrites little; small neighbours are put together, so that there are few.

Two memories of the same partition (of an owner that was thought dead, and of its successor) may both be written: what
follows from their chunks together is right, because each says only what was really seen, and under names of its own.
Chunks that were found are copied to such names, a few with each commit, and go from the topic when all of them are:
until then the owner before, whose chunks they are, may still take entries out of one and put them into another.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from aioparallel.persistence.dedup.identities import ONCE, Identity, Mark, Position, covers, joined

__all__ = ["Change", "Changes", "Memory"]

_ENTRIES: Final = 1_000
"""Identities in one chunk: to write one takes about a millisecond."""
_BYTES: Final = 256 * 1024
"""Bytes of keys and of their digests in one chunk, about."""
_COPIED: Final = 10
"""Chunks of others that are copied with one commit."""


class _Chunk:
    """``version`` grows with what is put in. What goes from it is not written: to remember it longer does no harm."""

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
    """A chunk as it is to be written now; None: there is none of this name any more."""

    name: str
    number: int
    entries: Mapping[Identity, Position] | None


class Changes(NamedTuple):
    """All that is to be written at one moment, in this order. Where only a first part of it is written, nothing that
    stood there before is missing."""

    changes: Sequence[Change]
    versions: Sequence[tuple[_Chunk, int]]


class Memory:
    """At most ``most`` identities, those that were seen last."""

    def __init__(self, most: int) -> None:
        self._most = most
        writer = uuid.uuid4().hex[:8]
        self._names = (f"{writer}-{count}" for count in itertools.count())
        self._chunks: list[_Chunk] = []  # by number, ascending
        self._where: dict[Identity, _Chunk] = {}
        self._gone: dict[str, int] = {}  # names and numbers
        self._gone_of_others: dict[str, int] = {}  # the same, of chunks that were found
        self._next_number = 0

    def __len__(self) -> int:
        return len(self._where)

    def position(self, identity: Identity) -> Position | None:
        """How far it was seen; None: not at all."""
        chunk = self._where.get(identity)
        return None if chunk is None else chunk.entries[identity]

    def remember(self, identity: Identity, position: Position = ONCE) -> None:
        """It was seen, up to here."""
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
        """A chunk that was written. All of them by number, ascending, before anything else."""
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

    # -- to be written ----------------------------------------------------------------------------------

    def changes(self) -> Changes:
        """What is not written yet, as it is now."""
        self._tidy()
        if any(chunk.written != chunk.version for chunk in self._chunks):
            self._copy_others()
        # The newest first: an entry only ever moves to a newer chunk, which is to stand there before the older one
        # stands there without it.
        dirty = [chunk for chunk in reversed(self._chunks) if chunk.written != chunk.version]
        written = [Change(chunk.name, chunk.number, dict(chunk.entries)) for chunk in dirty]
        gone = [Change(name, number, None) for name, number in self._gone.items()]
        if all(chunk.is_own for chunk in self._chunks):
            gone += [Change(name, number, None) for name, number in self._gone_of_others.items()]
        return Changes([*written, *gone], [(chunk, chunk.version) for chunk in dirty])

    def written(self, changes: Changes) -> None:
        """These are acknowledged."""
        for chunk, version in changes.versions:
            chunk.written = max(chunk.written, version)
        for change in changes.changes:
            if change.entries is None:
                self._gone.pop(change.name, None)
                self._gone_of_others.pop(change.name, None)

    def _copy_others(self) -> None:
        """The newest first: the oldest may be forgotten by the time it is their turn."""
        others = (chunk for chunk in reversed(self._chunks) if not chunk.is_own)
        for chunk in itertools.islice(others, _COPIED):
            self._go(chunk)
            chunk.name, chunk.is_own = next(self._names), True
            chunk.version += 1

    def _go(self, chunk: _Chunk) -> None:
        """There is no chunk of this name any more."""
        (self._gone if chunk.is_own else self._gone_of_others)[chunk.name] = chunk.number

    def _tidy(self) -> None:
        """Drop empty chunks, and put neighbours together that have room for one another."""
        kept: list[_Chunk] = []
        for chunk in self._chunks:
            if not chunk.entries:
                self._go(chunk)
                continue
            before = kept[-1] if kept else None
            # All but the newest: what is written again and again stays small.
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
            # Whoever was thought dead may still write what was found, and must not write over this one.
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
