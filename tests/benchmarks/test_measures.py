"""Goals are judged from medians of good warm runs, and from figures of cases without problems."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cases import CASES
from benchmarks.measures import Entry, Judgement, Result, judge, paired

from .results import RECORDS, entry, result, run

GOALS = {case.name: case.goals for case in CASES}


def judged(text: str, *results: Result) -> Judgement:
    """The one goal whose text has this in it."""
    found = judge(GOALS, {one.name: one for one in results})
    (judgement,) = [one for one in found if text in one.goal.text]
    return judgement


def value_of(judgement: Judgement) -> float:
    """The median of what was seen."""
    assert judgement.value is not None
    return judgement.value.median


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [(449, "MISSED"), (450, "reached"), (599, "reached"), (600, "reached, stretch too")],
)
def test_rate_against_getmany(ours: float, verdict: str) -> None:
    """The median of the ratios of warm rounds is judged; a goal is reached at its value."""
    found = judged("ours / getmany", result("a-key", entry("ours", ours), entry("getmany", 1_000)))
    assert value_of(found) == pytest.approx(ours / 1_000)
    assert found.verdict == verdict


def test_goals_of_other_cases_are_not_judged() -> None:
    """What was not asked for is not missed either."""
    assert judge(GOALS, {}) == []
    case = result("c-sleep", entry("ours", 900))
    assert {judgement.goal for judgement in judge(GOALS, {"c-sleep": case})} == set(GOALS["c-sleep"])


def test_a_ratio_is_of_runs_of_one_round() -> None:
    """A machine that is slower in some rounds is slower for both sides: the ratio stays. Repeated rounds, and those in
    which only one side has a good run, count for nothing."""
    ours, getmany = Entry("ours", "ours"), Entry("getmany", "getmany")
    for number, speed in enumerate((1.0, 0.5, 2.0, 1.0, 0.1, 1.0, 1.0), 1):
        ours.runs.append(run(number, 500 * speed))
        getmany.runs.append(run(number, 1_000 * speed))
    ours.runs += [replace(run(8, 9), repeated=True), run(9, 9)]
    getmany.runs += [replace(run(8, 1_000), repeated=True), run(9, 1_000, problem="offset 3 ran twice")]
    assert paired(ours, getmany, "rate") == pytest.approx([0.5] * 7)
    found = judged("ours / getmany", result("a-key", ours, getmany)).value
    assert found is not None
    assert found == pytest.approx((0.5, 0.5, 0.5))


def test_runs_with_problems_count_for_nothing() -> None:
    """A quick run with a problem does not move the median; with only such runs there is no verdict."""
    good, wrong = entry("ours", 500), run(4, 50_000, problem="partition 0, offset 3 ran twice")
    good.runs.append(wrong)
    case = result("a-key", good, entry("getmany", 1_000))
    assert case.failed
    assert value_of(judged("ours / getmany", case)) == pytest.approx(0.5)
    bad = Entry("ours", "ours", [run(0, 500), wrong])
    found = judged("ours / getmany", result("a-key", bad, entry("getmany", 1_000)))
    assert found.remark == "ours has no warm run without problems in a-key"


def test_the_cold_run_is_not_judged() -> None:
    """With nothing but a cold run there is no verdict."""
    cold = Entry("ours", "ours", [run(0, 1_000)])
    assert judged("10 ms: rate ours / java", result("c-sleep", entry("java", 10), cold)).verdict == "not measured"


def test_missing_contestants_are_named() -> None:
    """A contestant that is missing, or was not asked for, leaves the goal unmeasured."""
    missing = Entry("java", "java", missing="no Java")
    assert (
        judged("KEY, no-op: rate ours / java", result("a-key", entry("ours", 1), missing)).remark == "java is missing"
    )
    found = judged("KEY, no-op: rate ours / java", result("a-key", entry("ours", 1)))
    assert (found.verdict, found.remark) == ("not measured", "java did not run in a-key")


def test_key_counts_against_java_and_the_bound() -> None:
    """Seconds, not rates: ours has to be faster than Java, and near to the bound; as fast is not faster."""
    row = result("b-key-20", entry("ours", 1_000), entry("java", 800), bound=0.95)
    assert value_of(judged("keys 20: java", row)) == pytest.approx(1.25)
    assert value_of(judged("keys 20: ours", row)) == pytest.approx(1 / 0.95, rel=0.02)
    assert judged("keys 20: ours", row).verdict == "reached, stretch too"
    even = result("b-unordered", entry("ours", 800), entry("java", 800), bound=1.0)
    assert judged("unordered: java", even).verdict == "MISSED"


def test_work_that_was_stopped() -> None:
    """Ours, stopped at the limit, misses what is about seconds; a peer that was stopped took at least so long."""
    row = result("b-partition", entry("ours", 1_000, stopped=True), entry("java", 10), bound=1.0)
    for text in ("partition: java", "partition: ours"):
        assert (judged(text, row).verdict, judged(text, row).remark) == ("MISSED", "ours stopped at the limit")
    row = result("b-partition", entry("ours", 1_000), entry("java", 10, stopped=True), bound=1.0)
    found = judged("partition: java", row)
    assert (found.verdict, found.remark) == (
        "reached", "java stopped at the limit; too few rounds for an interval"
    )  # fmt: skip


def test_memory_and_cpu() -> None:
    """The peak against a small heap; the CPU a record of one case against that of another, with a figure beside."""
    for ours, verdict in ((100, "reached"), (101, "MISSED")):
        case = result("c-sleep", entry("ours", 1, memory=ours), entry("java-256m", 1, memory=300))
        assert judged("peak memory", case).verdict == verdict
    cases = [
        result(f"e-concurrency-{concurrency}", entry("ours", 5, cpu=cpu))
        for concurrency, cpu in ((20_000, 30e-6), (1_000, 10e-6), (100, 25e-6))
    ]
    found = judged("concurrency 20,000 / 100", *cases)
    assert value_of(found) == pytest.approx(1.2)
    assert found.remark == "too few rounds for an interval; 20,000 / 1,000: 3.00"
    assert judged("concurrency 20,000 / 100", cases[0]).remark == "e-concurrency-100 did not run"


def test_figures() -> None:
    """A figure is judged in its unit; not if it is missing, or the case has problems."""
    steady = Result("f", "f-20000", "Latency", RECORDS, figures={"arrival_to_handler_p99_ms": 2})
    assert judged("p99", steady).verdict == "reached, stretch too"
    steady.figures["arrival_to_handler_p99_ms"] = 5.1
    assert judged("p99", steady).verdict == "MISSED"
    steady.problems.append("a record is missing")
    assert judged("p99", steady).remark == "f-20000 has problems"
    assert judged("p99", Result("f", "f-20000", "Latency")).remark == "f-20000 has no arrival_to_handler_p99_ms"
