"""Increments as records of a compacted topic. Pure.

The key says whose it is, as JSON: ``["group", "topic", partition]``. The value is JSON::

    {"v": 1, "base": 1200, "map": "...", "origin": 0, "unapplied": [1007, 1103],
     "snapshots": [{"slot": 2, "id": "9f...", "at": 1790000000000, "first": 310, "next": 350, "pieces": 38,
                    "keys": 91000}]}

``base`` and ``map`` are what is committed with it, ``unapplied`` offsets that are complete and not in the state,
``snapshots`` full snapshots that say nothing which is not committed, the newest first. ``origin``: the state was begun,
empty, at this offset.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from aioparallel.group.client import Committed
from aioparallel.records import TopicPartition

__all__ = ["Increment", "Named", "decode_increment", "decode_place", "encode_increment", "encode_place"]

_VERSION: Final = 1


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


class Increment(NamedTuple):
    """What a commit adds to what is known of one partition's state."""

    position: Committed
    origin: int
    unapplied: Sequence[int]
    """Ascending."""
    snapshots: Sequence[Named]


def encode_place(group_id: str, partition: TopicPartition) -> bytes:
    """The key of its record."""
    return json.dumps([group_id, *partition]).encode()


def decode_place(data: bytes | None) -> tuple[str, TopicPartition] | None:
    """Group and partition; None: it is no key of ours."""
    try:
        match json.loads(data or b""):
            case [str(group_id), str(topic), int(partition)]:
                return group_id, TopicPartition(topic, partition)
    except (ValueError, RecursionError):
        pass
    return None


def encode_increment(increment: Increment) -> bytes:
    """The value of its record."""
    told = {
        "v": _VERSION,
        "base": increment.position.offset,
        "map": increment.position.metadata,
        "origin": increment.origin,
        "unapplied": [*increment.unapplied],
        "snapshots": [one._asdict() for one in increment.snapshots],
    }
    return json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode()


def decode_increment(data: bytes | None) -> Increment:
    """What :func:`encode_increment` was given. Raises ValueError for anything else."""
    try:
        told: Any = json.loads(data or b"")
        if told["v"] != _VERSION:
            raise ValueError(f"version {told['v']!r}, and not {_VERSION}")
        return Increment(
            Committed(_number(told["base"]), _text(told["map"])),
            _number(told["origin"]),
            [_number(offset) for offset in told["unapplied"]],
            [_named(one) for one in told["snapshots"]],
        )
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"not as it is written: {error!r}") from error


def _named(told: Any) -> Named:
    numbers = {name: _number(told[name]) for name in Named._fields if name != "id"}
    return Named(id=_text(told["id"]), **numbers)


def _number(found: object) -> int:
    if type(found) is not int or found < 0:
        raise TypeError(f"{found!r} is no number")
    return found


def _text(found: object) -> str:
    if not isinstance(found, str):
        raise TypeError(f"{found!r} is no text")
    return found
