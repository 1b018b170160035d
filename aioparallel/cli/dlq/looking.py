"""``aioparallel dlq list`` and ``show``."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from rich.console import Console

from aioparallel.cli.console import make_console, say
from aioparallel.cli.dlq.commands import Access, Looking, Showing
from aioparallel.cli.dlq.dead_letter_topic import OpenTopic, open_topic
from aioparallel.cli.dlq.printing import details, footer, json_details, json_summary, row, table
from aioparallel.cli.dlq.selecting import DeadLetter, Kept, Selection
from aioparallel.cli.dlq.whole_records import Sources
from aioparallel.delivery.letters import read_letter
from aioparallel.records.errors import ClientError, ConfigurationError

__all__ = ["Search", "list_letters", "print_json", "print_table", "show_letters"]

SHOWN: Final = 100
"""Rows of the table if no number is given."""
SHOWN_WHOLE: Final = 10
"""Letters that show prints if no number is given: each takes some 25 lines."""

T = TypeVar("T")


@dataclass(slots=True)
class Search:
    """One pass over a topic. ``everything``: also find settled letters and records that are no letters.

    ``found``: how many were found. ``states`` and ``errors``: counts by state and by error of all records that match
    the selection.
    """

    topic: OpenTopic
    selection: Selection
    everything: bool
    found: int = 0
    states: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    async def letters(self, form: Callable[[DeadLetter], T]) -> AsyncGenerator[T, None]:
        """Yields ``form(letter)`` for each match, in the order of the log; if the selection has a number, from the
        oldest to the newest after all were read. Keeps only these results in memory."""
        kept: Kept[T] = Kept(self.selection)
        async with aclosing(self._matching()) as matching:
            async for dead in matching:
                self.found += 1
                if self.selection.has_number:
                    kept.take(dead.age, form(dead))
                else:
                    yield form(dead)
        for one in kept.items():
            yield one

    async def _matching(self) -> AsyncGenerator[DeadLetter, None]:
        topic = self.topic
        spans = topic.spans(settled_too=self.everything, within=self.selection.span)
        async with topic.read(spans) as reads:
            async for (_, number), records, _, *_ in reads:
                for record in records:
                    dead = DeadLetter(record, read_letter(record), topic.marks[number].is_settled(record.offset))
                    if not self.selection.matches(dead):
                        continue
                    if self.everything or dead.state != "settled":
                        self.states[dead.state] += 1
                        if dead.letter is not None:
                            self.errors[dead.letter.last.type] += 1
                    if self.everything or dead.state == "open":
                        yield dead


async def list_letters(topic: str, which: Selection, how: Looking, where: Access) -> None:
    """``aioparallel dlq list``."""
    async with open_topic(topic, which.partition, where) as opened:
        warn_of_problems(opened)
        if how.as_json:
            await print_json(Search(opened, which, how.everything).letters(json_summary), make_console())
        else:
            await print_table(opened, which, make_console(), everything=how.everything)


async def show_letters(topic: str, which: Selection, how: Showing, where: Access) -> None:
    """``aioparallel dlq show``."""
    if how.raw and how.as_json:
        raise ConfigurationError("raw", "--json", "cannot be combined")
    if not which.has_criteria and not which.has_number:
        which = replace(which, newest=1)
    is_cut = not which.has_number and not how.raw and not how.as_json
    if is_cut:
        which = replace(which, newest=SHOWN_WHOLE)
    async with open_topic(topic, which.partition, where) as opened:
        warn_of_problems(opened)
        search = Search(opened, which, how.everything)
        sources = Sources(opened.client)
        if how.raw:
            await write_raw(search, sources)
        elif how.as_json:
            await print_json(completed(search, sources, json_details), make_console())
        else:
            await print_details(search, make_console(), sources)
        if not how.raw and not search.found:
            hint = "" if how.everything else "; --all includes settled ones"
            say(f"{topic}: no {'' if how.everything else 'open '}letter matches{hint}.")
        elif is_cut and search.found > SHOWN_WHOLE:
            say(f"Shown: the {SHOWN_WHOLE} newest of {search.found:,} letters that match. --newest N shows more.")


async def print_table(opened: OpenTopic, which: Selection, console: Console, *, everything: bool) -> None:
    """Read all letters, then print the table and the counts."""
    search = Search(opened, which if which.has_number else replace(which, newest=SHOWN), everything)
    rows = [one async for one in search.letters(row)]
    if rows:
        console.print(table(rows, time.time(), states=everything))
    for line in footer(opened.name, search.states, search.errors, len(rows), which, everything=everything):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


async def print_json(letters: AsyncGenerator[object, None], console: Console) -> None:
    """One object a line."""
    async with aclosing(letters):
        async for one in letters:
            console.file.write(json.dumps(one, ensure_ascii=False) + "\n")


async def completed(search: Search, sources: Sources, form: Callable[[DeadLetter], T]) -> AsyncGenerator[T, None]:
    """Yields ``form(letter)`` for each match, after completing those that lack a part of their record."""
    async with aclosing(search.letters(_itself)) as letters:
        async for dead in letters:
            yield form(await sources.completed(dead))


def _itself(dead: DeadLetter) -> DeadLetter:
    return dead


async def print_details(search: Search, console: Console, sources: Sources) -> None:
    """Everything about each letter, separated by empty lines."""
    between = ""
    async with aclosing(completed(search, sources, lambda dead: details(dead, time.time()))) as texts:
        async for text in texts:
            console.print(between + text, markup=False, highlight=False, soft_wrap=True)
            between = "\n"


async def write_raw(search: Search, sources: Sources) -> None:
    """Write the value of a single letter to standard output.

    Raises ConfigurationError unless exactly one matches, and ClientError if the letter lacks its value and the original
    record is gone. Nothing is written then.
    """
    letters: list[DeadLetter] = []
    async with aclosing(search.letters(_itself)) as found:
        async for dead in found:
            letters.append(dead)
            if len(letters) > 1:
                break
    if len(letters) != 1:
        found_as = "more match" if letters else "none matches"
        raise ConfigurationError("raw", found_as, "writes one value; select exactly one, with --partition and --offset")
    letter, record = letters[0].letter, letters[0].record
    if letter is not None and letter.left_out is not None and letter.left_out.value is not None:
        whole = await sources.whole(record)
        if isinstance(whole, str):
            raise ClientError(f"{record.place} lacks its value, as it was too large for {search.topic.name}: {whole}")
        record = whole
    sys.stdout.buffer.write(record.value or b"")
    sys.stdout.buffer.flush()


def warn_of_problems(topic: OpenTopic) -> None:
    """List and show go on if marks cannot be read."""
    for one in topic.marks:
        if one.problem:
            say(f"WARNING {one.problem}; shown as open.")
