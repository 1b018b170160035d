"""Filling topics fast."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, TypedDict

from aioparallel.cli.bench.filling import CHUNK, Filler

__all__ = ["Message", "fill"]


class Message(TypedDict):
    """One record to be produced, as ``Producer.produce_batch`` takes it."""

    key: bytes
    value: bytes


def fill(servers: str, topic: str, messages: Iterable[tuple[int, Message]]) -> int:
    """Produce these records, each to its partition and there in the order given, and wait until the broker has them
    all; returns how many.

    Raises AioparallelError when some were not acknowledged within two minutes.
    """
    filler = Filler(servers, topic)
    source, count = iter(messages), 0
    while chunk := list(itertools.islice(source, CHUNK)):
        count += len(chunk)
        parts: dict[int, list[dict[str, Any]]] = {}
        for partition, message in chunk:
            parts.setdefault(partition, []).append({**message})
        for partition, part in parts.items():
            filler.add(partition, part)
    filler.finish()
    return count
