"""Outputs of one call that name the same source are told apart by a digest. Pure.

Two records of one topic whose headers name the same source are copies for :class:`~aioparallel.policies.Deduplicate`.
A handler that makes several records of one, and passes on its headers or adds ``source_headers(record)`` to each, would
write such records. So each of them gets a header ``src-digest``, made of its key, value and headers, and of its place
among outputs that are equal in all of these. A second call with the same outputs, in any order, gives the same digests;
other outputs have other digests, so they are repeated and never lost.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from aioparallel.coordinates import Coordinates, coordinates_of, with_digest
from aioparallel.records import Outgoing

__all__ = ["told_apart"]

_DIGEST_BYTES: Final = 8


def told_apart(outputs: Sequence[Outgoing]) -> Sequence[Outgoing]:
    """The outputs of one call, in their order. Those whose topic and source another one has, too, are copies with a
    ``src-digest`` of their own; the others are the same objects."""
    if len(outputs) < 2:
        return outputs
    try:
        names = [_name(output) for output in outputs]
    except TypeError:
        return outputs  # one was changed after it was made, which is reported where it is sent
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
        # With its length: ("ab", "c") and ("a", "bc") differ.
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
