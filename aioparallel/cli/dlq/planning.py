"""The first pass of replay and drop: determines what will be done before anything is changed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import NamedTuple

from aioparallel.cli.dlq.marks import Marks, too_large
from aioparallel.cli.dlq.selecting import DeadLetter, Kept, Selection
from aioparallel.delivery.letters import read_letter
from aioparallel.group.client import Fetched
from aioparallel.records.record import Origin

__all__ = ["Chosen", "Plan", "make_plan"]


class Chosen(NamedTuple):
    """An open letter that will be settled."""

    partition: int
    offset: int
    origin: Origin
    error: str


@dataclass(slots=True)
class Plan:
    """``letters``: those to settle, by partition in the order of the log.

    ``already_settled``: how many others match. ``refused``: by partition, why its letters are left alone, and their
    number.
    """

    letters: list[Chosen]
    already_settled: int = 0
    refused: dict[int, tuple[str, int]] = field(default_factory=dict)

    def by_partition(self) -> dict[int, set[int]]:
        """Offsets of the letters."""
        offsets: defaultdict[int, set[int]] = defaultdict(set)
        for chosen in self.letters:
            offsets[chosen.partition].add(chosen.offset)
        return dict(offsets)

    def origins(self) -> Counter[str]:
        """Number of letters by original topic."""
        return Counter(chosen.origin.topic for chosen in self.letters)

    def refuse_what_does_not_fit(self, marks: Marks) -> None:
        """Remove letters of partitions whose marks would be too large."""
        for number, offsets in self.by_partition().items():
            if marks[number].commit_with(offsets) is None:
                self.refused[number] = too_large(marks[number].partition), len(offsets)
        self.letters = [chosen for chosen in self.letters if chosen.partition not in self.refused]


async def make_plan(reads: AsyncIterator[Fetched], marks: Marks, selection: Selection) -> Plan:
    """Read all records and select letters.

    Registers every letter with ``marks``, which takes about 100 bytes for each open one.
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
