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
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from aioparallel.group.client import Committed
from aioparallel.offsets import decode_offset_map, encode_offset_map
from aioparallel.records import TopicPartition

__all__ = [
    "Increment",
    "Named",
    "Place",
    "Unapplied",
    "begin_of_increment",
    "decode_increment",
    "decode_place",
    "encode_increment",
    "encode_place",
    "read_unapplied",
    "write_unapplied",
]

_VERSION: Final = 1
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


class Unapplied(NamedTuple):
    """Offsets, as they are written."""

    first: int
    text: str


class Increment(NamedTuple):
    """What a commit adds to what is known of one partition's state."""

    position: Committed
    generation: int
    """Of the group, as the member that writes it knew it."""
    origin: int
    at: int
    """Milliseconds since the epoch."""
    unapplied: Unapplied
    snapshots: Sequence[Named]
    life: int = 0
    """Stands in the key."""
    last_generation: int = 0
    """Of the last one of this life, where that is another one; not written."""


class Place(NamedTuple):
    """Whose an increment is."""

    group_id: str
    partition: TopicPartition
    life: int


def write_unapplied(offsets: Collection[int]) -> Unapplied:
    """These, in any order."""
    ordered = sorted(offsets)
    return Unapplied(ordered[0], encode_offset_map(ordered[0], ordered[-1], ordered, limit=None)) if ordered else _NONE


def read_unapplied(found: Unapplied) -> Sequence[int]:
    """Ascending. Raises ValueError."""
    return decode_offset_map(*found).incompletes


_NONE: Final = Unapplied(0, "")


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


def begin_of_increment(position: Committed) -> bytes:
    """With what the value of one begins that is of this position."""
    told = {"v": _VERSION, "base": position.offset, "map": position.metadata}
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode()[:-1] + b","


def encode_increment(increment: Increment) -> bytes:
    """The value of its record."""
    told = {
        "v": _VERSION,
        "base": increment.position.offset,
        "map": increment.position.metadata,
        "generation": increment.generation,
        "origin": increment.origin,
        "at": increment.at,
        "unapplied": increment.unapplied,
        "snapshots": [one._asdict() for one in increment.snapshots],
    }
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode()


def decode_increment(data: bytes | None, life: int) -> Increment:
    """What :func:`encode_increment` was given. Raises ValueError for anything else."""
    try:
        told: Any = json.loads(data or b"")
        if told["v"] != _VERSION:
            raise ValueError(f"version {told['v']!r}, and not {_VERSION}")
        return Increment(
            Committed(_number(told["base"]), _text(told["map"])),
            _number(told["generation"]),
            _number(told["origin"]),
            _number(told["at"]),
            _unapplied(told["unapplied"]),
            [_named(one) for one in told["snapshots"]],
            life,
        )
    except (TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise ValueError(f"not as it is written: {error!r}") from error


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
