"""Writes ``results.json`` with every run of every case, and ``results.md``, which the terminal shows as well."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, get_args

from aioparallel.records.errors import AioparallelError
from benchmarks.cases import CASES, GROUPS, REMARKS
from benchmarks.facts import Facts
from benchmarks.intervals import Interval
from benchmarks.machine import Surroundings
from benchmarks.measures import (
    OURS,
    Entry,
    Judgement,
    Measure,
    NotMeasured,
    Result,
    Run,
    Spread,
    Verdict,
    judge,
    over_bound,
    rate_over,
    seconds_under,
)
from benchmarks.tables import NOTHING, cell, escaped, number, ratio, rows_table, table

__all__ = [
    "Measured",
    "by_facts",
    "counted",
    "goals_table",
    "interval",
    "judged",
    "markdown",
    "merged",
    "rate",
    "read",
    "spread",
    "value_of",
    "version_of",
    "write",
]

FORMAT: Final = 2
READING: Final = """\
The first run of a contestant's process is the cold one; medians are those of the later, warm runs. Rates, seconds and
the CPU of the whole process count from the first handler call to the end of the last one, without joining the group,
closing, and the start of the interpreter or JVM. The order of records, their completeness and the committed offsets are
checked after each run; a run that fails a check does not count."""
RATIOS: Final = """\
Contestants run in random order in each round. A ratio is the median of the ratios of the rounds, so both sides of each
ran in the same minute; its interval of 95 % follows. A fixed calibration loop is timed before and after each
run: a round in which it moved by more than 5 % is repeated. The interval is that of these processes: each contestant
has one for all rounds, and another process of the same code may differ by some percent."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A case's result and the facts of its measurement."""

    case: Result
    facts: Facts


def merged(old: Sequence[Measured], new: Measured) -> list[Measured]:
    """The old results with the new one instead of that with its name, sorted by group and name.

    A case is replaced as a whole, as contestants of one row must have run in the same rounds.
    """

    def natural(name: str) -> list[tuple[int, str]]:  # ``b-key-20`` before ``b-key-100``
        return [(int(digits), "") if digits else (-1, text) for digits, text in re.findall(r"(\d+)|(\D+)", name)]

    by_name = {one.case.name: one for one in (*old, new)}
    return sorted(by_name.values(), key=lambda one: (one.case.group, natural(one.case.name)))


def judged(results: Sequence[Measured]) -> list[Judgement]:
    """All goals of all cases, judged."""
    return judge({case.name: case.goals for case in CASES}, {one.case.name: one.case for one in results})


def write(results: Sequence[Measured], folder: Path) -> str:
    """Write ``results.json`` and ``results.md``. Returns the text of the latter."""
    goals = [
        {
            "group": one.group, "text": one.goal.text, "relation": one.goal.relation, "must": one.goal.must,
            "stretch": one.goal.stretch, "unit": one.goal.unit, "value": one.value and one.value._asdict(),
            "verdict": one.verdict,
            "remark": one.remark,
        }
        for one in judged(results)
    ]  # fmt: skip
    document = {"format": FORMAT, "results": [asdict(one) for one in results], "goals": goals}
    text = markdown(results, sorted(plot.name for plot in folder.glob("?-*.svg")))
    for name, content in (("results.json", json.dumps(document, indent=1) + "\n"), ("results.md", text)):
        # Atomically, so that an interruption keeps the old file.
        new = folder / f"{name}.new"
        new.write_text(content)
        os.replace(new, folder / name)
    return text


def read(folder: Path) -> list[Measured]:
    """Read what :func:`write` has written; empty without a file. Raises AioparallelError for another format."""
    path = folder / "results.json"
    if not path.exists():
        return []
    try:
        document = json.loads(path.read_text())
        if document["format"] != FORMAT:
            raise ValueError(f"its format is {document['format']}, not {FORMAT}")
        return [Measured(_result_of(found["case"]), Facts(**found["facts"])) for found in document["results"]]
    except (ValueError, KeyError, TypeError) as error:
        raise AioparallelError(
            f"{path} is not what this version of the benchmark writes ({error!r}); move it away, or choose another "
            "--output"
        ) from error


def _result_of(found: Mapping[str, Any]) -> Result:
    entries = [Entry(**{**entry, "runs": [_run_of(run) for run in entry["runs"]]}) for entry in found["entries"]]
    return Result(**{**found, "entries": entries})


def _run_of(found: Mapping[str, Any]) -> Run:
    machine = Surroundings(**found["machine"]) if found["machine"] else None
    return Run(**{**found, "problems": tuple(found["problems"]), "machine": machine})


def markdown(results: Sequence[Measured], plots: Sequence[str] = ()) -> str:
    """The goals, a section for each group of cases, and the facts. ``plots``: file names that begin with the letter of
    their group."""
    parts = ["# Benchmark results", READING]
    parts += [RATIOS] * any(run.machine for one in results for entry in one.case.entries for run in entry.runs)
    if small := [one.case.name for one in results if one.facts.scale != 1]:
        names = "all cases" if len(small) == len(results) else ", ".join(small)
        parts.append(
            f"**Not at full size: {names}.** Their record counts were divided; such figures show that everything "
            "works, and say little about speed."
        )
    judgements = judged(results)
    parts += ["## Goals", counted(judgements), goals_table(judgements)]
    for letter, title in GROUPS.items():
        if cases := [one.case for one in results if one.case.group == letter]:
            parts += [f"## ({letter}) {title}", *_group(letter, cases)]
            parts += [f"![group {letter}]({plot})" for plot in plots if plot.startswith(f"{letter}-")]
    parts += ["## Measured with", *_measured_with(results)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def counted(judgements: Sequence[Judgement]) -> str:
    """How many goals have each verdict, as a sentence."""
    verdicts = [one.verdict for one in judgements]
    return "; ".join(f"{verdicts.count(one)} {one}" for one in get_args(Verdict) if one in verdicts) + "."


def goals_table(judgements: Sequence[Judgement]) -> str:
    """A row for each goal: its value, its limit, the verdict."""
    rows = []
    for group, goal, verdict, value, remark in judgements:
        unit = f" {goal.unit}" if goal.unit else ""
        stretch = "" if goal.stretch is None else f"{goal.stretch:.3g}{unit}"
        seen = NOTHING if value is None else f"{number(value.median) if unit else interval(value)}{unit}"
        said = f"{verdict} ({remark})" if remark else verdict
        rows.append((group, goal.text, seen, f"{goal.relation} {goal.must:.3g}{unit}", stretch, said))
    return table(("", "goal", "seen", "must", "stretch", "verdict"), rows, 2, "---")


def _group(letter: str, cases: Sequence[Result]) -> Iterator[str]:
    yield "\n".join(f"- `{one.name}`: {one.title}" + f" ({one.records:,} records)" * bool(one.records) for one in cases)
    titles = {entry.contestant: entry.title for case in cases for entry in case.entries if entry.missing is None}
    if titles:
        yield "Contestants: " + "; ".join(f"`{name}`, {title}" for name, title in titles.items()) + "."
    if letter in REMARKS:
        yield REMARKS[letter]
    if letter == "b":
        yield _seconds_table(cases)
    if any(case.entries for case in cases):
        yield _runs_table(cases)
    yield from _figures(cases)
    if said := [*_quietness(cases), *_notes(cases)]:
        yield "\n".join(f"- {escaped(sentence)}" for sentence in said)


def _seconds_table(cases: Sequence[Result]) -> str:
    rows = [
        (
            case.name,
            number(case.bound) if case.bound else NOTHING,
            *(spread(entry.spread("seconds") if (entry := case.entry(name)) else None) for name in (OURS, "java")),
            value_of(over_bound(), case),
            value_of(seconds_under("java"), case),
        )
        for case in cases
    ]
    header = ("case", "bound s", "ours s", "java s", "ours / bound", "java / ours")
    return f"Seconds for all records, warm: median (lowest-highest)\n\n{table(header, rows)}"


def _runs_table(cases: Sequence[Result]) -> str:
    """A row for each contestant of each case."""
    columns: dict[str, Callable[[Result, Entry], str]] = {
        "records/s": lambda _, entry: rate(entry),
        "cold": lambda _, entry: number(entry.cold.rate) if entry.cold else NOTHING,
        "CPU µs/record": lambda _, entry: _microseconds(entry.spread("cpu_per_record")),
        "rounds": lambda _, entry: str(len(entry.warm)),
        "peak MB": lambda _, entry: f"{entry.memory / 1e6:,.0f}" if entry.warm else NOTHING,
        "peak in flight": lambda _, entry: _peak(entry),
        "rate ours / its": lambda case, entry: value_of(rate_over(entry.contestant), case),
    }
    entries = [(case, entry) for case in cases for entry in case.entries]
    if all(_peak(entry) == NOTHING for _, entry in entries):
        del columns["peak in flight"]
    if all(entry.contestant == OURS for _, entry in entries):
        del columns["rate ours / its"]
    rows = [
        (case.name * (entry is case.entries[0]), entry.contestant, *(made(case, entry) for made in columns.values()))
        for case, entry in entries
    ]
    return f"Warm runs: median (lowest-highest)\n\n{table(('case', 'contestant', *columns), rows, 2)}"


def rate(entry: Entry) -> str:
    """Records per second of the warm runs, or why there are none."""
    if not entry.warm:
        return "missing" if entry.missing is not None else "no good warm run"
    return spread(entry.spread("rate")) + (", stopped" if entry.stopped else "")


def _peak(entry: Entry) -> str:
    peaks = [run.peak_in_flight for run in entry.warm if run.peak_in_flight is not None]
    return f"{max(peaks):,}" if peaks else NOTHING


def _figures(cases: Sequence[Result]) -> Iterator[str]:
    """Figures that cases share in one table, then figures that are tables."""
    left = [case for case in cases if case.figures]
    while left:
        names = _single(left[0])
        alike = [case for case in left if names & _single(case)]
        left = [case for case in left[1:] if case not in alike]
        every = dict.fromkeys(name for case in alike for name in case.figures if name in _single(case))
        rows = [(name, *(cell(case.figures.get(name)) for case in alike)) for name in every]
        if rows:
            yield table(("figure", *(case.name for case in alike)), rows)
    for case in cases:
        for name, value in case.figures.items():
            if name not in _single(case):
                yield f"{case.name}: {name}\n\n{rows_table(value)}"


def _single(case: Result) -> set[str]:
    """Names of figures that are not tables."""
    return {
        name for name, value in case.figures.items() if not (isinstance(value, list) and isinstance(value[0], dict))
    }


def _quietness(cases: Sequence[Result]) -> Iterator[str]:
    """The number of rounds, and how steady the machine was."""
    for case in cases:
        seen = [run.machine for entry in case.entries for run in entry.warm if run.machine]
        if not seen:
            continue
        loops = [each for one in seen for each in (one.before, one.after)]
        steal = [one.steal for one in seen if one.steal is not None]
        parts = [f"{case.rounds} warm rounds", f"calibration loop {min(loops):.2f} to {max(loops):.2f} ms"]
        parts += [f"steal {sum(steal) / len(steal):.1%}"] * bool(steal)
        mhz = [one.mhz for one in seen if one.mhz is not None]
        parts += [f"{min(mhz):,.0f} to {max(mhz):,.0f} MHz"] * bool(mhz)
        parts += [f"{case.repeated} rounds repeated"] * bool(case.repeated)
        parts += [f"the machine moved in {case.unquiet} of the rounds"] * bool(case.unquiet)
        yield f"{case.name}: {', '.join(parts)}"


def _notes(cases: Sequence[Result]) -> Iterator[str]:
    """Sentences about missing contestants, stopped runs and failed checks."""
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
            who = f"{case.name}: {entry.contestant}"
            halted = [f"{run.ended:,} in round {run.round}" for run in entry.runs if run.stopped and not run.problems]
            if halted:
                so_far = " and ".join(halted)
                yield f"{who} was stopped at the limit of its time after {so_far} of {case.records:,} records"
            for run in entry.runs:
                yield from (f"{who}, round {run.round}, counts for nothing: {problem}" for problem in run.problems)


def by_facts(results: Sequence[Measured]) -> dict[Facts, list[Measured]]:
    """Cases by their machine, versions and rounds, with an empty date."""
    alike: defaultdict[Facts, list[Measured]] = defaultdict(list)
    for one in results:
        alike[replace(one.facts, date="")].append(one)
    return alike


def _measured_with(results: Sequence[Measured]) -> Iterator[str]:
    """Machine and versions, once for all cases with the same."""
    alike = by_facts(results)
    for facts, together in alike.items():
        dates = sorted(one.facts.date for one in together)
        names = "All cases" if len(alike) == 1 else ", ".join(one.case.name for one in together)
        scale = "full size" if facts.scale == 1 else f"record counts divided by {facts.scale}"
        yield f"""\
{names}, from {dates[0]} to {dates[-1]}:

- {facts.cpu}, {facts.cores} cores, {facts.memory / 2**30:.0f} GiB, {facts.system}; shared by broker, producer and \
contestants
- aioparallel {version_of(facts)}, {facts.python}, aiokafka {facts.aiokafka}, uvloop {facts.uvloop or "none"}
- Java {facts.java or "none"}; broker: {facts.broker}
- {scale}, 1 cold and at least {facts.rounds} warm rounds, seed {facts.seed}"""


def version_of(facts: Facts) -> str:
    """The version of the library, with the commit if known."""
    return f"{facts.aioparallel} ({facts.commit})" if facts.commit else facts.aioparallel


def interval(found: Interval) -> str:
    """The median of a ratio with its interval, if there is one: ``0.63 (0.62-0.64)``."""
    if found.low == found.high or not found.low:
        return ratio(found.median)
    return f"{ratio(found.median)} ({ratio(found.low)}-{ratio(found.high)})"


def spread(found: Spread | None) -> str:
    """The median, followed by the lowest and the highest value."""
    if found is None:
        return NOTHING
    if found.lowest == found.highest:
        return number(found.median)
    return f"{number(found.median)} ({number(found.lowest)}-{number(found.highest)})"


def _microseconds(found: Spread | None) -> str:
    return number(found.median * 1e6) if found else NOTHING


def value_of(measure: Measure, case: Result) -> str:
    """The value, or a dash if it is not available."""
    try:
        return interval(measure(case, {}))
    except NotMeasured:
        return NOTHING
