"""Results made by hand."""

from __future__ import annotations

from benchmarks.facts import Facts
from benchmarks.measures import Entry, Result, Run
from benchmarks.report import Measured

RECORDS = 1_000

FACTS = Facts(
    date="2026-11-21T12:00:00+00:00",
    cpu="Some CPU",
    cores=2,
    memory=24 * 2**30,
    system="Linux 6.1 x86_64",
    python="CPython 3.11.2",
    aioparallel="0.1.0",
    aiokafka="0.14.0",
    uvloop="0.21.0",
    java="17 (PATH)",
    broker="Apache Kafka",
    seed=7,
    rounds=2,
    scale=1,
)


def run(
    number: int, rate: float, *, cpu: float = 10e-6, memory: int = 50_000_000, stopped: bool = False, problem: str = ""
) -> Run:
    """One at so many records a second; CPU in seconds a record."""
    seconds = RECORDS / rate
    problems = (problem,) if problem else ()
    return Run(number, seconds, seconds + 0.5, RECORDS, cpu * RECORDS, memory, stopped, problems)


def entry(name: str, rate: float, *, cpu: float = 10e-6, memory: int = 50_000_000, stopped: bool = False) -> Entry:
    """A cold run at half the rate, and warm ones at 90, 100 and 120 % of it."""
    runs = [
        run(number, rate * part, cpu=cpu, memory=memory, stopped=stopped)
        for number, part in enumerate((0.5, 0.9, 1.0, 1.2))
    ]
    return Entry(name, f"title of {name}", runs)


def result(name: str, *entries: Entry, bound: float | None = None) -> Result:
    """One of the group that its name begins with."""
    return Result(name[0], name, f"Title of {name}", RECORDS, 100, bound, list(entries))


def measured(found: Result) -> Measured:
    """It, measured on the machine of these tests."""
    return Measured(found, FACTS)
