"""Which letters are meant. Pure."""

from __future__ import annotations

import heapq
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Generic, NamedTuple, TypeVar

from aioparallel.delivery.letters import Letter
from aioparallel.errors import ConfigurationError
from aioparallel.group.client import Span
from aioparallel.records import Record

__all__ = ["Age", "DeadLetter", "Kept", "OriginFilter", "Selection", "parse_offsets", "parse_origin", "parse_time"]

T = TypeVar("T")

Age = tuple[float, int, int]
"""When a letter failed last (seconds since the epoch), its partition and its offset: the order of age."""

SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class DeadLetter(NamedTuple):
    """One record of the topic. ``letter`` is None for a record that is no letter of ours."""

    record: Record
    letter: Letter | None
    settled: bool

    @property
    def age(self) -> Age:
        """For sorting from the oldest to the newest."""
        at = self.letter.last.at if self.letter else self.record.timestamp / 1000
        return at, self.record.partition, self.record.offset


class OriginFilter(NamedTuple):
    """Where the record stood first; None means any."""

    topic: str
    partition: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """What the options of a command ask for; each that is not None, or not empty, must be met.

    ``since`` and ``until``: seconds since the epoch, of the last failure. ``oldest`` and ``newest``: at most so many
    of the letters that meet the rest; not both.
    """

    partitions: Collection[int] = ()
    offsets: Span | None = None
    origin: OriginFilter | None = None
    error: str | None = None
    since: float | None = None
    until: float | None = None
    key: bytes | None = None
    oldest: int | None = None
    newest: int | None = None

    def __post_init__(self) -> None:
        if self.offsets is not None and len(set(self.partitions)) != 1:
            raise ConfigurationError(
                "--offsets",
                f"{self.offsets.start}-{self.offsets.end - 1}",
                "offsets belong to a partition: give exactly one --partition with them",
            )
        if self.oldest is not None and self.newest is not None:
            raise ConfigurationError("--newest", self.newest, "not together with --limit, which means the oldest")

    @property
    def has_criteria(self) -> bool:
        """Whether there is something to meet."""
        return replace(self, oldest=None, newest=None) != Selection()

    @property
    def has_number(self) -> bool:
        """Whether it asks for so many at most."""
        return self.oldest is not None or self.newest is not None

    @property
    def narrows_letters(self) -> bool:
        """Whether it asks for something that only a letter can meet."""
        return any(asked is not None for asked in (self.origin, self.error, self.since, self.until))

    def matches(self, dead: DeadLetter) -> bool:
        """Whether this record is meant, ``oldest`` and ``newest`` aside."""
        record, letter = dead.record, dead.letter
        if self.partitions and record.partition not in self.partitions:
            return False
        if self.offsets is not None and not self.offsets.start <= record.offset < self.offsets.end:
            return False
        if self.key is not None and record.key != self.key:
            return False
        return not self.narrows_letters if letter is None else self._matches_letter(letter)

    def _matches_letter(self, letter: Letter) -> bool:
        failure = letter.last
        if self.error is not None and self.error not in {failure.type, failure.type.rpartition(".")[2]}:
            return False
        if self.origin is not None and not all(
            wanted is None or wanted == found for wanted, found in zip(self.origin, letter.origin, strict=False)
        ):
            return False
        if self.since is not None and failure.at < self.since:
            return False
        return self.until is None or failure.at <= self.until


class Kept(Generic[T]):
    """The oldest, or the newest, of what is taken in; without a number all of it. Holds no more than it gives back."""

    def __init__(self, oldest: int | None, newest: int | None) -> None:
        self._sign = -1 if newest is None else 1
        self._most = oldest if newest is None else newest
        # The first is the one to go next. Two of the same age do not exist, so the items are never compared.
        self._heap: list[tuple[Age, T]] = []

    def take(self, age: Age, item: T) -> None:
        """Take in one more."""
        sign = self._sign
        entry = (sign * age[0], sign * age[1], sign * age[2]), item
        if self._most is None or len(self._heap) < self._most:
            heapq.heappush(self._heap, entry)
        elif self._heap and entry[0] > self._heap[0][0]:
            heapq.heapreplace(self._heap, entry)

    def items(self) -> list[T]:
        """From the oldest to the newest."""
        ascending = sorted(self._heap, key=lambda entry: entry[0], reverse=self._sign < 0)
        return [item for _, item in ascending]


def parse_offsets(offset: int | None, offsets: str | None) -> Span | None:
    """``--offset N`` or ``--offsets A-B``, B included. Raises ConfigurationError."""
    if offset is not None and offsets is not None:
        raise ConfigurationError("--offsets", offsets, "not together with --offset")
    if offset is not None:
        return Span(offset, offset + 1)
    if offsets is None:
        return None
    found = re.fullmatch(r"(\d+)-(\d+)", offsets)
    if found is None or int(found[1]) > int(found[2]):
        raise ConfigurationError("--offsets", offsets, "two offsets, the first one not the larger, as in 100-199")
    return Span(int(found[1]), int(found[2]) + 1)


def parse_origin(text: str | None) -> OriginFilter | None:
    """``topic``, ``topic:partition`` or ``topic:partition:offset``. Raises ConfigurationError."""
    if text is None:
        return None
    topic, *numbers = text.split(":")
    if not topic or len(numbers) > 2 or not all(number.isascii() and number.isdigit() for number in numbers):
        raise ConfigurationError("--origin", text, "topic, topic:partition or topic:partition:offset")
    return OriginFilter(topic, *map(int, numbers))


def parse_time(option: str, text: str | None, now: float) -> float | None:
    """A time as ISO 8601 (local unless it names its zone), or how long ago: 90s, 30m, 2h, 3d, 1w.

    ``now`` and the result are seconds since the epoch. Raises ConfigurationError, which names ``option``.
    """
    if text is None:
        return None
    if ago := re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text):
        return now - float(ago[1]) * SECONDS[ago[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise ConfigurationError(
            option, text, "how long ago (90s, 30m, 2h, 3d, 1w) or an ISO time such as 2026-03-01 or 2026-03-01T14:30"
        ) from None
