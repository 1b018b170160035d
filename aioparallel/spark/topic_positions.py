"""Where reading a topic begins and ends, as options of Spark's Kafka source.

The formats are those of Spark's "Structured Streaming + Kafka Integration Guide": offsets and times by topic and
partition as JSON, -2 for the earliest offset and -1 for the latest, times in milliseconds since the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final, Literal, TypeAlias

from aioparallel.config.handling import check_choice
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition
from aioparallel.records.timestamps import first_timestamp_at

__all__ = [
    "Edge",
    "PastTheEnd",
    "Position",
    "check_order",
    "ending_options",
    "kafka_offsets",
    "place_of",
    "starting_options",
]

Edge: TypeAlias = Literal["earliest", "latest"]
Position: TypeAlias = Edge | datetime | Mapping[str, Mapping[int, int | Edge]] | Mapping[str, Mapping[int, datetime]]
"""An end of the log; a time for all partitions; or for each partition offsets (or ends of the log) or times, as in
``{"flights": {0: 1_000, 1: "earliest"}}``."""

PastTheEnd: TypeAlias = Literal["error", "latest"]

_EDGES: Final[dict[object, int]] = {"earliest": -2, "latest": -1}
_KINDS: Final = (
    '"earliest", "latest", a datetime with a time zone, or one offset (or datetime) for each partition: '
    '{"topic": {0: 1000, 1: "earliest"}}'
)


def starting_options(
    position: Position, topics: Collection[str], *, streaming: bool, past_the_end: PastTheEnd
) -> dict[str, str]:
    """Options for where reading begins. Raises ConfigurationError."""
    check_choice("past_the_end", past_the_end, ("error", "latest"))
    if not streaming:
        _refuse_edge("starting", position, "latest", "a batch that begins at the end is empty")
    strategy = {"startingOffsetsByTimestampStrategy": past_the_end}
    return _options("starting", position, topics, strategy)


def ending_options(position: Position, topics: Collection[str]) -> dict[str, str]:
    """Options for where a batch ends: before the offset, or before the first record at or after the time. Raises
    ConfigurationError."""
    _refuse_edge("ending", position, "earliest", "a batch that ends at the beginning is empty")
    return _options("ending", position, topics, {})


def check_order(starting: Position, ending: Position) -> None:
    """Check, without asking for logs, that a batch does not end before it starts and that both bounds name the same
    partitions. Raises ConfigurationError."""
    if isinstance(starting, datetime) and isinstance(ending, datetime) and ending <= starting:
        raise ConfigurationError("ending", ending, f"must be later than starting, {starting}")
    firsts, lasts = (position if isinstance(position, Mapping) else {} for position in (starting, ending))
    for topic in firsts.keys() & lasts.keys():
        if firsts[topic].keys() != lasts[topic].keys():
            raise ConfigurationError(
                "ending",
                ending,
                f"names partitions {_numbers(lasts[topic])} of {topic}, and starting {_numbers(firsts[topic])}: both "
                "must name all",
            )
    for topic, places in {**firsts, **lasts}.items():
        for partition in places:
            first, last = (place_of(position, topic, partition) for position in (starting, ending))
            is_before = (isinstance(first, int) and isinstance(last, int) and last < first) or (
                isinstance(first, datetime) and isinstance(last, datetime) and last < first
            )
            if is_before:
                raise ConfigurationError(
                    "ending", ending, f"of {topic}-{partition}, {last}, is before starting, {first}: exchange them"
                )


def kafka_offsets(text: str) -> dict[TopicPartition, int] | None:
    """Parses offsets that Spark reports: ``{"flights":{"0":7}}``. None for those of a source other than Kafka."""
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, by_partition in json.loads(text).items()
            for partition, offset in by_partition.items()
        }
    except (ValueError, AttributeError, TypeError):
        return None


def place_of(position: Position, topic: str, partition: int) -> object:
    """The offset, edge or time that a position gives for a partition; None if it gives none."""
    return position.get(topic, {}).get(partition) if isinstance(position, Mapping) else position


def _numbers(places: Mapping[int, object]) -> str:
    return ", ".join(map(str, sorted(places)))


def _options(name: str, position: object, topics: Collection[str], with_times: Mapping[str, str]) -> dict[str, str]:
    if isinstance(position, datetime):
        return {f"{name}Timestamp": str(_timestamp(name, position)), **with_times}
    if isinstance(position, str) and position in _EDGES:
        return {f"{name}Offsets": position}
    if not isinstance(position, Mapping) or not position:
        raise ConfigurationError(name, position, f"must be {_KINDS}")
    if set(position) != set(topics):
        raise ConfigurationError(name, position, f"must name the topics that are read, {', '.join(sorted(topics))}")
    places = [place for by_partition in position.values() for place in _places(name, position, by_partition)]
    has_times = [isinstance(place, datetime) for place in places]
    if any(has_times) and not all(has_times):
        raise ConfigurationError(name, position, "has offsets and times; it must be one of them for all partitions")
    by_topic = {
        topic: {str(partition): _place(name, position, place) for partition, place in by_partition.items()}
        for topic, by_partition in position.items()
    }
    if all(has_times):
        return {f"{name}OffsetsByTimestamp": json.dumps(by_topic), **with_times}
    return {f"{name}Offsets": json.dumps(by_topic)}


def _places(name: str, position: object, by_partition: object) -> Collection[object]:
    if not isinstance(by_partition, Mapping) or not by_partition or not all(map(_is_count, by_partition)):
        raise ConfigurationError(name, position, f"must be {_KINDS}")
    return by_partition.values()


def _place(name: str, position: object, place: object) -> int:
    if isinstance(place, datetime):
        return _timestamp(name, place)
    if isinstance(place, str) and place in _EDGES:
        return _EDGES[place]
    if not isinstance(place, int) or not _is_count(place):
        raise ConfigurationError(name, position, f"has {place!r} as an offset; must be {_KINDS}")
    return place


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _timestamp(name: str, time: datetime) -> int:
    if time.tzinfo is None:
        raise ConfigurationError(name, time, "must have a time zone, as in datetime(2026, 1, 1, tzinfo=UTC)")
    return first_timestamp_at(time)


def _refuse_edge(name: str, position: object, edge: Edge, why: str) -> None:
    places: list[object] = [position]
    if isinstance(position, Mapping):
        partitions = [by_partition for by_partition in position.values() if isinstance(by_partition, Mapping)]
        places += [place for by_partition in partitions for place in by_partition.values()]
    if any(isinstance(place, str) and place == edge for place in places):
        raise ConfigurationError(name, position, f'"{edge}" is not for batches: {why}')
