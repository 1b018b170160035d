"""``results.md``: the goals, then a part for each group of cases, then what it was measured with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from aioparallel.cli.bench.goals import judge
from aioparallel.cli.bench.model import Case
from aioparallel.cli.bench.report.facts import Facts
from aioparallel.cli.bench.report.store import Result, write_text
from aioparallel.cli.bench.report.tables import Grid, contest_grid, counted, figure_grids, goals_grid, keys_grid, notes
from aioparallel.cli.bench.report.wording import GROUPS, REMARKS

__all__ = ["FILE", "markdown", "write"]

FILE: Final = "results.md"
READING: Final = """\
The first run of a contestant's process is its cold one; medians are those of the later, warm runs. Rates, seconds and
the CPU of the whole process count from the first handler call to the end of the last one: joining the group, closing,
and the start of interpreter or JVM are not in them. The order of records, their completeness and the committed offsets
are checked after each run; a run that fails counts for nothing.
"""


def write(results: Sequence[Result], plots: Sequence[Path], folder: Path) -> None:
    """Write it into the folder, with the plots that lie there."""
    write_text(folder / FILE, markdown(results, [plot.name for plot in plots]))


def markdown(results: Sequence[Result], plots: Sequence[str] = ()) -> str:
    """The whole text. ``plots`` are names of files, each beginning with the letter of its group."""
    groups: defaultdict[str, list[Case]] = defaultdict(list)
    for result in results:
        groups[result.case.group].append(result.case)
    parts = ["# Benchmark results", READING, *warning(results), "## Goals"]
    judgements = judge([result.case for result in results])
    parts += [f"{counted(judgements)}.", table(goals_grid(judgements))]
    for letter, cases in sorted(groups.items()):
        parts += [f"## ({letter}) {GROUPS.get(letter, '')}".rstrip(), *group(letter, cases)]
        parts += [f"![group {letter}]({plot})" for plot in plots if plot.startswith(f"{letter}-")]
    parts += ["## Measured with", *measured_with(results)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def warning(results: Sequence[Result]) -> Iterator[str]:
    """Says which cases did not run at full size: their figures are not those that the goals mean."""
    small = [result for result in results if result.facts.scale != 1]
    if small:
        yield (
            f"**Not at full size: {named(small, results)}.** Their record counts were divided; such figures show that "
            "everything works, and say little about speed."
        )


def named(some: Sequence[Result], results: Sequence[Result]) -> str:
    """These of the results, by their groups where all of a group are among them."""
    if len(some) == len(results):
        return "all cases"
    names = []
    for letter in dict.fromkeys(result.case.group for result in some):
        here = [result.case.name for result in some if result.case.group == letter]
        whole = len(here) == sum(result.case.group == letter for result in results)
        names += [f"({letter})"] if whole else here
    return ", ".join(names)


def group(letter: str, cases: Sequence[Case]) -> Iterator[str]:
    """One group's cases, tables and notes."""
    yield "\n".join(f"- `{case.name}`: {described(case)}" for case in cases)
    titles = {entry.contestant: entry.title for case in cases for entry in case.entries if entry.missing is None}
    if titles:
        yield "Contestants: " + "; ".join(f"`{name}`, {title}" for name, title in titles.items()) + "."
    if letter in REMARKS:
        yield REMARKS[letter]
    grids = [keys_grid(cases) if letter == "b" else None, contest_grid(cases), *figure_grids(cases)]
    for grid in grids:
        if grid is not None:
            yield f"{grid.title}\n\n{table(grid)}" if grid.title else table(grid)
    if said := list(notes(cases)):
        yield "\n".join(f"- {escaped(sentence)}" for sentence in said)


def described(case: Case) -> str:
    """A case's title and size."""
    return f"{case.title} ({case.records:,} records)" if case.records else case.title


def table(grid: Grid) -> str:
    """In Markdown, numbers on the right."""
    rule = ["---" if column < grid.labels else "---:" for column in range(len(grid.header))]
    if grid.title == "Goals":
        rule[-1] = "---"
    lines = (grid.header, rule, *grid.rows)
    return "\n".join("| " + " | ".join(map(escaped, line)) + " |" for line in lines)


def escaped(text: str) -> str:
    """On one line, and no bar that would end a cell."""
    return " ".join(text.split()).replace("|", "\\|")


def measured_with(results: Sequence[Result]) -> Iterator[str]:
    """Machine and versions, once for all cases that share them."""
    alike: defaultdict[tuple[object, ...], list[Result]] = defaultdict(list)
    for result in results:
        alike[result.facts.undated].append(result)
    for together in alike.values():
        dates = sorted(result.facts.date for result in together)
        names = named(together, results)
        lines = [f"{names[0].upper()}{names[1:]}, from {dates[0]} to {dates[-1]}:", ""]
        yield "\n".join([*lines, *(f"- {line}" for line in facts_lines(together[0].facts))])


def facts_lines(facts: Facts) -> Iterator[str]:
    """Everything but the date."""
    memory = f", {facts.memory / 2**30:.0f} GiB" if facts.memory else ""
    yield f"{facts.cpu}, {facts.cores} cores{memory}, {facts.system}; shared by broker, producer and contestants"
    yield f"aioparallel {facts.aioparallel}, {facts.python}, aiokafka {facts.aiokafka}, uvloop {facts.uvloop or 'none'}"
    yield f"Java {facts.java or 'none'}; broker: {facts.broker}"
    scale = "full size" if facts.scale == 1 else f"record counts divided by {facts.scale}"
    yield f"{scale}, 1 cold and {facts.rounds} warm rounds, seed {facts.seed}"
