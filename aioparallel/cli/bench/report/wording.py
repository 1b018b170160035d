"""Numbers as text, the same in every table and plot."""

from __future__ import annotations

from aioparallel.cli.bench.goals import Goal, Judgement
from aioparallel.cli.bench.model import Spread

__all__ = ["GROUPS", "REMARKS", "goal_limits", "goal_value", "megabytes", "microseconds", "number", "ratio", "spread"]

GROUPS = {
    "a": "Handlers that return at once: what a record costs",
    "b": "Handlers of 0 to 5 ms on one partition: keys make the parallelism",
    "c": "10 ms handlers, 1,000 at once: how near to the event loop's ceiling",
    "d": "Real data: flights keyed by tail number",
    "e": "What more keys and more concurrency cost",
    "f": "Added latency",
    "g": "Offset maps",
    "h": "Recovery with one slow record",
    "i": "Several members of one group",
}

REMARKS = {
    "a": """\
The work is the same for all, the promises are not. `faststream` keeps no order and is at most once: it commits what it
has read, whatever becomes of it. `task-per-record` keeps no order either, and loses what runs in a crash. `pyrallel`
was given the `poll_batch_size` that is best for the kind of handler (10,000 for those that return at once, 50 for those
that wait), as its tuning guide advises; with its default it was three to five times slower. All other settings are
defaults, but that `faststream` does without its log of each record, its injection of dependencies and its decoding.""",
    "c": """\
`ceiling` reads nothing from Kafka: as many tasks as the concurrency, which do nothing but sleep. In the peak memory are
the benchmark's own plan and evidence, of the same size for all that read.""",
    "d": """\
Flights without a tail number have no key. Here each of them is a lane of its own; for the Java library those of a
partition are one lane and run one after the other.""",
    "e": """\
At a concurrency of 10 or 100 the process is nearly idle, and what it does anyway (fetches, heartbeats, timers) falls on
few records.""",
    "g": """\
`g-hold` commits maps of 10,000 offsets, by turns one of each pattern of `g-time`; the figures `full_...` are the same
with maps of about 4,000 characters, as large as Kafka takes.""",
    "h": """\
Compare `seconds_from_first_handler`, from the first handler after the restart to lag 0: `seconds_to_recover` counts
from the restart, with the start of Python and the seconds in which the broker waits for the dead member in it.""",
    "i": """\
Rates are of all members together, from the moment when they are let go; what the Kafka client has read ahead by then,
at most 1 MiB of a partition, is not paid for. All share the machine with the broker: more members than cores cannot be
faster.""",
}
"""What a reader has to know of a group's figures, to be fair."""


def number(value: float) -> str:
    """Three digits that count; thousands with a comma: 204,345, 18.2, 0.0451."""
    size = abs(value)
    if size >= 100 or value == 0 or isinstance(value, int):
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:#.3g}"


def ratio(value: float) -> str:
    """Two places, fewer of a large one."""
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def spread(found: Spread) -> str:
    """The median, and between what the runs lie when there is more than one."""
    if found.lowest == found.highest:
        return number(found.median)
    return f"{number(found.median)} ({number(found.lowest)}-{number(found.highest)})"


def microseconds(seconds: float) -> str:
    """As text without the unit."""
    return number(seconds * 1e6)


def megabytes(size: int) -> str:
    """Of 10^6 bytes, as text without the unit."""
    return f"{size / 1e6:,.0f}"


def goal_limits(goal: Goal) -> tuple[str, str]:
    """Must and stretch, as in ``>= 0.45`` and ``0.6, then 0.8``."""
    unit = f" {goal.unit}" if goal.unit else ""
    must = f"{goal.relation} {goal.must:.3g}{unit}"
    return must, ", then ".join(f"{value:.3g}{unit}" for value in goal.stretch)


def goal_value(judgement: Judgement) -> str:
    """The value seen, with its unit."""
    if judgement.value is None:
        return ""
    if judgement.goal.unit:
        return f"{number(judgement.value)} {judgement.goal.unit}"
    return ratio(judgement.value)
