"""Results of runs, and the values for goals and tables. Only medians of warm runs without problems and figures of
cases without problems count.

A ratio of two contestants is the median of the ratios of their rounds with its interval (:mod:`benchmarks.intervals`):
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
    of the consumer, including joining the group. ``cpu_seconds``: user and system time of the process during
    ``seconds``; start-up, joining and closing would distort short runs. ``peak_memory``: bytes, the highest resident
    size of the process so far. ``stopped``: at the work's limit, after ``ended`` records. ``peak_in_flight``: most
    handlers that ran at once; None if they return at once. ``problems``: findings of the checks; such a run does not
    count. ``machine``: state of the machine. ``repeated``: the machine's speed changed in its round, which was run
    again; the run does not count.
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
        """Records per second."""
        return self.ended / self.seconds if self.seconds else 0.0

    @property
    def cpu_per_record(self) -> float:
        """CPU seconds per record."""
        return self.cpu_seconds / self.ended if self.ended else 0.0


class Spread(NamedTuple):
    """A median with the lowest and the highest value."""

    median: float
    lowest: float
    highest: float


@dataclass(slots=True)
class Entry:
    """All runs of one contestant in one case. Round 0 is the cold one; later rounds run in the same process.

    ``missing``: why there are none (no Java, an installation failed).
    """

    contestant: str
    title: str
    runs: list[Run] = field(default_factory=list)
    missing: str | None = None

    @property
    def cold(self) -> Run | None:
        """The first run of the process, if it has no problems."""
        return next((run for run in self.runs if run.round == 0 and not run.problems), None)

    @property
    def warm(self) -> list[Run]:
        """Later runs that count."""
        return [run for run in self.runs if run.round > 0 and not run.problems and not run.repeated]

    @property
    def stopped(self) -> bool:
        """Whether a warm run was stopped at the work's limit."""
        return any(run.stopped for run in self.warm)

    @property
    def memory(self) -> int:
        """The highest peak memory of the warm runs, in bytes."""
        return max(run.peak_memory for run in self.warm)

    def spread(self, name: Value) -> Spread | None:
        """Median and range of the warm runs; None without any."""
        values = [getattr(run, name) for run in self.warm]
        return Spread(statistics.median(values), min(values), max(values)) if values else None


@dataclass(slots=True)
class Result:
    """The result of a case. ``group``: its letter. ``bound``: the least seconds that the work can take. ``figures``:
    other measured values by name, which has the unit (``encode_ms``). ``problems``: of the whole case.

    ``rounds``: warm ones that count. ``repeated``: rounds in which the machine's speed changed, and that were run
    again. ``unquiet``: rounds in which it changed and that count because there were too few quiet ones.
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
        """Whether a check failed or something could not be measured. A missing peer is neither."""
        return bool(self.problems) or any(run.problems for entry in self.entries for run in entry.runs)

    def entry(self, contestant: str) -> Entry | None:
        """The runs of one contestant."""
        return next((entry for entry in self.entries if entry.contestant == contestant), None)

    def good(self, contestant: str) -> Entry:
        """A contestant with warm runs that count. Raises NotMeasured."""
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
    """The value is not available; the message says why."""


Results = Mapping[str, Result]
Measure = Callable[[Result, Results], Interval]
"""Returns a value of a case; gets all cases by name as well. Raises NotMeasured."""
Value = Literal["rate", "seconds", "cpu_per_record"]


def paired(mine: Entry, theirs: Entry, value: Value) -> list[float]:
    """Ratios of mine to theirs for each round in which both have a warm run that counts."""
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
    """The ratio of our rate to another's; for a stopped run the rate until then."""
    return lambda result, _: _ratio(result.good(mine), result.good(other), "rate")


def seconds_under(other: str) -> Measure:
    """The ratio of another's seconds to ours. It is larger in fact if the other was stopped."""

    def measure(result: Result, _: Results) -> Interval:
        mine, theirs = result.good(OURS), result.good(other)
        return _exactly(0.0) if mine.stopped else _ratio(theirs, mine, "seconds")

    return measure


def over_bound() -> Measure:
    """The ratio of our seconds to the least possible; infinity if ours was stopped."""

    def measure(result: Result, _: Results) -> Interval:
        if not result.bound:
            raise NotMeasured(f"{result.name} has no bound")
        mine = result.good(OURS)
        if mine.stopped:
            return _exactly(math.inf)
        return ratio_interval([run.seconds / result.bound for run in mine.warm])

    return measure


def _exactly(value: float) -> Interval:
    """A value without an interval."""
    return Interval(value, value, value)


def memory_over(other: str) -> Measure:
    """The ratio of our peak memory to another's."""

    def measure(result: Result, _: Results) -> Interval:
        return _exactly(result.good(OURS).memory / result.good(other).memory)

    return measure


def cpu_over(other: str) -> Measure:
    """The ratio of our CPU time per record to that in another case of the same rounds."""

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
    """A value that must be on the right side of ``must``, and should be of ``stretch``. ``unit``: "ms", or empty for a
    ratio. ``beside``: a value shown in addition, without a verdict."""

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
    """A goal with its value. Without a value ``remark`` says why; else it has what a reader should know."""

    group: str
    goal: Goal
    verdict: Verdict
    value: Interval | None
    remark: str


def judge(goals: Mapping[str, Sequence[Goal]], results: Results) -> list[Judgement]:
    """Judge the goals of all cases with results. ``goals``: by name of their case."""
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
