"""Finds sampled records that a schema cannot read: from_json only returns NULL for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pyspark.sql.types import StructField, StructType

__all__ = ["Sampled", "misfits"]

_SHOWN: Final = 60
"""Characters of a value that a message shows."""


class Sampled(NamedTuple):
    """A record: its place, its value as text, and the result of from_json with structs as dicts."""

    place: str
    text: str
    parsed: Mapping[str, Any] | None


@dataclass
class _Seen:
    """Observations of one field of the schema over all records."""

    wanted: StructField
    looks: int = 0
    absent: int = 0
    null: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def misfits(schema: StructType, records: Sequence[Sampled]) -> list[str]:
    """A sentence for each field that the schema does not read, with what to do; empty if everything fits.

    Reports values that are no JSON objects and that Spark cannot read either; fields with a value that are read as
    NULL; fields that no record has; and fields that are missing or null though the schema says NOT NULL, which
    from_json ignores.
    """
    seen: dict[str, _Seen] = {}
    names: set[str] = set()
    unreadable: list[str] = []
    for record in records:
        value = _object(record.text)
        if value is None:
            if any((record.parsed or {}).get(wanted.name) is not None for wanted in schema):
                continue  # Spark reads more than JSON, such as 'single quotes'
            unreadable.append(f"{_short(record.text)} at {record.place}")
            continue
        names |= value.keys()
        for name, wanted, original, read in _fields("", schema, value, record.parsed or {}):
            _note(seen.setdefault(name, _Seen(wanted)), original, read, record.place)
    sentences = [sentence for name, found in seen.items() for sentence in _verdicts(name, found, names)]
    if unreadable:
        sentences.insert(
            0,
            f"{len(unreadable)} of {len(records)} values are no JSON objects, such as {unreadable[0]}: leave schema "
            "out if they have another format, or filter them before from_json",
        )
    return sentences


_ABSENT: Final = object()


def _fields(
    prefix: str, schema: StructType, value: Mapping[str, Any], parsed: Mapping[str, Any]
) -> Iterator[tuple[str, StructField, Any, Any]]:
    """Each field of the schema, also in structs: its name, the record's value and the value that was read."""
    for wanted in schema:
        original, read = value.get(wanted.name, _ABSENT), parsed.get(wanted.name)
        yield prefix + wanted.name, wanted, original, read
        if isinstance(wanted.dataType, StructType) and isinstance(original, dict) and isinstance(read, Mapping):
            yield from _fields(f"{prefix}{wanted.name}.", wanted.dataType, original, read)


def _note(seen: _Seen, original: object, read: object, place: str) -> None:
    seen.looks += 1
    seen.absent += original is _ABSENT
    if original is None or original is _ABSENT:
        seen.null.append(place)
    elif read is None:
        seen.unread.append(f"{_short(json.dumps(original))} at {place}")


def _verdicts(name: str, seen: _Seen, names: set[str]) -> Iterator[str]:
    kind = seen.wanted.dataType.simpleString()
    if seen.unread:
        yield (
            f"field {name} is read as NULL from {len(seen.unread)} of {seen.looks} records that have it, such as "
            f"{seen.unread[0]}: {kind} cannot read that; use another type, or fix the producer"
        )
    if seen.absent == seen.looks:
        others = "" if "." in name else f" (they have {', '.join(sorted(names))})"
        yield f"field {name} is in none of {seen.looks} records{others}: fix its name, or leave it out"
    elif seen.null and not seen.wanted.nullable:
        yield (
            f"field {name} is NOT NULL, and missing or null in {len(seen.null)} of {seen.looks} records, the first at "
            f"{seen.null[0]}: from_json returns NULL nevertheless; remove NOT NULL, or filter"
        )


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # RecursionError: nested deeper than Spark reads
        return None
    return value if isinstance(value, dict) else None


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
