"""By what two copies of a record are known. Pure.

A copy names the record it was made of (:mod:`aioparallel.records.source_headers`). Two kinds of identity follow:

* *by record*: these coordinates themselves. Nothing is asked of the order in which copies come.
* *by key*: a high-water mark for each key and source partition. It is exact where each attempt of the stage before
  writes a prefix of a key's records, in their order: then whatever is at or below the mark was seen. A mark for each
  source partition alone would not do: behind a stage that runs keys at once it loses nearly everything (measured:
  49,536 of 50,000 records).

Several records that were made of one have the same coordinates. A number (``src-index``) or a digest
(``src-digest``) tells them apart; a mark holds the digests that were seen at its own offset.

A record that was sent again on purpose (a dead letter, a record in a retry topic) is another one than the first: its
identity holds what its headers say of that.
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
    """One record, by where its source stands."""

    topic: str
    partition: int
    offset: int
    nth: int
    tag: str
    """Of one that was sent again: by which letter, or after how many attempts of which group on a record of which
    topic; else empty."""
    digest: str = ""
    """Of one among several that were made of one record; else empty."""


class Mark(NamedTuple):
    """The records of one key that were made of one partition's."""

    topic: str
    partition: int
    key: bytes
    """Of a long one its begin and a digest, 256 bytes: what is remembered has to fit a record."""


Identity: TypeAlias = RecordIdentity | Mark


class Position(NamedTuple):
    """Of a record below a mark. What is before it was seen; of what is at it, these digests, or all without any."""

    offset: int
    nth: int = 0
    digests: tuple[str, ...] = ()


ONCE: Final = Position(0)
"""The position of what is seen or not, as a whole."""

_DIGESTS: Final = 256
"""Digests that a mark holds, the last ones: a copy of an older one is handled again."""

_LONG: Final = 256
"""Bytes from which on a key, or characters of a tag, are remembered shortened."""

Identify: TypeAlias = Callable[[Record[Any, Any]], tuple[Identity, Position] | None]
"""Of a record as it was fetched. None: its headers do not say where it came from."""


def identify_by(by: Literal["record", "key"], group_id: str) -> Identify:
    """What ``Deduplicate(by=...)`` means, in this group."""
    return partial(_by_record if by == "record" else _by_key, group_id)


def _by_record(group_id: str, record: Record[Any, Any]) -> tuple[Identity, Position] | None:
    """The record itself."""
    source = coordinates_of(record.headers)
    return None if source is None else (_identity(source, _tag(record, group_id)), ONCE)


def _by_key(group_id: str, record: Record[Any, Any]) -> tuple[Identity, Position] | None:
    """A place in the records of its key. One without a key has no order, and one that was sent again is older than what
    its key has seen since: both are known by themselves."""
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
    """Whether a record at this position was seen. One with a digest was not seen where only others without were: it
    may be another one of several."""
    if seen[:2] != position[:2]:
        return seen > position
    return not position.digests or position.digests[0] in seen.digests


def joined(seen: Position | None, position: Position) -> Position:
    """How far was seen with these two together."""
    if seen is None or seen[:2] < position[:2]:
        return position
    if seen[:2] > position[:2] or not position.digests:
        return seen
    digests = dict.fromkeys((*seen.digests, *position.digests))
    return seen._replace(digests=(*digests,)[-_DIGESTS:])


def is_latest(seen: Position, position: Position) -> bool:
    """Whether a record at this position was the last that was joined to what was seen."""
    return seen[:2] == position[:2] and seen.digests[-1:] == position.digests


def _identity(source: Coordinates, tag: str) -> RecordIdentity:
    return RecordIdentity(source.topic, source.partition, source.offset, source.nth, tag, source.digest)


def _short(key: bytes) -> bytes:
    return key if len(key) < _LONG else key[: _LONG - 64] + blake2b(key).digest()


def _tag(record: Record[Any, Any], group_id: str) -> str:
    told = {name: value for name, value in record.headers if value is not None and name in _TAGS}
    if not told:
        return ""
    replayed = told.get(REPLAYED)
    # One that another group had not handled is a copy like any other here.
    if replayed is not None and told.get(REPLAYED_FOR, b"") in (b"", group_id.encode()):
        return _text(replayed)
    if (attempts := told.get(ATTEMPTS)) is None:
        return ""
    # One source may be behind records of several topics, and letters of several groups may stand in one topic.
    return _text(b" ".join((attempts, told.get(ORIGIN_TOPIC, b""), told.get(GROUP, b""))))


def _text(tag: bytes) -> str:
    text = tag.decode("utf-8", "replace")
    return text if len(text) < _LONG else f"{text[: _LONG // 2]} {blake2b(tag, digest_size=16).hexdigest()}"
