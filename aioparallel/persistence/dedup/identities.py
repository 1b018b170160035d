"""The identities by which copies of a record are recognised. Pure.

A copy names the record it was made of (:mod:`aioparallel.records.source_headers`). Two kinds of identity follow:

* *by record*: the coordinates themselves. Copies may arrive in any order.
* *by key*: a high-water mark for each key and source partition. It is exact if each attempt of the previous stage
  writes a prefix of a key's records in order: then every record at or below the mark was seen. One mark for a whole
  source partition is not enough. Behind a stage that runs keys concurrently it loses nearly everything (measured:
  49,536 of 50,000 records).

Several records that were made of one record have the same coordinates. A number (``src-index``) or a digest
(``src-digest``) distinguishes them. A mark holds the digests that were seen at its offset.

A record that was sent again on purpose (a replayed dead letter, a record in a retry topic) is not a copy of the first.
The tag in its identity is made of the headers of that delivery.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from aioparallel.delivery.letters import ATTEMPTS, GROUP, ORIGIN_TOPIC, REPLAYED, REPLAYED_FOR
from aioparallel.records.record import Record
from aioparallel.records.source_headers import Coordinates, coordinates_of

__all__ = [
    "ONCE",
    "Identify",
    "Identity",
    "Mark",
    "Position",
    "RecordIdentity",
    "covers",
    "identify_by",
    "is_latest",
    "joined",
]


_TAGS: Final = frozenset({REPLAYED, REPLAYED_FOR, ATTEMPTS, GROUP, ORIGIN_TOPIC})


class RecordIdentity(NamedTuple):
    """One record, by the coordinates of its source."""

    topic: str
    partition: int
    offset: int
    nth: int
    tag: str
    """Of a record that was sent again: the dead letter, or the attempts, the original topic and the group; else
    empty."""
    digest: str = ""
    """Distinguishes records that were made of the same record; else empty."""


class Mark(NamedTuple):
    """The records of one key that were made of one source partition."""

    topic: str
    partition: int
    key: bytes
    """A long key is shortened to its first bytes and a digest, 256 bytes together, so that chunks fit a record."""


Identity: TypeAlias = RecordIdentity | Mark


class Position(NamedTuple):
    """A high-water mark: all records before it were seen, and at it those with these digests, or without any."""

    offset: int
    nth: int = 0
    digests: tuple[str, ...] = ()


ONCE: Final = Position(0)
"""The position of an identity that is a single record."""

_DIGESTS: Final = 256
"""The last digests that a mark holds: a copy of an older one is handled again."""

_LONG: Final = 256
"""Keys of so many bytes, and tags of so many characters, are shortened."""

Identify: TypeAlias = Callable[[Record[Any, Any]], tuple[Identity, Position] | None]
"""Takes a record as fetched. Returns None if its headers do not name a source."""


def identify_by(by: Literal["record", "key"], group_id: str) -> Identify:
    """Returns the function for ``Deduplicate(by=...)`` in this group."""
    return partial(_by_record if by == "record" else _by_key, group_id)


def _by_record(group_id: str, record: Record[Any, Any]) -> tuple[Identity, Position] | None:
    source = coordinates_of(record.headers)
    return None if source is None else (_identity(source, _tag(record, group_id)), ONCE)


def _by_key(group_id: str, record: Record[Any, Any]) -> tuple[Identity, Position] | None:
    """Records without a key have no order, and records that were sent again are older than the mark of their key. Both
    are identified by record."""
    source = coordinates_of(record.headers)
    if source is None:
        return None
    tag = _tag(record, group_id)
    if record.key is None or tag:
        return _identity(source, tag), ONCE
    digests = (source.digest,) if source.digest else ()
    mark = Mark(source.topic, source.partition, _short(record.key))
    return mark, Position(source.offset, source.nth, digests)


def covers(seen: Position, position: Position) -> bool:
    """Whether a record at this position was seen. If only records without a digest were seen there, one with a digest
    was not: it may be another of several."""
    if seen[:2] != position[:2]:
        return seen > position
    return not position.digests or position.digests[0] in seen.digests


def joined(seen: Position | None, position: Position) -> Position:
    """Returns the mark that covers both."""
    if seen is None or seen[:2] < position[:2]:
        return position
    if seen[:2] > position[:2] or not position.digests:
        return seen
    digests = dict.fromkeys((*seen.digests, *position.digests))
    return seen._replace(digests=(*digests,)[-_DIGESTS:])


def is_latest(seen: Position, position: Position) -> bool:
    """Whether the mark was last advanced by a record at this position."""
    return seen[:2] == position[:2] and seen.digests[-1:] == position.digests


def _identity(source: Coordinates, tag: str) -> RecordIdentity:
    return RecordIdentity(source.topic, source.partition, source.offset, source.nth, tag, source.digest)


def _short(key: bytes) -> bytes:
    return key if len(key) < _LONG else key[: _LONG - 64] + blake2b(key).digest()


def _tag(record: Record[Any, Any], group_id: str) -> str:
    tags = {name: value for name, value in record.headers if value is not None and name in _TAGS}
    if not tags:
        return ""
    replayed = tags.get(REPLAYED)
    # A replay for another group is an ordinary copy in this group.
    if replayed is not None and tags.get(REPLAYED_FOR, b"") in (b"", group_id.encode()):
        return _text(replayed)
    if (attempts := tags.get(ATTEMPTS)) is None:
        return ""
    # Records of several topics may have the same source, and one topic may hold dead letters of several groups.
    return _text(b" ".join((attempts, tags.get(ORIGIN_TOPIC, b""), tags.get(GROUP, b""))))


def _text(tag: bytes) -> str:
    text = tag.decode("utf-8", "replace")
    return text if len(text) < _LONG else f"{text[: _LONG // 2]} {blake2b(tag, digest_size=16).hexdigest()}"
