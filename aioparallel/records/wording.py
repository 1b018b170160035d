"""Words for messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

__all__ = ["kind_of", "partitions_text"]

_RANGES: Final = 10


def partitions_text(partitions: Iterable[tuple[str, int]]) -> str:
    """Partitions by topic, neighbours as ranges, at most ten of these: ``orders 0-3, 7; refunds 0``."""
    by_topic: defaultdict[str, list[list[int]]] = defaultdict(list)
    count = left = 0
    for topic, number in sorted(partitions):
        ranges = by_topic[topic] if count < _RANGES or topic in by_topic else None
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        elif ranges is not None and count < _RANGES:
            ranges.append([number, number])
            count += 1
        else:
            left += 1
    topics = (
        f"{topic} " + ", ".join(f"{first}-{last}" if first < last else f"{first}" for first, last in ranges)
        for topic, ranges in by_topic.items()
    )
    return "; ".join(topics) + (f" and {left} more" if left else "")


def kind_of(value: object) -> str:
    """The kind of a wrong value, for messages: ``an int``, ``a str``, ``the class ValueError``."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[:1] in tuple('aeioAEIO') else 'a'} {name}"
