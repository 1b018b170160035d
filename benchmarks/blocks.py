"""The text of each generated block of figures, by name. pages.py puts them into pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks import report
from benchmarks.cases import CASES
from benchmarks.kept import GOALS, Kept, Row, read
from benchmarks.measures import OURS, Entry, Result, rate_over
from benchmarks.tables import NOTHING, cell, number, rows_table, table

__all__ = ["BLOCKS", "figures"]

Results = Sequence[report.Measured]


def figures(folder: Path) -> dict[str, str]:
    """The text of each block, from the results in a folder. Raises AioparallelError for a file of another format."""
    results = report.read(folder)
    kept = {name: read(folder / f"{name}.json") for name in PROGRAMS}
    of_programs = {name: of_program(name, found) for name, found in kept.items()}
    missed_there = [row for found in kept.values() if found for row in found.tables.get(GOALS, ()) if is_missed(row)]
    of_cases = {name: text(results) for name, text in BLOCKS.items()}
    return {**of_cases, "missed": "\n\n".join(missed(results, missed_there)), **of_programs}


def machine(results: Results) -> str:
    """When and on which machine it was measured."""
    alike, sentences = report.by_facts(results), []
    for facts, together in alike.items():
        dates = sorted({one.facts.date.partition("T")[0] for one in together})
        which = "" if len(alike) == 1 else f"{', '.join(one.case.name for one in together)}: "
        size = "" if facts.scale == 1 else f" **Record counts were divided by {facts.scale}.**"
        sentences.append(
            f"{which}measured on {' and '.join(dates)} with aioparallel {report.version_of(facts)}, {facts.python}, "
            f"aiokafka {facts.aiokafka}, uvloop {facts.uvloop or 'none'}, Java {facts.java or 'none'}. "
            f"Broker ({facts.broker}), producer and contestants share {facts.cores} cores "
            f"({facts.cpu}, {facts.memory / 2**30:.0f} GiB, {facts.system}). Rates and seconds are medians of at least "
            f"{facts.rounds} warm runs (lowest-highest).{size}"
        )
    return "\n\n".join(sentence[:1].upper() + sentence[1:] for sentence in sentences)


def headline(results: Results) -> str:
    """The main table of README.md."""
    cases = {one.case.name: one.case for one in results}
    rows = [row(cases[name]) for name, row in HEADLINE if name in cases]
    return table(("case", "", "aioparallel", "Java Parallel Consumer", "to compare"), rows, 2, "---")


Line = tuple[str, str, str, str, str]


def _row(unit: str, value: Callable[[Entry], str], beside: Mapping[str, str]) -> Callable[[Result], Line]:
    """A row with values of contestants. ``beside``: contestants to compare with, and their titles."""

    def row(case: Result) -> Line:
        def shown(contestant: str) -> str:
            entry = case.entry(contestant)
            return NOTHING if entry is None else value(entry)

        there = {entry.contestant for entry in case.entries}
        compared = [f"{title}: {shown(name)}" for name, title in beside.items() if name in there]
        if unit == "seconds" and case.bound:
            compared.append(f"the least possible: {number(case.bound)}")
        return case.title, unit, shown(OURS), shown("java"), "; ".join(compared)

    return row


def _memory(entry: Entry) -> str:
    return f"{entry.memory / 1e6:,.0f}" if entry.warm else NOTHING


def _latency(case: Result) -> Line:
    seen = cell(case.figures.get("arrival_to_handler_p99_ms"))
    return case.title, "ms from arrival to handler, p99", seen, "", ""


def _recovery(case: Result) -> Line:
    repeated = {row["contestant"]: row["repeated"] for row in case.figures.get("contestants", ())}
    by_hand = f"a task per record, commits by hand: {cell(repeated.get('by-hand'))}"
    return case.title, "records that run again", cell(repeated.get(OURS)), "", by_hand


LEAST: Final = "the smallest program with the same waits"
LOOP: Final = {"least": LEAST, "ceiling": "the event loop alone"}
HEADLINE: Final[Sequence[tuple[str, Callable[[Result], Line]]]] = (
    ("a-key", _row("records/s", report.rate, {"getmany": "one at a time, `getmany`", "async-for": "`async for`"})),
    ("c-sleep", _row("records/s", report.rate, LOOP)),
    ("c-sleep", _row("peak MB", _memory, {"java-256m": "Java with 256 MB of heap"})),
    ("c-sleep-2000", _row("records/s", report.rate, LOOP)),
    ("d-flights", _row("records/s", report.rate, {"least": LEAST})),
    ("b-key-1000", _row("seconds", lambda entry: report.spread(entry.spread("seconds")), {})),
    ("j-produce", _row("records/s", report.rate, {"producer": "a bare producer"})),
    ("k-json", _row("records/s", report.rate, {"getmany": "one at a time, `getmany`"})),
    ("f-20000", _latency),
    ("h-recovery", _recovery),
)


def missed(results: Results, of_programs: Sequence[Row]) -> Iterator[str]:
    """Goals that are not reached, also those of the other programs, and cases without a result."""
    judgements = report.judged(results)
    short = [one for one in judgements if one.verdict in ("MISSED", "not measured")]
    if not judgements:
        yield "There is no run yet: `make bench`."
    elif short:
        yield f"Of {len(judgements)} goals {len(short)} are not reached:"
        yield report.goals_table(short)
    else:
        yield f"All {len(judgements)} goals of the main benchmark are reached."
    if of_programs:
        yield "Goals that programs beside the main benchmark miss:"
        yield rows_table(of_programs)
    yield from _left_out(results)


def is_missed(row: Row) -> bool:
    """Whether a row of goals is missed."""
    return row["verdict"] == "MISSED"


def goals(results: Results) -> str:
    """All goals with their verdicts."""
    judgements = report.judged(results)
    return "\n\n".join([report.counted(judgements), report.goals_table(judgements), *_left_out(results)])


def _left_out(results: Results) -> Iterator[str]:
    there = {one.case.name for one in results}
    if names := [f"`{case.name}`" for case in CASES if case.name not in there]:
        yield f"Without a result: {', '.join(names)}."


def without_goal(results: Results) -> str:
    """The ratio of our rate to others in cases without a goal."""
    judged = {case.name for case in CASES if case.goals}
    others = ("least", "ceiling", "getmany", "java")
    cases = [one.case for one in results if one.case.name not in judged and len(one.case.entries) > 1]
    rows = [(case.name, case.title, *(report.value_of(rate_over(other), case) for other in others)) for case in cases]
    return table(("", "case", *(f"ours / {other}" for other in others)), rows, 2)


def _not_there(group: str) -> str:
    return f"The last run did not measure it: `python -m benchmarks --cases {group}`."


def batches(results: Results) -> str:
    """Handlers of many records at once."""
    cases = [one.case for one in results if one.case.group == "l"]
    if not cases:
        return _not_there("l")
    others = ("getmany", "ceiling")
    rows = [
        (case.title, *(report.rate(entry) if (entry := case.entry(name)) else NOTHING for name in (OURS, *others)))
        for case in cases
    ]
    return "Records/s\n\n" + table(("", "aioparallel", *others), rows)


def patterns(case: str, *columns: str) -> Callable[[Results], str]:
    """Offset maps by pattern of incomplete offsets."""

    def shown(results: Results) -> str:
        rows = [row for one in results if one.case.name == case for row in one.case.figures.get("patterns", ())]
        chosen = [{column: row.get(column) for column in columns} for row in rows]
        return (
            rows_table(chosen)
            if rows
            else f"The last run did not measure it: `python -m benchmarks --cases {case[0]}`."
        )

    return shown


PROGRAMS: Final = (
    "deserializers", "parallel_map", "kmq", "share", "priority", "transactions", "sql_store", "database",
    "http_clients", "blocking", "spark", "spark_latency", "spark_tuning",
)  # fmt: skip
"""Programs of their own: each has a results file and a block with its name."""


def of_program(name: str, kept: Kept | None) -> str:
    """All tables of a program."""
    if kept is None:
        return f"Nothing is kept of it yet: `python -m benchmarks.{name}` measures it."
    facts = kept.facts
    beside = "" if facts.broker == "none" else f"; beside it {facts.broker.removeprefix('none; ')}"
    said = (
        f"Measured on {facts.date.partition('T')[0]} by `{kept.command}` with aioparallel {report.version_of(facts)}, "
        f"{facts.python}, on {facts.cores} cores ({facts.cpu}){beside}. Load of the machine before: {kept.load:.1f}."
    )
    if kept.load > facts.cores / 2:
        said += " **Other work may have run beside it: compare these figures with each other only.**"
    return "\n\n".join([said, *(f"{title}:\n\n{rows_table(rows)}" for title, rows in kept.tables.items())])


BLOCKS: Final[Mapping[str, Callable[[Results], str]]] = {
    "machine": machine,
    "headline": headline,
    "goals": goals,
    "without-goal": without_goal,
    "batches": batches,
    "density": patterns("g-density", "incomplete", "java", "ours", "ratio"),
    "map-times": patterns("g-time", "pattern", "incompletes", "encode_ms", "decode_ms", "characters", "format"),
}
