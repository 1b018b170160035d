"""The summary on the terminal: what just ran, and how the goals stand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from aioparallel.cli.bench.goals import Judgement, Verdict, judge
from aioparallel.cli.bench.model import Case
from aioparallel.cli.bench.report.tables import Grid, contest_grid, counted, figure_grids, goals_grid, keys_grid, notes

__all__ = ["show"]

COLOURS: Final = {
    Verdict.STRETCH: "bold green",
    Verdict.MUST: "green",
    Verdict.MISSED: "bold red",
    Verdict.NOT_MEASURED: "dim",
}


def show(cases: Sequence[Case], console: Console, *, full_size: bool) -> None:
    """All cases of a run, by group, then the goals that they decide."""
    for letter in sorted({case.group for case in cases}):
        show_group(letter, [case for case in cases if case.group == letter], console)
    groups = {case.group for case in cases}
    decided = [judgement for judgement in judge(cases) if judgement.goal.group in groups]
    if decided:
        console.print(goals_table(decided))
        console.print(counted(decided), highlight=False)
        if not full_size:
            console.print("Not at full size: these figures show that everything works, and say little about speed.")


def show_group(letter: str, cases: Sequence[Case], console: Console) -> None:
    """The tables of one group and what has to be said beside them."""
    for grid in grids_of(letter, cases):
        console.print(rich_table(grid, f"({letter}) {grid.title or 'Figures'}"))
    for sentence in notes(cases):
        console.print(Text(f"  {sentence}"))


def grids_of(letter: str, cases: Sequence[Case]) -> Iterator[Grid]:
    """Of (b) the table of key counts says it all; of measured cases the figures do."""
    grid = keys_grid(cases) if letter == "b" else contest_grid(cases)
    if grid is not None:
        yield grid
    yield from figure_grids(cases)


def rich_table(grid: Grid, title: str) -> Table:
    """A table for the terminal, numbers on the right."""
    table = Table(title=title, title_justify="left")
    for column, name in enumerate(grid.header):
        table.add_column(name, justify="left" if column < grid.labels else "right")
    for row in grid.rows:
        table.add_row(*map(Text, row))
    return table


def goals_table(judgements: Sequence[Judgement]) -> Table:
    """The goals, with words as well as colours."""
    grid = goals_grid(judgements)
    table = rich_table(Grid(grid.title, grid.header, [], grid.labels), grid.title)
    table.columns[-1].justify = "left"
    for row, judgement in zip(grid.rows, judgements, strict=True):
        table.add_row(*map(Text, row[:-1]), Text(row[-1], style=COLOURS[judgement.verdict]))
    return table
