"""What ``aioparallel dlq list`` prints."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from aioparallel.cli.dlq.marks import PartitionMarks
from aioparallel.cli.dlq.opening import OpenTopic
from aioparallel.cli.dlq.reading import Read
from aioparallel.cli.dlq.selecting import Age, DeadLetter, Kept, Selection
from aioparallel.cli.dlq.wording import age, as_json, counted, iso_time, local_time, plain_text
from aioparallel.delivery.letters import read_letter

__all__ = ["Counts", "Row", "json_summary", "list_letters", "matching", "print_json"]

SHOWN: Final = 100
"""Rows of the table when no number is asked for."""


class Row(NamedTuple):
    """What list tells of a letter: not its value, so that a hundred of them are small."""

    age: Age
    state: str
    attempts: int | None
    origin: str
    error: str
    message: str


@dataclass(slots=True)
class Counts:
    """Of what the selection meets: letters by state and by error, and records that are no letters of ours."""

    states: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def count(self, dead: DeadLetter) -> str:
        """Count one record; returns its state."""
        state = "no letter" if dead.letter is None else "settled" if dead.settled else "open"
        self.states[state] += 1
        if dead.letter is not None:
            self.errors[dead.letter.last.type] += 1
        return state


async def matching(
    reads: AsyncIterator[Read], topic: OpenTopic, selection: Selection, counts: Counts, *, everything: bool
) -> AsyncGenerator[DeadLetter, None]:
    """The letters that the selection meets, in the order of the log; ``counts`` counts also what is not given out.

    ``everything``: settled letters, and records that are no letters, too.
    """
    async for read in reads:
        one: PartitionMarks = topic.marks[read.partition]
        for record in read.records:
            dead = DeadLetter(record, read_letter(record), one.is_settled(record.offset))
            if not selection.matches(dead):
                continue
            if everything or (dead.letter is not None and not dead.settled):
                counts.count(dead)
                yield dead
            elif dead.letter is None:
                counts.count(dead)


async def list_letters(
    reads: AsyncIterator[Read], topic: OpenTopic, selection: Selection, console: Console, *, everything: bool
) -> None:
    """Read all, then print the table and what it leaves out."""
    kept: Kept[Row] = Kept(selection.oldest, selection.newest if selection.has_number else SHOWN)
    counts = Counts()
    async for dead in matching(reads, topic, selection, counts, everything=everything):
        kept.take(dead.age, row(dead))
    rows = kept.items()
    if rows:
        console.print(table(rows, time.time(), states=everything))
    for line in footer(topic.topic, counts, len(rows), selection, everything=everything):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


async def print_json(
    reads: AsyncIterator[Read], topic: OpenTopic, selection: Selection, console: Console, *, everything: bool
) -> None:
    """One object a line, as they are read; with a number asked for, from the oldest to the newest."""
    kept: Kept[str] = Kept(selection.oldest, selection.newest)
    streams = not selection.has_number
    async for dead in matching(reads, topic, selection, Counts(), everything=everything):
        line = json.dumps(json_summary(dead), ensure_ascii=False)
        if streams:
            console.file.write(line + "\n")
        else:
            kept.take(dead.age, line)
    console.file.writelines(line + "\n" for line in kept.items())


def row(dead: DeadLetter) -> Row:
    """A row of the table."""
    letter = dead.letter
    state = "settled" if dead.settled else "open"
    if letter is None:
        return Row(dead.age, "no letter", None, "", "", "")
    origin = f"{letter.origin.topic}-{letter.origin.partition}@{letter.origin.offset}"
    return Row(dead.age, state, letter.attempts, origin, letter.last.type, letter.last.message)


def table(rows: list[Row], now: float, *, states: bool) -> Table:
    """The newest at the bottom, next to the prompt. The message has the width that the others leave."""
    shown = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for name in ("partition", "offset"):
        shown.add_column(name, justify="right", no_wrap=True)
    if states:
        shown.add_column("state", no_wrap=True)
    shown.add_column("failed", no_wrap=True)
    shown.add_column("attempts", justify="right", no_wrap=True)
    shown.add_column("origin", no_wrap=True)
    shown.add_column("error", no_wrap=True, overflow="ellipsis", max_width=32)
    shown.add_column("message", no_wrap=True, overflow="ellipsis", ratio=1, min_width=12)
    for one in rows:
        at, partition, offset = one.age
        cells = [str(partition), str(offset)]
        if states:
            cells.append(one.state)
        cells += [
            f"{local_time(at)}, {age(now - at)}",
            "" if one.attempts is None else str(one.attempts),
            one.origin,
            # Its class is what tells errors apart, so the module goes first.
            one.error.rpartition(".")[2],
            one.message,
        ]
        shown.add_row(*(Text(plain_text(cell, one_line=True)) for cell in cells))
    return shown


def footer(topic: str, counts: Counts, shown: int, selection: Selection, *, everything: bool) -> list[str]:
    """Sentences below the table."""
    states = counts.states
    chosen = " that match" if selection.has_criteria else ""
    first = f"{topic}: {counted(states['open'], 'open letter')}{chosen}"
    if everything:
        first += f", {states['settled']:,} settled"
    lines = [first]
    if len(counts.errors) > 1:
        ranked = sorted(counts.errors.items(), key=lambda found: (-found[1], found[0]))
        lines[0] += " (" + ", ".join(f"{count:,} {name}" for name, count in ranked[:10])
        more = len(counts.errors) - 10
        lines[0] += f" and {more} other types)" if more > 0 else ")"
    found = states["open"] + (states["settled"] + states["no letter"] if everything else 0)
    if shown < found:
        if selection.has_number:
            lines.append(f"Shown: the {shown:,} {'newest' if selection.oldest is None else 'oldest'}.")
        else:
            lines.append(f"Shown: the {shown:,} newest. --newest N shows more; --error, --since ... narrow it down.")
    if states["no letter"]:
        hint = "" if everything else "; --all shows them"
        count = states["no letter"]
        what = "record is no letter" if count == 1 else "records are no letters"
        lines.append(f"{count:,} {what} of aioparallel's{hint}.")
    return [plain_text(line) for line in lines]


def json_summary(dead: DeadLetter) -> dict[str, object]:
    """What list tells of a letter, for scripts. Names of fields are part of the interface."""
    record, letter = dead.record, dead.letter
    summary: dict[str, object] = {
        "partition": record.partition,
        "offset": record.offset,
        "state": "no letter" if letter is None else "settled" if dead.settled else "open",
        "key": as_json(record.key),
    }
    if letter is not None:
        summary |= {
            "failed": iso_time(letter.last.at),
            "attempts": letter.attempts,
            "group": letter.group,
            "origin": letter.origin._asdict(),
            "error": {"type": letter.last.type, "message": letter.last.message},
        }
    return summary
