"""What came of runs, and the values that goals and tables are made of. Judged are only medians of warm runs without
problems, and figures of cases without problems.

A ratio of two contestants is the median of the ratios of their rounds, with its interval (:mod:`benchmarks.intervals`):
both sides of each ratio ran in the same minute.
"""

from __future__ import annotations

import contextlib
import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from benchmarks.intervals import Interval, ratio_interval
from benchmarks.machine import Surroundings

__all__ = [
    "OURS",
    "Entry",
    "Goal",
    "Judgement",
    "NotMeasured",
    "Result",
    "Run",
    "Spread",
    "Verdict",
    "cpu_over",
    "figure",
    "judge",
    "memory_over",
    "over_bound",
    "paired",
    "rate_over",
    "seconds_under",
]

OURS: Final = "ours"


@dataclass(frozen=True, slots=True)
class Run:
    """One pass of one contestant over the topic.

    ``seconds``: from the first handler call to the end of the last handler. ``whole_seconds``: the same from the start
    of the consumer (it joins its group). ``cpu_seconds``: user and system time of the whole process in ``seconds``: its
    start, the joining of the group and the closing would weigh on short runs. ``peak_memory``: bytes, the process's
    highest resident size so far. ``stopped``: at the work's limit, with ``ended`` records behind it.
    ``peak_in_flight``: the most handlers that ran at once; None where they return at once. ``problems``: what the
    checks found; such a run counts for nothing. ``machine``: what was seen of the machine meanwhile. ``repeated``: the
    machine moved in its round, which was run again; the run counts for nothing.
    """

    round: int
    seconds: float
    whole_seconds: float
    ended: int
    cpu_seconds: float
    peak_memory: int
    stopped: bool = False
    problems: tuple[str, ...] = ()
    peak_in_flight: int | None = None
    machine: Surroundings | None = None
    repeated: bool = False

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.ended / self.seconds if self.seconds else 0.0

    @property
    def cpu_per_record(self) -> float:
        """Seconds of CPU a record."""
        return self.cpu_seconds / self.ended if self.ended else 0.0


class Spread(NamedTuple):
    """A median with the lowest and the highest value."""

    median: float
    lowest: float
    highest: float


@dataclass(slots=True)
class Entry:
    """All runs of one contestant in one case. Round 0 is the cold one, the others follow in the same process.

    ``missing``: why there is none, in words for people (no Java, an installation failed).
    """

    contestant: str
    title: str
    runs: list[Run] = field(default_factory=list)
    missing: str | None = None

    @property
    def cold(self) -> Run | None:
        """The first run of the process, if it is good."""
        return next((run for run in self.runs if run.round == 0 and not run.problems), None)

    @property
    def warm(self) -> list[Run]:
        """The good ones of the later runs."""
        return [run for run in self.runs if run.round > 0 and not run.problems and not run.repeated]

    @property
    def stopped(self) -> bool:
        """Whether a warm run was stopped at the work's limit."""
        return any(run.stopped for run in self.warm)

    @property
    def memory(self) -> int:
        """Bytes: the highest of the warm runs."""
        return max(run.peak_memory for run in self.warm)

    def spread(self, name: Value) -> Spread | None:
        """Of the warm runs, if there is a good one."""
        values = [getattr(run, name) for run in self.warm]
        return Spread(statistics.median(values), min(values), max(values)) if values else None


@dataclass(slots=True)
class Result:
    """What came of one case. ``group``: its letter. ``bound``: the least seconds the work can take. ``figures``: what
    is measured beside or instead of runs, by name (a name says its unit: ``encode_ms``). ``problems``: of the case.

    ``rounds``: the warm ones that count. ``repeated``: those in which the machine moved and that were run again.
    ``unquiet``: those in which it moved and that count all the same, because too few quiet ones came in time.
    """

    group: str
    name: str
    title: str
    records: int = 0
    concurrency: int = 0
    bound: float | None = None
    entries: list[Entry] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    rounds: int = 0
    repeated: int = 0
    unquiet: int = 0

    @property
    def failed(self) -> bool:
        """Whether a check did not hold, or something could not be measured. A peer that is missing is neither."""
        return bool(self.problems) or any(run.problems for entry in self.entries for run in entry.runs)

    def entry(self, contestant: str) -> Entry | None:
        """The runs of one contestant."""
        return next((entry for entry in self.entries if entry.contestant == contestant), None)

    def good(self, contestant: str) -> Entry:
        """The contestant, who has warm runs without problems. Raises NotMeasured."""
        entry = self.entry(contestant)
        if self.problems:
            raise NotMeasured(f"{self.name} has problems")
        if entry is None:
            raise NotMeasured(f"{contestant} did not run in {self.name}")
        if entry.missing is not None:
            raise NotMeasured(f"{contestant} is missing")
        if not any(run.ended for run in entry.warm):
            raise NotMeasured(f"{contestant} has no warm run without problems in {self.name}")
        return entry


class NotMeasured(Exception):
    """The value cannot be had; the message says why."""


Results = Mapping[str, Result]
Measure = Callable[[Result, Results], Interval]
"""A value of a case, with all cases by name beside it. Raises NotMeasured."""
Value = Literal["rate", "seconds", "cpu_per_record"]


def paired(mine: Entry, theirs: Entry, value: Value) -> list[float]:
    """Mine over theirs, in each round in which both have a good warm run."""
    beside = {run.round: run for run in theirs.warm}
    both = [(run, beside[run.round]) for run in mine.warm if run.round in beside]
    pairs = [(getattr(run, value), getattr(other, value)) for run, other in both]
    return [mine / theirs for mine, theirs in pairs if mine > 0 and theirs > 0]


def _ratio(mine: Entry, theirs: Entry, value: Value) -> Interval:
    found = paired(mine, theirs, value)
    if not found:
        raise NotMeasured(f"{mine.contestant} and {theirs.contestant} have no good warm run in the same round")
    return ratio_interval(found)


def rate_over(other: str, mine: str = OURS) -> Measure:
    """Records a second of ours over those of another; of a run stopped at its limit they are those until then."""
    return lambda result, _: _ratio(result.good(mine), result.good(other), "rate")


def seconds_under(other: str) -> Measure:
    """How many times the seconds of ours another takes. More, if it was stopped before its end."""

    def measure(result: Result, _: Results) -> Interval:
        mine, theirs = result.good(OURS), result.good(other)
        return _exactly(0.0) if mine.stopped else _ratio(theirs, mine, "seconds")

    return measure


def over_bound() -> Measure:
    """Seconds of ours over the least that the work can take; infinity where ours was stopped before its end."""

    def measure(result: Result, _: Results) -> Interval:
        if not result.bound:
            raise NotMeasured(f"{result.name} has no bound")
        mine = result.good(OURS)
        if mine.stopped:
            return _exactly(math.inf)
        return ratio_interval([run.seconds / result.bound for run in mine.warm])

    return measure


def _exactly(value: float) -> Interval:
    """What has no interval."""
    return Interval(value, value, value)


def memory_over(other: str) -> Measure:
    """Peak memory of ours over another's."""

    def measure(result: Result, _: Results) -> Interval:
        return _exactly(result.good(OURS).memory / result.good(other).memory)

    return measure


def cpu_over(other: str) -> Measure:
    """CPU a record of ours over that in another case, which ran in the same rounds."""

    def measure(result: Result, results: Results) -> Interval:
        if other not in results:
            raise NotMeasured(f"{other} did not run")
        return _ratio(result.good(OURS), results[other].good(OURS), "cpu_per_record")

    return measure


def figure(name: str) -> Measure:
    """A figure of a case without problems."""

    def measure(result: Result, _: Results) -> Interval:
        if result.problems:
            raise NotMeasured(f"{result.name} has problems")
        value = result.figures.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise NotMeasured(f"{result.name} has no {name}")
        return _exactly(float(value))

    return measure


@dataclass(frozen=True, slots=True)
class Goal:
    """A value to be on the right side of ``must``, and better of ``stretch`` too. ``unit``: "ms", or empty for a ratio.
    ``beside``: what is shown with it and has no verdict."""

    text: str
    measure: Measure
    relation: Literal[">", ">=", "<="]
    must: float
    stretch: float | None = None
    unit: str = ""
    beside: tuple[str, Measure] | None = None


_REACHES: Final = {">": operator.gt, ">=": operator.ge, "<=": operator.le}
Verdict = Literal["reached, stretch too", "reached", "MISSED", "not measured"]


class Judgement(NamedTuple):
    """A goal with the value seen. Without one, None, ``remark`` says why; else what a reader has to know of it."""

    group: str
    goal: Goal
    verdict: Verdict
    value: Interval | None
    remark: str


def judge(goals: Mapping[str, Sequence[Goal]], results: Results) -> list[Judgement]:
    """Every goal of the cases that there are results of. ``goals``: by the name of the case they are about."""
    return [_judged(name, goal, results) for name, of_case in goals.items() if name in results for goal in of_case]


def _judged(name: str, goal: Goal, results: Results) -> Judgement:
    group, reaches = name[0], _REACHES[goal.relation]
    try:
        value = goal.measure(results[name], results)
    except NotMeasured as reason:
        return Judgement(group, goal, "not measured", None, str(reason))
    if not reaches(value.median, goal.must):
        verdict: Verdict = "MISSED"
    else:
        further = goal.stretch is not None and reaches(value.median, goal.stretch)
        verdict = "reached, stretch too" if further else "reached"
    stopped = [entry.contestant for entry in results[name].entries if entry.stopped and entry.contestant in goal.text]
    remarks = [f"{contestant} stopped at the limit" for contestant in stopped]
    if value.low < goal.must < value.high:
        remarks.append("its interval holds the goal" if value.low else "too few rounds for an interval")
    if goal.beside is not None:
        with contextlib.suppress(NotMeasured):
            remarks.append(f"{goal.beside[0]}: {goal.beside[1](results[name], results).median:.2f} {goal.unit}".strip())
    return Judgement(group, goal, verdict, value, "; ".join(remarks))
