"""Adds digests to the outputs of one call that name the same source. Pure.

Two records of one topic whose headers name the same source are copies for :class:`~aioparallel.Deduplicate`. A
handler may make several outputs from one record, and pass on its headers or add ``source_headers(record)`` to each.
Deduplication would drop all but one of them. So each gets a header ``src-digest``, made from its key, value and
headers. Outputs that are equal in all of these are numbered as well. A second call with the same outputs, in any order,
gives the same digests. Different outputs have different digests, so they may be duplicated but are never lost.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from aioparallel.records.record import Outgoing
from aioparallel.records.source_headers import Coordinates, coordinates_of, with_digest

__all__ = ["with_digests"]

_DIGEST_BYTES: Final = 8


def with_digests(outputs: Sequence[Outgoing]) -> Sequence[Outgoing]:
    """Return the outputs of one call in their order. Outputs with the same topic and source as another one are replaced
    by copies with a ``src-digest``."""
    if len(outputs) < 2:
        return outputs
    try:
        names = [_name(output) for output in outputs]
    except TypeError:
        return outputs  # one was changed after it was made; sending it reports that
    counts = Counter(name for name in names if name is not None)
    if len(counts) == sum(counts.values()):
        return outputs
    equals: Counter[tuple[str, Coordinates, str]] = Counter()
    found: list[Outgoing] = []
    for output, name in zip(outputs, names, strict=True):
        if name is None or counts[name] == 1:
            found.append(output)
            continue
        digest = _digest(output, 0)
        place = equals[*name, digest]
        equals[*name, digest] += 1
        headers = with_digest(tuple(output.headers), digest if place == 0 else _digest(output, place))
        found.append(dataclasses.replace(output, headers=headers))
    return found


def _name(output: Outgoing) -> tuple[str, Coordinates] | None:
    output.check()
    source = coordinates_of(tuple(output.headers)) if output.headers else None
    return None if source is None else (output.topic, source)


def _digest(output: Outgoing, place: int) -> str:
    hashed = blake2b(digest_size=_DIGEST_BYTES)
    for part in _parts(output, place):
        # The length is included, so that ("ab", "c") and ("a", "bc") differ.
        hashed.update(b"-" if part is None else b"%d:%b" % (len(part), part))
    return hashed.hexdigest()


def _parts(output: Outgoing, place: int) -> Iterable[bytes | None]:
    yield output.key
    yield output.value
    for name, value in output.headers:
        yield name.encode("utf-8", "surrogateescape")
        yield value
    if place:
        yield b"%d" % place
