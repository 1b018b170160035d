"""The tables that ``results.md`` and the terminal show, as text, and what has to be said beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, ParamSpec

from aioparallel.cli.bench.goals import Judgement, Verdict
from aioparallel.cli.bench.measures import (
    OURS,
    Measured,
    NotMeasured,
    over_bound,
    rate_ratio,
    seconds_ratio,
    stopped,
    warm_memory,
)
from aioparallel.cli.bench.model import Case, Entry
from aioparallel.cli.bench.report.wording import goal_limits, goal_value, megabytes, microseconds, number, ratio, spread

__all__ = ["Grid", "contest_grid", "counted", "figure_grids", "goals_grid", "keys_grid", "notes"]

Parameters = ParamSpec("Parameters")

NOTHING: Final = "-"
VERDICTS: Final = {
    Verdict.STRETCH: "reached, stretch too",
    Verdict.MUST: "reached",
    Verdict.MISSED: "MISSED",
    Verdict.NOT_MEASURED: "not measured",
}


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of text. ``labels``: how many of its first columns are words; the others are numbers."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    labels: int = 1


def contest_grid(cases: Sequence[Case]) -> Grid | None:
    """A row for each contestant of each case; None when no case has any."""
    header: tuple[str, ...] = ("case", "contestant", "records/s", "cold", "CPU µs/record", "peak MB", "rate ours / its")
    rows: list[tuple[str, ...]] = [
        (case.name if at == 0 else "", *contestant_row(case, entry))
        for case in cases
        for at, entry in enumerate(case.entries)
    ]
    if all(entry.contestant == OURS for case in cases for entry in case.entries):
        header, rows = header[:-1], [row[:-1] for row in rows]
    return Grid("Warm runs: median (lowest-highest)", header, rows, labels=2) if rows else None


def contestant_row(case: Case, entry: Entry) -> tuple[str, ...]:
    """One contestant's figures."""
    cold = number(entry.cold.rate) if entry.cold else NOTHING
    if entry.rate is None or entry.cpu_per_record is None:
        said = "missing" if entry.missing is not None else "no good warm run"
        return entry.contestant, said, cold, NOTHING, NOTHING, NOTHING
    rate = spread(entry.rate) + (", stopped" if stopped(entry) else "")
    cpu, memory = microseconds(entry.cpu_per_record.median), megabytes(warm_memory(entry))
    against = "1" if entry.contestant == OURS else value_of(rate_ratio, case, other=entry.contestant)
    return entry.contestant, rate, cold, cpu, memory, against


def keys_grid(cases: Sequence[Case]) -> Grid | None:
    """The table of key counts: seconds of ours and of Java against the least possible."""
    header = ("case", "bound s", "ours s", "java s", "ours / bound", "java / ours")
    rows = [
        (
            case.name,
            number(case.bound) if case.bound else NOTHING,
            seconds_of(case, OURS),
            seconds_of(case, "java"),
            value_of(over_bound, case),
            value_of(seconds_ratio, case, other="java"),
        )
        for case in cases
        if case.entries
    ]
    return Grid("Seconds for all records, warm: median (lowest-highest)", header, rows) if rows else None


def seconds_of(case: Case, contestant: str) -> str:
    """Seconds for the whole work, or what stands in the way of saying them."""
    entry = case.entry(contestant)
    if entry is None or entry.seconds is None:
        return NOTHING
    return spread(entry.seconds) + (", stopped" if stopped(entry) else "")


def value_of(measure: Callable[Parameters, Measured], *arguments: Parameters.args, **options: Parameters.kwargs) -> str:
    """What it measures as a ratio, or a dash."""
    try:
        return ratio(measure(*arguments, **options).value)
    except NotMeasured:
        return NOTHING


def figure_grids(cases: Sequence[Case]) -> Iterator[Grid]:
    """The figures of measured cases: cases with names in common side by side, then figures that are tables."""
    for together in alike(cases):
        names = dict.fromkeys(name for case in together for name in single_figures(case))
        rows = [(name, *(cell(case.figures.get(name)) for case in together)) for name in names]
        yield Grid("", ("figure", *(case.name for case in together)), rows)
    for case in cases:
        for name, value in case.figures.items():
            if found := rows_in(value):
                yield grid_of(f"{case.name}: {name}", found)


def alike(cases: Sequence[Case]) -> list[list[Case]]:
    """Those that have figures, put together where they share names."""
    groups: list[list[Case]] = []
    for case in cases:
        names = single_figures(case)
        group = next((group for group in groups if names & single_figures(group[0])), None)
        if group is not None:
            group.append(case)
        elif names:
            groups.append([case])
    return groups


def single_figures(case: Case) -> KeysView[str]:
    """The names of those that are no tables, in their order."""
    return {name: None for name, value in case.figures.items() if not rows_in(value)}.keys()


def rows_in(value: object) -> list[Mapping[str, Any]]:
    """A figure that is a list of rows, or rows by name; nothing when it is something else."""
    if isinstance(value, Mapping) and value:
        if all(isinstance(row, Mapping) for row in value.values()):
            return [{"": name, **row} for name, row in value.items()]
        return [value]
    if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
        return value
    return []


def grid_of(title: str, rows: Sequence[Mapping[str, Any]]) -> Grid:
    """A table of such rows, whose names need not be the same."""
    header = tuple(dict.fromkeys(name for row in rows for name in row))
    words = takewhile(lambda name: all(isinstance(row.get(name), str) for row in rows), header)
    return Grid(title, header, [tuple(cell(row.get(name)) for name in header) for row in rows], len(list(words)))


def cell(value: object) -> str:
    """Any figure."""
    match value:
        case None:
            return NOTHING
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return number(value)
        case list() | tuple():
            return ", ".join(map(cell, value))
        case _:
            return str(value)


def goals_grid(judgements: Sequence[Judgement]) -> Grid:
    """Every goal with what was seen."""
    rows = [
        (
            judgement.goal.group,
            judgement.goal.text,
            goal_value(judgement) or NOTHING,
            *goal_limits(judgement.goal),
            VERDICTS[judgement.verdict] + (f" ({judgement.remark})" if judgement.remark else ""),
        )
        for judgement in judgements
    ]
    return Grid("Goals", ("", "goal", "seen", "must", "stretch", "verdict"), rows, labels=2)


def counted(judgements: Sequence[Judgement]) -> str:
    """How many goals came out how."""
    verdicts = [judgement.verdict for judgement in judgements]
    return "; ".join(f"{verdicts.count(verdict)} {said}" for verdict, said in VERDICTS.items() if verdict in verdicts)


def notes(cases: Sequence[Case]) -> Iterator[str]:
    """Sentences about what is missing, was stopped, or failed a check."""
    missing: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for case in cases:
        for entry in case.entries:
            if entry.missing is not None:
                missing[entry.contestant, entry.missing].append(case.name)
    for (contestant, why), names in missing.items():
        yield f"{contestant} did not run in {', '.join(names)}: {why}"
    for case in cases:
        yield from (f"{case.name}: {problem}" for problem in case.problems)
        for entry in case.entries:
            yield from run_notes(case, entry)


def run_notes(case: Case, entry: Entry) -> Iterator[str]:
    """The same about one contestant's runs."""
    who = f"{case.name}: {entry.contestant}"
    halted = [run for run in entry.runs if run.stopped and not run.problems]
    if halted:
        ended = " and ".join(f"{run.ended:,} in round {run.round}" for run in halted)
        yield f"{who} was stopped at the limit of its time after {ended} of {case.records:,} records"
    for run in entry.runs:
        yield from (f"{who}, round {run.round}, counts for nothing: {problem}" for problem in run.problems)
