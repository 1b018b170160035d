"""The options that select letters."""

from __future__ import annotations

import heapq
import re
from dataclasses import dataclass, replace
from typing import Annotated, Final, Generic, NamedTuple, TypeVar

from cyclopts import Group, Parameter
from cyclopts.types import NonNegativeInt, PositiveInt

from aioparallel.cli.parsing import parse_time, understood
from aioparallel.delivery.letters import LeftOut, Letter
from aioparallel.group.client import Span
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import Record

__all__ = [
    "WHICH",
    "Age",
    "DeadLetter",
    "Kept",
    "OriginFilter",
    "Selection",
    "parse_offsets",
    "parse_origin",
]

T = TypeVar("T")

Age = tuple[float, int, int]
"""Last failure of a letter (seconds since the epoch), partition and offset: sorts by age."""

WHICH: Final = Group("Which letters", sort_key=1)


class DeadLetter(NamedTuple):
    """One record of the topic. ``letter``: None if it is not a dead letter of aioparallel, or of a share group's
    brokers.

    For a letter that lacks a part of its record: ``is_completed``: ``record`` was completed from its source, and lacked
    ``left_out``; ``gone``: why that failed.
    """

    record: Record
    letter: Letter | None
    settled: bool
    is_completed: bool = False
    gone: str = ""
    left_out: LeftOut | None = None

    @property
    def missing(self) -> LeftOut | None:
        """The parts that are not in the topic."""
        return self.left_out or (None if self.letter is None else self.letter.left_out)

    @property
    def age(self) -> Age:
        """Sorts from the oldest to the newest."""
        at = self.letter.last.at if self.letter else self.record.timestamp / 1000
        return at, self.record.partition, self.record.offset

    @property
    def state(self) -> str:
        """ "open", "settled" or "no letter"."""
        return "no letter" if self.letter is None else "settled" if self.settled else "open"


class OriginFilter(NamedTuple):
    """The original place of a record; None means any."""

    topic: str
    partition: int | None = None
    offset: int | None = None


def parse_offsets(text: str) -> Span:
    """Parses ``A-B``, B included. Raises ConfigurationError."""
    found = re.fullmatch(r"(\d+)-(\d+)", text)
    if found is None or int(found[1]) > int(found[2]):
        raise ConfigurationError("offsets", text, "must be two offsets, the first one not larger, like 100-199")
    return Span(int(found[1]), int(found[2]) + 1)


def parse_origin(text: str) -> OriginFilter:
    """Parses ``topic``, ``topic:partition`` or ``topic:partition:offset``. Raises ConfigurationError."""
    topic, *numbers = text.split(":")
    if not topic or len(numbers) > 2 or not all(number.isascii() and number.isdigit() for number in numbers):
        raise ConfigurationError("origin", text, "must be topic, topic:partition or topic:partition:offset")
    return OriginFilter(topic, *map(int, numbers))


@Parameter(name="*", group=WHICH)
@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The options that select letters. A letter must match all that are given.

    ``since`` and ``until``: seconds since the epoch, of the last failure. Raises ConfigurationError.
    """

    partition: tuple[NonNegativeInt, ...] = ()
    """Only this partition of the topic. Repeatable."""
    offset: NonNegativeInt | None = None
    """Only the letter at this offset; with one --partition."""
    offsets: Annotated[Span | None, understood(parse_offsets, "A-B")] = None
    """Only letters at these offsets, both included; with one --partition."""
    origin: Annotated[OriginFilter | None, understood(parse_origin, "TOPIC[:PARTITION[:OFFSET]]")] = None
    """Only letters that came from there."""
    error: Annotated[str | None, Parameter(metavar="TYPE")] = None
    """Only letters with this exception: its class, with or without module, as in the list or in the traceback."""
    since: Annotated[float | None, understood(parse_time, "TIME")] = None
    """Only letters whose last failure was at or after this: a duration ago (`30m`, `2h`, `3d`) or an ISO time, local
    without a zone."""
    until: Annotated[float | None, understood(parse_time, "TIME")] = None
    """Only letters whose last failure was at or before this."""
    key: Annotated[bytes | None, Parameter(metavar="TEXT")] = None
    """Only letters with this key."""
    limit: PositiveInt | None = None
    """At most so many of them, the **oldest** by last failure."""
    newest: PositiveInt | None = None
    """At most so many of them, the **newest** by last failure."""

    def __post_init__(self) -> None:
        if self.offset is not None and self.offsets is not None:
            raise ConfigurationError("offset", self.offset, "cannot be combined with --offsets")
        if self.span is not None and len(set(self.partition)) != 1:
            option, value = ("offset", self.offset) if self.offsets is None else ("offsets", self.offsets)
            raise ConfigurationError(option, value, "needs exactly one --partition")
        if self.limit is not None and self.newest is not None:
            raise ConfigurationError("newest", self.newest, "cannot be combined with --limit, which means the oldest")

    @property
    def span(self) -> Span | None:
        """The given offsets."""
        return self.offsets if self.offset is None else Span(self.offset, self.offset + 1)

    @property
    def has_criteria(self) -> bool:
        """Whether there is more than a number."""
        return replace(self, limit=None, newest=None) != Selection()

    @property
    def has_number(self) -> bool:
        """Whether a number is given."""
        return self.limit is not None or self.newest is not None

    def matches(self, dead: DeadLetter) -> bool:
        """Whether the record matches, apart from ``limit`` and ``newest``."""
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
            (self.error is None or _is_named(self.error, letter))
            and (self.since is None or failure.at >= self.since)
            and (self.until is None or failure.at <= self.until)
            and all(asked in (None, found) for asked, found in zip(self.origin or (), letter.origin, strict=False))
        )


def _is_named(error: str, letter: Letter) -> bool:
    """Whether this is the class of the last failure. A class may be seen in several modules: the letter has one, and
    the last line of its traceback the one that defines it."""
    stored = letter.last.type
    name = stored.rpartition(".")[2]
    if error in {stored, name} or (stored, error) == (f"aioparallel.errors.{name}", f"aioparallel.{name}"):
        return True
    in_traceback = rf"^{re.escape(error)}(?::|$)"
    return error.rpartition(".")[2] == name and re.search(in_traceback, letter.traceback, re.MULTILINE) is not None


class Kept(Generic[T]):
    """Keeps the oldest or the newest items up to the selection's number; without a number all of them."""

    def __init__(self, selection: Selection) -> None:
        self._sign = -1 if selection.newest is None else 1
        self._most = selection.limit if selection.newest is None else selection.newest
        # The heap's first item is dropped next. Ages are unique, so items themselves are never compared.
        self._heap: list[tuple[Age, T]] = []

    def take(self, age: Age, item: T) -> None:
        """Add an item."""
        sign = self._sign
        heapq.heappush(self._heap, ((sign * age[0], sign * age[1], sign * age[2]), item))
        if self._most is not None and len(self._heap) > self._most:
            heapq.heappop(self._heap)

    def items(self) -> list[T]:
        """All kept items from the oldest to the newest."""
        ascending = sorted(self._heap, key=lambda entry: entry[0], reverse=self._sign < 0)
        return [item for _, item in ascending]
