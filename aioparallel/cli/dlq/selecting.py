"""Which letters are meant: the options that choose them. Pure."""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Final, Generic, NamedTuple, TypeVar

from cyclopts import Group, Parameter, Token
from cyclopts.types import NonNegativeInt, PositiveInt

from aioparallel.delivery.letters import Letter
from aioparallel.errors import ConfigurationError
from aioparallel.group.client import Span
from aioparallel.records import Record

__all__ = [
    "WHICH",
    "Age",
    "DeadLetter",
    "Kept",
    "OriginFilter",
    "Selection",
    "parse_offsets",
    "parse_origin",
    "parse_time",
]

T = TypeVar("T")

Age = tuple[float, int, int]
"""When a letter failed last (seconds since the epoch), its partition and its offset: the order of age."""

SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
WHICH: Final = Group("Which letters", sort_key=1)


class DeadLetter(NamedTuple):
    """One record of the topic. ``letter`` is None for a record that is no letter of ours.

    Of a letter that is without a part of its record: ``is_completed``, whether ``record`` has that again, as it was
    read from its source; ``gone``: why it has not.
    """

    record: Record
    letter: Letter | None
    settled: bool
    is_completed: bool = False
    gone: str = ""

    @property
    def age(self) -> Age:
        """For sorting from the oldest to the newest."""
        at = self.letter.last.at if self.letter else self.record.timestamp / 1000
        return at, self.record.partition, self.record.offset

    @property
    def state(self) -> str:
        """In a word."""
        return "no letter" if self.letter is None else "settled" if self.settled else "open"


class OriginFilter(NamedTuple):
    """Where the record stood first; None means any."""

    topic: str
    partition: int | None = None
    offset: int | None = None


def parse_offsets(text: str) -> Span:
    """``A-B``, B included. Raises ConfigurationError."""
    found = re.fullmatch(r"(\d+)-(\d+)", text)
    if found is None or int(found[1]) > int(found[2]):
        raise ConfigurationError("offsets", text, "two offsets, the first one not the larger, as in 100-199")
    return Span(int(found[1]), int(found[2]) + 1)


def parse_origin(text: str) -> OriginFilter:
    """``topic``, ``topic:partition`` or ``topic:partition:offset``. Raises ConfigurationError."""
    topic, *numbers = text.split(":")
    if not topic or len(numbers) > 2 or not all(number.isascii() and number.isdigit() for number in numbers):
        raise ConfigurationError("origin", text, "topic, topic:partition or topic:partition:offset")
    return OriginFilter(topic, *map(int, numbers))


def parse_time(text: str, now: float | None = None) -> float:
    """A time as ISO 8601 (local unless it names its zone), or how long before ``now``: 90s, 30m, 2h, 3d, 1w.

    ``now`` and the result are seconds since the epoch. Raises ConfigurationError.
    """
    if ago := re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text):
        return (time.time() if now is None else now) - float(ago[1]) * SECONDS[ago[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise ConfigurationError(
            "time", text, "how long ago (90s, 30m, 2h, 3d, 1w) or an ISO time such as 2026-03-01 or 2026-03-01T14:30"
        ) from None


def understood(parse: Callable[[str], object], metavar: str) -> Parameter:
    """An option whose text a function understands."""

    def converter(_type: object, tokens: Sequence[Token]) -> object:
        return parse(tokens[0].value)

    return Parameter(converter=converter, n_tokens=1, accepts_keys=False, metavar=metavar)


@Parameter(name="*", group=WHICH)
@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The options that choose letters; each that is given must be met.

    ``since`` and ``until``: seconds since the epoch, of the last failure. Raises ConfigurationError.
    """

    partition: tuple[NonNegativeInt, ...] = ()
    """Only this partition of the topic. Repeatable."""
    offset: NonNegativeInt | None = None
    """Only the letter at this offset; with one --partition."""
    offsets: Annotated[Span | None, understood(parse_offsets, "A-B")] = None
    """Only those at these offsets, both included; with one --partition."""
    origin: Annotated[OriginFilter | None, understood(parse_origin, "TOPIC[:PARTITION[:OFFSET]]")] = None
    """Only those that came from there."""
    error: Annotated[str | None, Parameter(metavar="TYPE")] = None
    """Only those with this exception: its class, with or without module."""
    since: Annotated[float | None, understood(parse_time, "TIME")] = None
    """Only those that failed last at or after this: how long ago (`30m`, `2h`, `3d`) or an ISO time."""
    until: Annotated[float | None, understood(parse_time, "TIME")] = None
    """Only those that failed last at or before this."""
    key: Annotated[bytes | None, Parameter(metavar="TEXT")] = None
    """Only those with this key."""
    limit: PositiveInt | None = None
    """Of all these, at most so many, the **oldest** by last failure."""
    newest: PositiveInt | None = None
    """Of all these, at most so many, the **newest** by last failure."""

    def __post_init__(self) -> None:
        if self.offset is not None and self.offsets is not None:
            raise ConfigurationError("offset", self.offset, "not together with --offsets")
        if self.span is not None and len(set(self.partition)) != 1:
            option, value = ("offset", self.offset) if self.offsets is None else ("offsets", self.offsets)
            raise ConfigurationError(option, value, "belongs to a partition: give exactly one --partition with it")
        if self.limit is not None and self.newest is not None:
            raise ConfigurationError("newest", self.newest, "not together with --limit, which means the oldest")

    @property
    def span(self) -> Span | None:
        """The offsets asked for."""
        return self.offsets if self.offset is None else Span(self.offset, self.offset + 1)

    @property
    def has_criteria(self) -> bool:
        """Whether there is something to meet."""
        return replace(self, limit=None, newest=None) != Selection()

    @property
    def has_number(self) -> bool:
        """Whether it asks for so many at most."""
        return self.limit is not None or self.newest is not None

    def matches(self, dead: DeadLetter) -> bool:
        """Whether this record is meant, ``limit`` and ``newest`` aside."""
        record, span = dead.record, self.span
        return (
            (not self.partition or record.partition in self.partition)
            and (span is None or span.start <= record.offset < span.end)
            and (self.key is None or record.key == self.key)
            and self._matches_letter(dead.letter)
        )

    def _matches_letter(self, letter: Letter | None) -> bool:
        if letter is None:
            return all(asked is None for asked in (self.origin, self.error, self.since, self.until))
        failure = letter.last
        return (
            (self.error is None or self.error in {failure.type, failure.type.rpartition(".")[2]})
            and (self.since is None or failure.at >= self.since)
            and (self.until is None or failure.at <= self.until)
            and all(asked in (None, found) for asked, found in zip(self.origin or (), letter.origin, strict=False))
        )


class Kept(Generic[T]):
    """The oldest, or the newest, of what is taken in; without a number all of it. Holds no more than it gives back."""

    def __init__(self, selection: Selection) -> None:
        self._sign = -1 if selection.newest is None else 1
        self._most = selection.limit if selection.newest is None else selection.newest
        # The first is the one to go next. Two of the same age do not exist, so the items are never compared.
        self._heap: list[tuple[Age, T]] = []

    def take(self, age: Age, item: T) -> None:
        """Take in one more."""
        sign = self._sign
        heapq.heappush(self._heap, ((sign * age[0], sign * age[1], sign * age[2]), item))
        if self._most is not None and len(self._heap) > self._most:
            heapq.heappop(self._heap)

    def items(self) -> list[T]:
        """From the oldest to the newest."""
        ascending = sorted(self._heap, key=lambda entry: entry[0], reverse=self._sign < 0)
        return [item for _, item in ascending]
