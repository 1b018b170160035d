"""Values that goals and tables are made of: one contestant against another, against the bound, or a figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aioparallel.cli.bench.model import Case, Entry

__all__ = [
    "OURS",
    "Measured",
    "NotMeasured",
    "cpu_ratio",
    "figure",
    "memory_ratio",
    "over_bound",
    "rate_ratio",
    "seconds_ratio",
    "warm_memory",
]

OURS: Final = "ours"


class NotMeasured(Exception):
    """The value cannot be had from the case; the message says why."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A value. ``remark``: what a reader has to know of it, mostly empty.

    ``unfinished``: runs of ours behind it were stopped before their work was done, where seconds are compared.
    """

    value: float
    remark: str = ""
    unfinished: bool = False


def rate_ratio(case: Case, *, other: str) -> Measured:
    """Records a second of ours over those of another; of a run stopped at its limit they are those until then."""
    ours, theirs = good(case, OURS), good(case, other)
    assert ours.rate is not None  # good() saw warm runs
    assert theirs.rate is not None
    return Measured(quotient(ours.rate.median, theirs.rate.median), stopped_remark(ours, theirs))


def seconds_ratio(case: Case, *, other: str) -> Measured:
    """How many times the seconds of ours another takes. More, if it was stopped before its end."""
    ours, theirs = good(case, OURS), good(case, other)
    assert ours.seconds is not None
    assert theirs.seconds is not None
    value = quotient(theirs.seconds.median, ours.seconds.median)
    return Measured(value, stopped_remark(ours, theirs), unfinished=stopped(ours))


def over_bound(case: Case) -> Measured:
    """Seconds of ours over the least that the work can take."""
    if not case.bound:
        raise NotMeasured(f"{case.name} has no bound")
    ours = good(case, OURS)
    assert ours.seconds is not None
    return Measured(ours.seconds.median / case.bound, stopped_remark(ours), unfinished=stopped(ours))


def memory_ratio(case: Case, *, other: str) -> Measured:
    """Peak memory of ours over another's."""
    ours, theirs = good(case, OURS), good(case, other)
    return Measured(quotient(warm_memory(ours), warm_memory(theirs)), stopped_remark(ours, theirs))


def cpu_ratio(case: Case, base: Case) -> Measured:
    """CPU a record of ours in one case over that in another."""
    ours, before = good(case, OURS), good(base, OURS)
    assert ours.cpu_per_record is not None
    assert before.cpu_per_record is not None
    return Measured(
        quotient(ours.cpu_per_record.median, before.cpu_per_record.median),
        stopped_remark(ours) or stopped_remark(before),
    )


def figure(case: Case, *, name: str) -> Measured:
    """A figure of a case without problems."""
    if case.problems:
        raise NotMeasured(f"{case.name} has problems")
    value = case.figures.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotMeasured(f"{case.name} has no {name}")
    return Measured(float(value))


def good(case: Case, contestant: str) -> Entry:
    """The contestant's entry, with at least one warm run without problems. Raises NotMeasured."""
    entry = case.entry(contestant)
    if case.problems:
        raise NotMeasured(f"{case.name} has problems")
    if entry is None:
        raise NotMeasured(f"{contestant} did not run in {case.name}")
    if entry.missing is not None:
        raise NotMeasured(f"{contestant} is missing")
    if not entry.warm:
        raise NotMeasured(f"{contestant} has no warm run without problems in {case.name}")
    return entry


def warm_memory(entry: Entry) -> int:
    """Bytes: the highest of the warm runs without problems."""
    return max(run.peak_memory for run in entry.warm)


def stopped(entry: Entry) -> bool:
    """Whether a warm run was stopped at the work's limit."""
    return any(run.stopped for run in entry.warm)


def stopped_remark(*entries: Entry) -> str:
    """Names those that were stopped."""
    names = [entry.contestant for entry in entries if stopped(entry)]
    return f"{' and '.join(names)} stopped at the limit" if names else ""


def quotient(above: float, below: float) -> float:
    """Raises NotMeasured where there is nothing to divide by."""
    if not below:
        raise NotMeasured("the value to compare with is 0")
    return above / below
