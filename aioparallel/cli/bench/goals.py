"""What the library is to reach, as data, and whether measured cases reach it.

Judged are only medians of warm runs without problems, and figures of cases without problems.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from aioparallel.cli.bench.measures import (
    Measured,
    NotMeasured,
    cpu_ratio,
    figure,
    memory_ratio,
    over_bound,
    rate_ratio,
    seconds_ratio,
)
from aioparallel.cli.bench.model import Case

__all__ = ["GOALS", "Goal", "Judgement", "Verdict", "judge"]

KEY_COUNTS: Final = (1, 2, 5, 10, 20, 50, 100, 1_000, 10_000)
ROWS_OF_B: Final = ("b-partition", *(f"b-key-{keys}" for keys in KEY_COUNTS), "b-unordered")
REACHES: Final = {">": operator.gt, ">=": operator.ge, "<=": operator.le}


class Verdict(enum.StrEnum):
    """How a goal came out."""

    STRETCH = "stretch"
    MUST = "must"
    MISSED = "missed"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Figure:
    """A value that is shown beside a goal and has no verdict: what it is called, and what ``measure`` makes of which
    cases."""

    text: str
    cases: tuple[str, ...]
    measure: Callable[..., Measured]


@dataclass(frozen=True, slots=True)
class Goal:
    """A value to be on the right side of ``must``, and better of ``stretch`` too (its first value makes the verdict).

    ``cases``: what ``measure`` is called with, by name. ``unit``: "ms", or empty for a ratio.
    """

    group: str
    text: str
    cases: tuple[str, ...]
    measure: Callable[..., Measured]
    relation: Literal[">", ">=", "<="]
    must: float
    stretch: tuple[float, ...] = ()
    unit: str = ""
    beside: Figure | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """A goal with the value seen. Without one, None, ``remark`` says why; else what a reader has to know of it."""

    goal: Goal
    verdict: Verdict
    value: float | None
    remark: str


def judge(cases: Sequence[Case]) -> list[Judgement]:
    """Every goal, judged from these cases."""
    by_name = {case.name: case for case in cases}
    return [judge_one(goal, by_name) for goal in GOALS]


def judge_one(goal: Goal, cases: dict[str, Case]) -> Judgement:
    """One goal, from the cases by name."""
    missing = [name for name in goal.cases if name not in cases]
    if missing:
        return Judgement(goal, Verdict.NOT_MEASURED, None, f"{' and '.join(missing)} did not run")
    try:
        found = goal.measure(*(cases[name] for name in goal.cases))
    except NotMeasured as reason:
        return Judgement(goal, Verdict.NOT_MEASURED, None, str(reason))
    remarks = [found.remark, beside(goal, cases)]
    return Judgement(goal, verdict(goal, found), found.value, "; ".join(filter(None, remarks)))


def beside(goal: Goal, cases: dict[str, Case]) -> str:
    """The figure without a verdict, in words; empty where there is none."""
    figure = goal.beside
    if figure is None or not all(name in cases for name in figure.cases):
        return ""
    try:
        found = figure.measure(*(cases[name] for name in figure.cases))
    except NotMeasured:
        return ""
    return f"{figure.text}: {found.value:.2f}{goal.unit and f' {goal.unit}'}"


def verdict(goal: Goal, found: Measured) -> Verdict:
    """Which of the goal's values this one reaches. Work of ours that came to no end reaches none."""
    reaches = REACHES[goal.relation]
    if found.unfinished or not reaches(found.value, goal.must):
        return Verdict.MISSED
    return Verdict.STRETCH if goal.stretch and reaches(found.value, goal.stretch[0]) else Verdict.MUST


def goals_of_row(name: str) -> tuple[Goal, Goal]:
    """Both goals of a row of the key count table."""
    what = name.removeprefix("b-").replace("-", " ").replace("key ", "keys ")
    java = Goal("b", f"{what}: java seconds / ours", (name,), partial(seconds_ratio, other="java"), ">", 1.0)
    return java, Goal("b", f"{what}: ours seconds / bound", (name,), over_bound, "<=", 1.2, (1.1,))


GOALS: Final = (
    Goal(
        "a", "KEY, no-op: rate ours / getmany", ("a-key",), partial(rate_ratio, other="getmany"), ">=", 0.45, (0.6, 0.8)
    ),
    Goal(
        "a", "KEY, no-op: rate ours / async-for", ("a-key",), partial(rate_ratio, other="async-for"), ">=", 1.6, (2.5,)
    ),
    Goal("a", "KEY, no-op: rate ours / java", ("a-key",), partial(rate_ratio, other="java"), ">=", 2.5, (4.0,)),
    *(goal for row in ROWS_OF_B for goal in goals_of_row(row)),
    Goal("c", "10 ms: rate ours / ceiling", ("c-sleep",), partial(rate_ratio, other="ceiling"), ">=", 0.85, (0.95,)),
    Goal("c", "10 ms: rate ours / java", ("c-sleep",), partial(rate_ratio, other="java"), ">=", 2.0),
    Goal(
        "c",
        "10 ms: peak memory ours / java-256m",
        ("c-sleep",),
        partial(memory_ratio, other="java-256m"),
        "<=",
        1 / 3,
    ),
    Goal(
        "e",
        "CPU a record, 1,000,000 keys / 1,000 keys",
        ("e-keys-1000000", "e-keys-1000"),
        cpu_ratio,
        "<=",
        1.5,
    ),
    Goal(
        "e",
        "CPU a record, concurrency 20,000 / 100",
        ("e-concurrency-20000", "e-concurrency-100"),
        cpu_ratio,
        "<=",
        1.5,
        beside=Figure("20,000 / 1,000", ("e-concurrency-20000", "e-concurrency-1000"), cpu_ratio),
    ),
    Goal(
        "f",
        "20,000 records/s: arrival to handler, p99",
        ("f-20000",),
        partial(figure, name="arrival_to_handler_p99_ms"),
        "<=",
        5.0,
        (2.0,),
        "ms",
    ),
    Goal("g", "100,000 offsets: slowest encode", ("g-time",), partial(figure, name="encode_ms"), "<=", 5.0, (), "ms"),
    Goal("g", "100,000 offsets: slowest decode", ("g-time",), partial(figure, name="decode_ms"), "<=", 5.0, (), "ms"),
    Goal(
        "g",
        "offsets in 4,096 characters: ours / best Java format, lowest",
        ("g-density",),
        partial(figure, name="density_ratio"),
        ">=",
        2.3,
        (3.0,),
    ),
    Goal(
        "g",
        "500 dirty partitions with 10,000-offset maps: longest hold of the event loop",
        ("g-hold",),
        partial(figure, name="longest_hold_ms"),
        "<=",
        20.0,
        (5.0,),
        "ms",
        Figure("full maps", ("g-hold",), partial(figure, name="full_longest_hold_ms")),
    ),
)
