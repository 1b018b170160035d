"""Words for messages."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Final

from aioparallel.records.ranges import ranges

__all__ = ["kind_of", "partitions_text"]

_RANGES: Final = 10
_TOPIC: Final = itemgetter(0)


def partitions_text(partitions: Iterable[tuple[str, int]]) -> str:
    """Partitions by topic, neighbours as ranges, at most ten of these: ``orders 0-3, 7; refunds 0``."""
    found = [
        (topic, one)
        for topic, its in groupby(sorted(partitions), _TOPIC)
        for one in ranges(number for _, number in its)
    ]
    topics = (
        f"{topic} " + ", ".join(f"{one.start}" if len(one) == 1 else f"{one.start}-{one[-1]}" for _, one in its)
        for topic, its in groupby(found[:_RANGES], _TOPIC)
    )
    left = sum(len(one) for _, one in found[_RANGES:])
    return "; ".join(topics) + (f" and {left} more" if left else "")


def kind_of(value: object) -> str:
    """The kind of a wrong value, for messages: ``an int``, ``a str``, ``the class ValueError``."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[:1] in tuple('aeioAEIO') else 'a'} {name}"
