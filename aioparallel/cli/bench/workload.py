"""A case's records: what is in the topic, how long each handler sleeps, and the least time that can take.

All of it follows from a seed. A record's key decides its partition (CRC-32 of the key); keys have numbers, so that
plans and evidence can name them in four bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from aioparallel.cli.demo.flights import read_flights

__all__ = ["Lane", "Message", "Numbers", "PlannedPartition", "Shape", "Workload", "read_plan"]

Numbers = npt.NDArray[np.uint32]
Lane = Literal["key", "partition", "unordered"]

VALUE = b"." * 100


class Message(NamedTuple):
    """What is produced; None is no key."""

    key: bytes | None
    value: bytes


class PlannedPartition(NamedTuple):
    """What is planned for each offset of one partition: the key's number, and the handler's sleep in microseconds."""

    keys: Numbers
    sleeps: Numbers


@dataclass(frozen=True, slots=True)
class Shape:
    """What kind of records a case has.

    ``keys``: how many different ones, each with the same number of records (give or take one) in random order.
    ``sleep``: microseconds, each equally likely; ``(0,)`` is a handler that returns at once.
    ``source``: ``"made"`` records with values of 100 bytes, or the demo's ``"flights"``, the first ``records`` of the
    year, keyed by tail number (``keys`` says nothing there).
    """

    records: int
    keys: int
    partitions: int
    sleep: tuple[int, ...] = (0,)
    source: Literal["made", "flights"] = "made"

    @property
    def sleeps(self) -> bool:
        """Whether handlers sleep at all."""
        return any(self.sleep)

    def workload(self, seed: int) -> Workload:
        """The records themselves. Takes a second for some 500,000, the flights a few.

        Raises AioparallelError when the flights are not installed.
        """
        return made_records(self, seed) if self.source == "made" else flights(self, seed)


@dataclass(frozen=True, slots=True)
class Workload:
    """The records of one topic. ``messages`` gives those of a partition in the order of their offsets."""

    shape: Shape
    partitions: tuple[PlannedPartition, ...]
    messages: Callable[[int], Iterator[Message]]

    @property
    def keys(self) -> list[Numbers]:
        """For each partition the number of the key at each offset."""
        return [planned.keys for planned in self.partitions]

    def longest_lane(self, ordering: Lane) -> float:
        """Seconds of sleep that have to follow each other: of a key, of a partition, or of a single record."""
        return max(longest_lane(planned, ordering) for planned in self.partitions) * 1e-6

    @property
    def total(self) -> float:
        """Seconds of sleep of all records."""
        return sum(int(planned.sleeps.sum(dtype=np.uint64)) for planned in self.partitions) * 1e-6

    def bound(self, ordering: Lane, concurrency: int) -> float | None:
        """The least seconds all handlers can take; None if none of them sleeps."""
        return max(self.longest_lane(ordering), self.total / concurrency) if self.shape.sleeps else None

    def write_plan(self, folder: Path) -> None:
        """For the contestants, as ``wire.py`` describes it."""
        for number, planned in enumerate(self.partitions):
            plan_file(folder, number).write_bytes(np.stack(planned, axis=1).astype("<u4").tobytes())


def read_plan(folder: Path, partition: int) -> PlannedPartition:
    """What :meth:`Workload.write_plan` wrote for one partition."""
    both = np.fromfile(plan_file(folder, partition), "<u4").reshape(-1, 2)
    return PlannedPartition(both[:, 0], both[:, 1])


def plan_file(folder: Path, partition: int) -> Path:
    """Where it is."""
    return folder / f"partition-{partition}.bin"


def longest_lane(planned: PlannedPartition, ordering: Lane) -> int:
    """Microseconds."""
    if not planned.sleeps.size:
        return 0
    match ordering:
        case "key":
            _, lanes = np.unique(planned.keys, return_inverse=True)
            return int(np.bincount(lanes, planned.sleeps).max())
        case "partition":
            return int(planned.sleeps.sum(dtype=np.uint64))
        case "unordered":
            return int(planned.sleeps.max())


def made_records(shape: Shape, seed: int) -> Workload:
    """Records made for the purpose."""
    random = np.random.default_rng(seed)
    count = max(1, min(shape.keys, shape.records))
    names = [b"key-%d" % number for number in range(count)]
    homes = np.array([crc32(name) % shape.partitions for name in names])
    keys = random.permutation(np.arange(shape.records, dtype=np.uint32) % np.uint32(count))
    partitions = split(shape, keys, homes[keys], random)

    def messages(partition: int) -> Iterator[Message]:
        return (Message(names[key], VALUE) for key in partitions[partition].keys.tolist())

    return Workload(shape, partitions, messages)


def flights(shape: Shape, seed: int) -> Workload:
    """The demo's records. One without a key has no order, so it is a key of its own here, in one partition after the
    other."""
    found = [Message(flight.key, flight.value) for flight in read_flights(shape.records)]
    numbers: dict[object, int] = {}
    keys, homes = [], []
    for place, message in enumerate(found):
        # Not bytes, so equal to no key.
        keys.append(numbers.setdefault(place if message.key is None else message.key, len(numbers)))
        homes.append((place if message.key is None else crc32(message.key)) % shape.partitions)
    contents: list[list[Message]] = [[] for _ in range(shape.partitions)]
    for home, message in zip(homes, found, strict=True):
        contents[home].append(message)
    partitions = split(shape, np.array(keys, np.uint32), np.array(homes), np.random.default_rng(seed))
    return Workload(shape, partitions, lambda partition: iter(contents[partition]))


def split(
    shape: Shape, keys: Numbers, homes: npt.NDArray[np.int64], random: np.random.Generator
) -> tuple[PlannedPartition, ...]:
    """Give each record its sleep and each partition its records, in the order in which they are given."""
    sleeps = random.choice(np.array(shape.sleep, np.uint32), keys.size)
    return tuple(
        PlannedPartition(keys[chosen], sleeps[chosen]) for chosen in (homes == one for one in range(shape.partitions))
    )
