"""Checks whether a range of a topic exists: Spark reports that late, in Java's words, or reads something else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final, Literal, NamedTuple, TypeAlias

from aioparallel.records.record import TopicPartition
from aioparallel.records.timestamps import first_timestamp_at
from aioparallel.spark.logs import Log
from aioparallel.spark.topic_positions import Position, place_of

__all__ = ["TopicRange"]

Bound: TypeAlias = Literal["starting", "ending"]
_BOUNDS: Final[tuple[Bound, Bound]] = "starting", "ending"
_SHOWN: Final = 5


class TopicRange(NamedTuple):
    """A range from ``starting`` to ``ending`` in existing logs."""

    starting: Position
    ending: Position
    logs: Mapping[str, Mapping[int, Log]]
    may_be_gone: bool = False
    """Whether deleted offsets are skipped, as with ``failOnDataLoss=False``."""

    def findings(self) -> list[str]:
        """What is wrong with the given offsets and partitions, a sentence each with what to do."""
        return [
            finding
            for bound in _BOUNDS
            for topic, places in self._named(bound).items()
            for finding in (*self._partitions(bound, topic, places), *self._offsets(bound, topic, places))
        ]

    def times_to_ask(self) -> dict[TopicPartition, int]:
        """Timestamps whose offsets :meth:`exchanged` needs: of partitions with a time as one bound and an offset as the
        other."""
        times = {}
        for partition, places in self._pairs():
            whens = [place for place in places if isinstance(place, datetime)]
            if len(whens) == 1 and any(isinstance(place, int) for place in places):
                times[partition] = first_timestamp_at(whens[0])
        return times

    def exchanged(self, found: Mapping[TopicPartition, int | None]) -> list[str]:
        """The partitions that would end before they start. ``found``: the offsets for :meth:`times_to_ask`; None for a
        time after the last record."""
        findings = []
        for partition, places in self._pairs():
            end = self.logs[partition.topic][partition.partition].end
            at = found.get(partition)
            first, last = (place if isinstance(place, int) else (end if at is None else at) for place in places)
            if partition in found and last < first:
                starting, ending = (
                    f"offset {place}" if isinstance(place, int) else f"{place} (offset {end if at is None else at})"
                    for place in places
                )
                findings.append(
                    f"ending of {partition} is {ending}, before starting, {starting}: exchange them, or choose others"
                )
        return findings

    def _partitions(self, bound: Bound, topic: str, places: Mapping[int, object]) -> Iterator[str]:
        there = self.logs[topic]
        if missing := sorted(there.keys() - places.keys()):
            example = '"earliest" reads from the beginning' if bound == "starting" else '"latest" reads up to the end'
            yield (
                f"{bound} does not name {_names(topic, missing)}: name all {len(there)} partitions of {topic}; "
                f"give an offset or a time for each, or, together with offsets, {example}"
            )
        if unknown := sorted(places.keys() - there.keys()):
            yield f"{bound} names {_names(topic, unknown)}, but {topic} has {len(there)} partitions: leave it out"

    def _offsets(self, bound: Bound, topic: str, places: Mapping[int, object]) -> Iterator[str]:
        for partition, log in self.logs[topic].items():
            place = places.get(partition)
            if not isinstance(place, int):
                continue
            prefix = f"{bound} of {topic}-{partition} is offset {place}"
            if place > log.end:
                what = "there is nothing to read yet" if bound == "starting" else '"latest" reads up to there'
                yield f"{prefix}, but the log ends at {log.end}: {what}"
            elif place < log.beginning and not self.may_be_gone:
                what = '"earliest" reads from there' if bound == "starting" else "nothing is left of this range"
                yield f"{prefix}, but the log starts at {log.beginning}, earlier records are deleted: {what}"

    def _named(self, bound: Bound) -> Mapping[str, Mapping[int, object]]:
        position = self.starting if bound == "starting" else self.ending
        return position if isinstance(position, Mapping) else {}

    def _pairs(self) -> Iterator[tuple[TopicPartition, tuple[object, object]]]:
        """Starting and ending of each partition, as given."""
        for topic, log in self.logs.items():
            for partition in log:
                yield (
                    TopicPartition(topic, partition),
                    (place_of(self.starting, topic, partition), place_of(self.ending, topic, partition)),
                )


def _names(topic: str, partitions: list[int]) -> str:
    more = f" and {len(partitions) - _SHOWN} more" if len(partitions) > _SHOWN else ""
    return ", ".join(f"{topic}-{partition}" for partition in partitions[:_SHOWN]) + more
