"""Increments as records of a compacted topic. Pure.

The key says whose it is, as JSON: ``["group", "topic", partition, life, owner]``. A life begins where a group has no
position (it is new, or its offsets were deleted), and where its generations begin anew (it was deleted, and then given
a position): it is the offset at which the increments' partition ended then, so that no later life takes an increment
of an earlier one for its own. Owner is the generation of the member that writes,
modulo 32, so that no cleaner takes an increment away for one that a former owner has written late. The value is JSON::

    {"v": 1, "base": 1200, "map": "...", "generation": 17, "origin": 0, "at": 1790000000000,
     "unapplied": [1007, "..."],
     "snapshots": [{"slot": 2, "id": "9f...", "at": 1790000000000, "first": 310, "next": 350, "pieces": 38,
                    "keys": 91000}]}

``base`` and ``map`` are what is committed with it, ``generation`` that of the member that writes: a former owner's may
come late, and be of the very position that its successor has committed, with other outcomes. ``at`` is when the last
full snapshot was taken, or the state begun.
``unapplied``: the offsets that are complete and not in the state, as an offset map from the first of them on, whose
incomplete offsets they are.
``snapshots`` full snapshots that say nothing which is not committed, the newest first. ``origin``: the state was begun,
empty, at this offset.

Where these offsets are so many that a record could be too large for them (500,000, or 512 KiB of text), they stand in
records of their own, parts, and the increment is of version 2, which a reader of version 1 alone refuses rather than to
take them for none::

    {"v": 2, ..., "unapplied": [0, ""], ..., "parts": {"id": "9f...", "number": 3}}

The parts stand in the log before their increment, with the keys ``["group", "topic", partition, life, owner, number]``
and the values ``{"v": 2, "id": "9f...", "unapplied": [1007, "..."]}``: the union of all counts. Where there were more
of them before, those too many are deleted. Readers of version 1 take no notice of such keys.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from aioparallel.group.client import Committed
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
    """Where a full snapshot stands, in the partition of its number."""

    slot: int
    """Which of its places in the topic it takes: what is written there later takes its place."""
    id: str
    """What no other has."""
    at: int
    """When it was taken, milliseconds since the epoch."""
    first: int
    next: int
    """Its offsets: from ``first`` on, below ``next``."""
    pieces: int
    """Records that it is made of."""
    keys: int


class Parts(NamedTuple):
    """Records before an increment, which hold what is not in the state."""

    id: str
    """What no other increment's have."""
    number: int
    """How many there are."""


class Increment(NamedTuple):
    """What a commit adds to what is known of one partition's state."""

    position: Committed
    generation: int
    """Of the group, as the member that writes it knew it."""
    origin: int
    at: int
    """Milliseconds since the epoch."""
    unapplied: Unapplied
    """Where there are ``parts``, none: these hold them."""
    snapshots: Sequence[Named]
    life: int = 0
    """Stands in the key."""
    last_generation: int = 0
    """Of the last one of this life, where that is another one; not written."""
    parts: Parts | None = None
    offset: int = -1
    """Where it was read; not written."""


class Place(NamedTuple):
    """Whose an increment is."""

    group_id: str
    partition: TopicPartition
    life: int


def encode_place(place: Place, generation: int) -> bytes:
    """The key of its record."""
    return json.dumps([place.group_id, *place.partition, place.life, generation % _OWNERS]).encode()


def decode_place(data: bytes | None) -> Place | None:
    """None: it is no key of ours."""
    try:
        match json.loads(data or b""):
            case [str(group_id), str(topic), int(partition), int(life), int()]:
                return Place(group_id, TopicPartition(topic, partition), life)
    except (ValueError, RecursionError):
        pass
    return None


def encode_part_key(place: Place, generation: int, number: int) -> bytes:
    """The key of the record of a part."""
    return json.dumps([place.group_id, *place.partition, place.life, generation % _OWNERS, number]).encode()


def decode_part_key(data: bytes | None) -> tuple[Place, int] | None:
    """Whose it is, and its number. None: it is no key of a part."""
    try:
        match json.loads(data or b""):
            case [str(group_id), str(topic), int(partition), int(life), int(), int(number)]:
                return Place(group_id, TopicPartition(topic, partition), life), number
    except (ValueError, RecursionError):
        pass
    return None


def encode_part(parts: Parts, unapplied: Unapplied) -> bytes:
    """The value of the record of a part."""
    return _json({"v": _VERSION_WITH_PARTS, "id": parts.id, "unapplied": unapplied})


def decode_part(data: bytes | None, parts: Parts) -> Sequence[int] | None:
    """The offsets in it; None: it is not one of these. Raises ValueError where it is, and cannot be read."""
    if data is None or not data.startswith(_json({"v": _VERSION_WITH_PARTS, "id": parts.id})[:-1] + b","):
        return None
    try:
        return read_unapplied(_unapplied(json.loads(data)["unapplied"]))
    except (TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise ValueError(f"not as it is written: {error!r}") from error


def begins_of_increment(position: Committed) -> tuple[bytes, ...]:
    """With one of these the value of one begins that is of this position."""
    return tuple(
        _json({"v": version, "base": position.offset, "map": position.metadata})[:-1] + b","
        for version in (_VERSION, _VERSION_WITH_PARTS)
    )


def encode_increment(increment: Increment) -> bytes:
    """The value of its record."""
    told: dict[str, object] = {
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
        told["parts"] = increment.parts._asdict()
    return _json(told)


def decode_increment(data: bytes | None, life: int) -> Increment:
    """What :func:`encode_increment` was given. Raises ValueError for anything else."""
    try:
        told: Any = json.loads(data or b"")
        if told["v"] not in (_VERSION, _VERSION_WITH_PARTS):
            raise ValueError(f"version {told['v']!r}, and not {_VERSION} or {_VERSION_WITH_PARTS}")
        return Increment(
            Committed(_number(told["base"]), _text(told["map"])),
            _number(told["generation"]),
            _number(told["origin"]),
            _number(told["at"]),
            _unapplied(told["unapplied"]),
            [_named(one) for one in told["snapshots"]],
            life,
            parts=_parts(told["parts"]) if told["v"] == _VERSION_WITH_PARTS else None,
        )
    except (TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise ValueError(f"not as it is written: {error!r}") from error


def _json(told: object) -> bytes:
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode()


def _parts(told: Any) -> Parts:
    return Parts(_text(told["id"]), _number(told["number"]))


def _named(told: Any) -> Named:
    numbers = {name: _number(told[name]) for name in Named._fields if name != "id"}
    return Named(id=_text(told["id"]), **numbers)


def _unapplied(told: Any) -> Unapplied:
    found = Unapplied(_number(told[0]), _text(told[1]))
    read_unapplied(found)
    return found


def _number(found: object) -> int:
    if type(found) is not int or found < 0:
        raise TypeError(f"{found!r} is no number")
    return found


def _text(found: object) -> str:
    if not isinstance(found, str):
        raise TypeError(f"{found!r} is no text")
    return found
