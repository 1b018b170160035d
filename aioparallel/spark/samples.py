"""Records that a schema does not read: from_json says nothing of them, it gives NULL."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pyspark.sql.types import StructField, StructType

__all__ = ["Sampled", "misfits"]

_SHOWN: Final = 60
"""Characters of a value in a message."""


class Sampled(NamedTuple):
    """A record: where it stands, its value as text, and what from_json made of it, structs as dictionaries."""

    place: str
    text: str
    parsed: Mapping[str, Any] | None


@dataclass
class _Seen:
    """What was seen of one field of the schema in all records."""

    wanted: StructField
    looks: int = 0
    absent: int = 0
    null: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def misfits(schema: StructType, records: Sequence[Sampled]) -> list[str]:
    """What the schema does not read, in a sentence for each field, each with what to do; empty where all fits.

    Told are values that are no JSON objects, nor anything else that Spark reads; fields that have a value and are read
    as NULL; fields that no record has; and those missing or null though the schema says NOT NULL (which from_json does
    not look at).
    """
    seen: dict[str, _Seen] = {}
    names: set[str] = set()
    strangers: list[str] = []
    for record in records:
        value = _object(record.text)
        if value is None:
            if any((record.parsed or {}).get(wanted.name) is not None for wanted in schema):
                continue  # Spark reads more than JSON, as 'single quotes'
            strangers.append(f"{_short(record.text)} at {record.place}")
            continue
        names |= value.keys()
        for name, wanted, original, read in _fields("", schema, value, record.parsed or {}):
            _note(seen.setdefault(name, _Seen(wanted)), original, read, record.place)
    sentences = [sentence for name, found in seen.items() for sentence in _verdicts(name, found, names)]
    if strangers:
        sentences.insert(
            0,
            f"{len(strangers)} of {len(records)} values are no JSON objects, as {strangers[0]}: leave schema out where "
            "they are another format, or sort them out before from_json",
        )
    return sentences


_ABSENT: Final = object()


def _fields(
    prefix: str, schema: StructType, value: Mapping[str, Any], parsed: Mapping[str, Any]
) -> Iterator[tuple[str, StructField, Any, Any]]:
    """Each field of the schema, those of structs too: its name, what the record has, and what was read."""
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
            f"field {name} is read as NULL from {len(seen.unread)} of {seen.looks} records that have it, as "
            f"{seen.unread[0]}: {kind} does not read that; give it another type, or mend what is produced"
        )
    if seen.absent == seen.looks:
        others = "" if "." in name else f" (they have {', '.join(sorted(names))})"
        yield f"field {name} is in none of {seen.looks} records{others}: mend its name, or leave it out"
    elif seen.null and not seen.wanted.nullable:
        yield (
            f"field {name} is NOT NULL, and missing or null in {len(seen.null)} of {seen.looks} records, the first at "
            f"{seen.null[0]}: from_json gives NULL all the same; let it be NULL, or filter"
        )


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # the second: nested deeper than Spark reads, too
        return None
    return value if isinstance(value, dict) else None


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
