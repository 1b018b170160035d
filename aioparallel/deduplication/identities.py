"""By what two copies of a record are known. Pure.

A copy names the record it was made of (:mod:`aioparallel.coordinates`). Two kinds of identity follow:

* *by record*: these coordinates themselves. Nothing is asked of the order in which copies come.
* *by key*: a high-water mark for each key and source partition. It is exact where each attempt of the stage before
  writes a prefix of a key's records, in their order: then whatever is at or below the mark was seen. A mark for each
  source partition alone would not do: behind a stage that runs keys at once it loses nearly everything (measured:
  49,536 of 50,000 records).

A record that was sent again on purpose (a dead letter, a record in a retry topic) is another one than the first: its
identity holds what its headers say of that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from aioparallel.coordinates import coordinates_of
from aioparallel.delivery.letters import ATTEMPTS, REPLAYED, REPLAYED_FOR
from aioparallel.records import Record

__all__ = ["ONCE", "Identify", "Identity", "Mark", "Position", "RecordIdentity", "identify_by"]


_TAGS: Final = frozenset({REPLAYED, REPLAYED_FOR, ATTEMPTS})


class RecordIdentity(NamedTuple):
    """One record, by where its source stands."""

    topic: str
    partition: int
    offset: int
    nth: int
    tag: str
    """Of one that was sent again: by which letter, or after how many attempts; else empty."""


class Mark(NamedTuple):
    """The records of one key that were made of one partition's."""

    topic: str
    partition: int
    key: bytes
    """Of a long one its begin and a digest, 256 bytes: what is remembered has to fit a record."""


Identity: TypeAlias = RecordIdentity | Mark

Position: TypeAlias = tuple[int, int]
"""Offset and number of a record below a mark; what is at or before it was seen."""

ONCE: Final[Position] = (0, 0)
"""The position of what is seen or not, as a whole."""

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
    return None if source is None else (RecordIdentity(*source, _tag(record, group_id)), ONCE)


def _by_key(group_id: str, record: Record[Any, Any]) -> tuple[Identity, Position] | None:
    """A place in the records of its key. One without a key has no order, and one that was sent again is older than what
    its key has seen since: both are known by themselves."""
    source = coordinates_of(record.headers)
    if source is None:
        return None
    tag = _tag(record, group_id)
    if record.key is None or tag:
        return RecordIdentity(*source, tag), ONCE
    return Mark(source.topic, source.partition, _short(record.key)), (source.offset, source.nth)


def _short(key: bytes) -> bytes:
    return key if len(key) < _LONG else key[: _LONG - 64] + blake2b(key).digest()


def _tag(record: Record[Any, Any], group_id: str) -> str:
    told = {name: value for name, value in record.headers if value is not None and name in _TAGS}
    if not told:
        return ""
    replayed = told.get(REPLAYED)
    # One that another group had not handled is a copy like any other here.
    if replayed is not None and told.get(REPLAYED_FOR, b"") in (b"", group_id.encode()):
        return replayed.decode("utf-8", "replace")[:_LONG]
    return told.get(ATTEMPTS, b"").decode("utf-8", "replace")[:_LONG]
