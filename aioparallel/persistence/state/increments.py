"""Increments as records of a compacted topic. Pure.

The key is JSON: ``["group", "topic", partition, incarnation, owner]``. A new incarnation begins when a group has no
position (it is new, or its offsets were deleted), and when its generations start again (it was deleted, and then given
a position). Its number is the end offset of the increments' partition at that time, so a later incarnation never uses
an increment of an earlier one. The owner is the generation of the member that writes, modulo 32: a late write of a
former owner has another key, and compaction does not remove the current owner's increment for it. The value is JSON::

    {"v": 1, "base": 1200, "map": "...", "generation": 17, "origin": 0, "at": 1790000000000,
     "unapplied": [1007, "..."],
     "snapshots": [{"slot": 2, "id": "9f...", "at": 1790000000000, "first": 310, "next": 350, "pieces": 38,
                    "keys": 91000}]}

``base`` and ``map``: the offset and the offset map that are committed with the increment.
``generation``: the generation of the member that writes. A former owner's increment may arrive late and have the
position that its successor has committed, with other outcomes.
``origin``: the offset at which the state began, empty.
``at``: when the last full snapshot was taken, or the state began.
``unapplied``: the offsets that are complete and not in the state. They are the incomplete offsets of an offset map that
starts at the first of them.
``snapshots``: full snapshots that contain only committed records, the newest first.

Too many such offsets for one record (500,000, or 512 KiB of text) are written to records of their own, the parts. Then
the increment has version 2. A reader of version 1 refuses it, and does not assume that there are no such offsets::

    {"v": 2, ..., "unapplied": [0, ""], ..., "parts": {"id": "9f...", "number": 3}}

The parts precede their increment in the log. Their keys are ``["group", "topic", partition, incarnation, owner,
number]``, their values ``{"v": 2, "id": "9f...", "unapplied": [1007, "..."]}``. The offsets are the union of all parts.
Surplus parts of earlier increments are deleted. Readers of version 1 ignore such keys.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from aioparallel.group.client import Committed
from aioparallel.persistence.compacted_topic import read_key
from aioparallel.persistence.state.unapplied import Unapplied, read_unapplied
from aioparallel.records.record import TopicPartition

__all__ = [
    "Increment",
    "Named",
    "Parts",
    "Place",
    "begins_of_increment",
    "decode_increment",
    "decode_part",
    "decode_part_key",
    "decode_place",
    "encode_increment",
    "encode_part",
    "encode_part_key",
    "encode_place",
]

_VERSION: Final = 1
_VERSION_WITH_PARTS: Final = 2
_OWNERS: Final = 32


class Named(NamedTuple):
    """The location of a full snapshot, in the snapshots' partition of the same number."""

    slot: int
    """Which set of keys it uses: a later snapshot in the same slot replaces it."""
    id: str
    """Unique."""
    at: int
    """When it was taken, milliseconds since the epoch."""
    first: int
    next: int
    """The range of its offsets; ``next`` is not part of it."""
    pieces: int
    """The number of its records."""
    keys: int


class Parts(NamedTuple):
    """The records before an increment that hold the offsets not in the state."""

    id: str
    """Unique to the increment."""
    number: int


class Increment(NamedTuple):
    """What a commit of one partition writes for its state."""

    position: Committed
    generation: int
    """The group's generation, as the writing member knew it."""
    origin: int
    at: int
    """Milliseconds since the epoch."""
    unapplied: Unapplied
    """Empty if there are ``parts``, which hold the offsets then."""
    snapshots: Sequence[Named]
    incarnation: int = 0
    """Written in the key."""
    last_generation: int = 0
    """The generation of the last increment of this incarnation, if that is another increment; not written."""
    parts: Parts | None = None
    offset: int = -1
    """The offset at which it was read; not written."""


class Place(NamedTuple):
    """The owner of an increment."""

    group_id: str
    partition: TopicPartition
    incarnation: int


def encode_place(place: Place, generation: int) -> bytes:
    """Returns the key of an increment."""
    return json.dumps([place.group_id, *place.partition, place.incarnation, generation % _OWNERS]).encode()


def decode_place(data: bytes | None) -> Place | None:
    """Returns None for any other key."""
    match read_key(data):
        case [str(group_id), str(topic), int(partition), int(incarnation), int()]:
            return Place(group_id, TopicPartition(topic, partition), incarnation)
    return None


def encode_part_key(place: Place, generation: int, number: int) -> bytes:
    """Returns the key of a part."""
    return json.dumps([place.group_id, *place.partition, place.incarnation, generation % _OWNERS, number]).encode()


def decode_part_key(data: bytes | None) -> tuple[Place, int] | None:
    """Returns the owner and the number of the part, or None for any other key."""
    match read_key(data):
        case [str(group_id), str(topic), int(partition), int(incarnation), int(), int(number)]:
            return Place(group_id, TopicPartition(topic, partition), incarnation), number
    return None


def encode_part(parts: Parts, unapplied: Unapplied) -> bytes:
    """Returns the value of a part."""
    return _json({"v": _VERSION_WITH_PARTS, "id": parts.id, "unapplied": unapplied})


def decode_part(data: bytes | None, parts: Parts) -> Sequence[int] | None:
    """Returns its offsets, or None if it is not one of ``parts``. Raises ValueError if it is and cannot be read."""
    if data is None or not data.startswith(_json({"v": _VERSION_WITH_PARTS, "id": parts.id})[:-1] + b","):
        return None
    try:
        return read_unapplied(_unapplied(json.loads(data)["unapplied"]))
    except (TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise ValueError(f"not as it is written: {error!r}") from error


def begins_of_increment(position: Committed) -> tuple[bytes, ...]:
    """Returns the prefixes of the values of increments with this position, one for each version."""
    return tuple(
        _json({"v": version, "base": position.offset, "map": position.metadata})[:-1] + b","
        for version in (_VERSION, _VERSION_WITH_PARTS)
    )


def encode_increment(increment: Increment) -> bytes:
    """Returns the value of an increment."""
    fields: dict[str, object] = {
        "v": _VERSION if increment.parts is None else _VERSION_WITH_PARTS,
        "base": increment.position.offset,
        "map": increment.position.metadata,
        "generation": increment.generation,
        "origin": increment.origin,
        "at": increment.at,
        "unapplied": increment.unapplied,
        "snapshots": [one._asdict() for one in increment.snapshots],
    }
    if increment.parts is not None:
        fields["parts"] = increment.parts._asdict()
    return _json(fields)


def decode_increment(data: bytes | None, incarnation: int) -> Increment:
    """Raises ValueError for anything that :func:`encode_increment` does not return."""
    try:
        fields: Any = json.loads(data or b"")
        if fields["v"] not in (_VERSION, _VERSION_WITH_PARTS):
            raise ValueError(f"version {fields['v']!r}, and not {_VERSION} or {_VERSION_WITH_PARTS}")
        return Increment(
            Committed(_number(fields["base"]), _text(fields["map"])),
            _number(fields["generation"]),
            _number(fields["origin"]),
            _number(fields["at"]),
            _unapplied(fields["unapplied"]),
            [_named(one) for one in fields["snapshots"]],
            incarnation,
            parts=_parts(fields["parts"]) if fields["v"] == _VERSION_WITH_PARTS else None,
        )
    except (TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise ValueError(f"not as it is written: {error!r}") from error


def _json(fields: object) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def _parts(fields: Any) -> Parts:
    return Parts(_text(fields["id"]), _number(fields["number"]))


def _named(fields: Any) -> Named:
    numbers = {name: _number(fields[name]) for name in Named._fields if name != "id"}
    return Named(id=_text(fields["id"]), **numbers)


def _unapplied(fields: Any) -> Unapplied:
    found = Unapplied(_number(fields[0]), _text(fields[1]))
    read_unapplied(found)
    return found


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is not a number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value
