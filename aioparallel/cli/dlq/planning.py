"""The first pass of replay and drop: what will be done, found out before anything is."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import NamedTuple

from aioparallel.cli.dlq.marks import Marks, too_large
from aioparallel.cli.dlq.selecting import DeadLetter, Kept, Selection
from aioparallel.delivery.letters import read_letter
from aioparallel.group.client import Fetched
from aioparallel.records import Origin

__all__ = ["Chosen", "Plan", "make_plan"]


class Chosen(NamedTuple):
    """An open letter to be settled."""

    partition: int
    offset: int
    origin: Origin
    error: str


@dataclass(slots=True)
class Plan:
    """``letters`` are those to be settled, in the order of the log, one partition after the other.

    ``already_settled`` met the selection too. ``refused``: by partition, why its letters are not touched, and how many
    those are.
    """

    letters: list[Chosen]
    already_settled: int = 0
    refused: dict[int, tuple[str, int]] = field(default_factory=dict)

    def by_partition(self) -> dict[int, set[int]]:
        """The offsets of the letters."""
        offsets: defaultdict[int, set[int]] = defaultdict(set)
        for chosen in self.letters:
            offsets[chosen.partition].add(chosen.offset)
        return dict(offsets)

    def origins(self) -> Counter[str]:
        """How many letters came from each topic."""
        return Counter(chosen.origin.topic for chosen in self.letters)

    def refuse_what_does_not_fit(self, marks: Marks) -> None:
        """Take out the letters of partitions whose marks would be too large."""
        for number, offsets in self.by_partition().items():
            if marks[number].commit_with(offsets) is None:
                self.refused[number] = too_large(marks[number].partition), len(offsets)
        self.letters = [chosen for chosen in self.letters if chosen.partition not in self.refused]


async def make_plan(reads: AsyncIterator[Fetched], marks: Marks, selection: Selection) -> Plan:
    """Read all there is, tell the marks of it, and choose.

    ``marks`` then know every letter of the partitions read (about 100 bytes for each open one).
    """
    kept: Kept[Chosen] = Kept(selection)
    plan = Plan([])
    async for (_, number), records, next_offset, *_ in reads:
        letters: list[int] = []
        one = marks[number]
        for record in records:
            if (letter := read_letter(record)) is None:
                continue
            letters.append(record.offset)
            dead = DeadLetter(record, letter, one.is_settled(record.offset))
            if not selection.matches(dead):
                continue
            if dead.settled:
                plan.already_settled += 1
            else:
                kept.take(dead.age, Chosen(record.partition, record.offset, letter.origin, letter.last.type))
        one.register(letters, next_offset)
    plan.letters = sorted(kept.items())
    return plan
