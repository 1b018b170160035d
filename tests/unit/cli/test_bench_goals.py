from __future__ import annotations

import pytest

from aioparallel.cli.bench.goals import GOALS, Judgement, Verdict, judge
from aioparallel.cli.bench.model import Case, Entry
from tests.unit.cli.bench_cases import RECORDS, case, entry, run


def judged(text: str, *cases: Case) -> Judgement:
    """The one goal whose text has this in it."""
    (found,) = [judgement for judgement in judge(cases) if text in judgement.goal.text]
    return found


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (449, Verdict.MISSED),
        (450, Verdict.MUST),
        (599, Verdict.MUST),
        (600, Verdict.STRETCH),
        (900, Verdict.STRETCH),
    ],
)
def test_rate_against_getmany(ours: float, verdict: Verdict) -> None:
    """The medians of the warm rates are compared; a goal is reached at its value, and stretched at the first further
    one."""
    found = judged("ours / getmany", case("a-key", entry("ours", ours), entry("getmany", 1_000)))
    assert found.value == pytest.approx(ours / 1_000)
    assert found.verdict == verdict


def test_without_any_case_nothing_is_measured() -> None:
    """Every goal says which case it lacks; none is reached or missed."""
    for judgement in judge([]):
        assert judgement.verdict == Verdict.NOT_MEASURED
        assert judgement.value is None
        assert all(name in judgement.remark for name in judgement.goal.cases)


def test_runs_with_problems_count_for_nothing() -> None:
    """A quick run with a problem does not move the median; with only such runs there is no verdict."""
    good, wrong = entry("ours", 500), run(4, 50_000, problem="partition 0, offset 3 ran twice")
    good.runs.append(wrong)
    found = judged("ours / getmany", case("a-key", good, entry("getmany", 1_000)))
    assert found.value == pytest.approx(0.5)
    bad = Entry("ours", "ours", [run(0, 500), wrong])
    found = judged("ours / getmany", case("a-key", bad, entry("getmany", 1_000)))
    assert found.verdict == Verdict.NOT_MEASURED
    assert "no warm run without problems" in found.remark


def test_the_cold_run_is_not_judged() -> None:
    """With nothing but a cold run there is no verdict."""
    found = judged(
        "10 ms: rate ours / java", case("c-sleep", entry("java", 10), Entry("ours", "ours", [run(0, 1_000)]))
    )
    assert found.verdict == Verdict.NOT_MEASURED


def test_missing_contestants_are_named() -> None:
    """A contestant that is missing, or was not asked for, leaves the goal unmeasured and is named."""
    missing = Entry("java", "java", missing="no Java")
    assert judged("KEY, no-op: rate ours / java", case("a-key", entry("ours", 1), missing)).remark == "java is missing"
    found = judged("KEY, no-op: rate ours / java", case("a-key", entry("ours", 1)))
    assert (found.verdict, found.remark) == (Verdict.NOT_MEASURED, "java did not run in a-key")


def test_key_counts_against_java_and_the_bound() -> None:
    """Seconds, not rates: ours has to be faster than Java, and near to the bound."""
    row = case("b-key-20", entry("ours", 1_000), entry("java", 800), bound=0.95)
    assert judged("keys 20: java", row).value == pytest.approx(1.25)
    assert judged("keys 20: java", row).verdict == Verdict.MUST
    bound = judged("keys 20: ours", row)
    assert bound.value == pytest.approx(1 / 0.95)
    assert bound.verdict == Verdict.STRETCH


def test_as_fast_as_java_is_not_faster() -> None:
    """The same seconds miss the goal."""
    row = case("b-unordered", entry("ours", 800), entry("java", 800), bound=1.0)
    assert judged("unordered: java", row).verdict == Verdict.MISSED


def test_every_row_of_key_counts_has_its_goals() -> None:
    """Two goals for each of the eleven rows."""
    rows = {goal.cases[0] for goal in GOALS if goal.group == "b"}
    assert len(rows) == 11
    assert sum(goal.group == "b" for goal in GOALS) == 22


def test_work_of_ours_that_was_stopped_misses_what_is_about_seconds() -> None:
    """Stopped at the limit, its seconds are no measure of the work."""
    row = case("b-partition", entry("ours", 1_000, stopped=True), entry("java", 10), bound=1.0)
    for text in ("partition: java", "partition: ours"):
        found = judged(text, row)
        assert found.verdict == Verdict.MISSED
        assert found.remark == "ours stopped at the limit"


def test_a_peer_that_was_stopped_is_slower() -> None:
    """It has taken at least so long; the verdict stands, with a remark."""
    row = case("b-partition", entry("ours", 1_000), entry("java", 10, stopped=True), bound=1.0)
    found = judged("partition: java", row)
    assert found.verdict == Verdict.MUST
    assert found.remark == "java stopped at the limit"


def test_memory_against_a_small_heap() -> None:
    """A third of the peak is the most."""
    for ours, verdict in ((100, Verdict.MUST), (101, Verdict.MISSED)):
        found = judged("peak memory", case("c-sleep", entry("ours", 1, memory=ours), entry("java-256m", 1, memory=300)))
        assert found.verdict == verdict


def test_cpu_of_two_cases() -> None:
    """The CPU a record of one case against that of another, however many records each has."""
    many = case("e-keys-1000000", entry("ours", 5, cpu=16e-6))
    few = case("e-keys-1000", entry("ours", 7, cpu=10e-6))
    found = judged("1,000,000 keys", many, few)
    assert found.value == pytest.approx(1.6)
    assert found.verdict == Verdict.MISSED
    assert judged("1,000,000 keys", many).remark == "e-keys-1000 did not run"


def test_a_figure_without_a_verdict_stands_beside() -> None:
    """Of another case, where that ran."""
    most = case("e-concurrency-20000", entry("ours", 5, cpu=30e-6))
    few = case("e-concurrency-100", entry("ours", 5, cpu=25e-6))
    found = judged("concurrency 20,000 / 100", most, few, case("e-concurrency-1000", entry("ours", 5, cpu=10e-6)))
    assert found.value == pytest.approx(1.2)
    assert (found.verdict, found.remark) == (Verdict.MUST, "20,000 / 1,000: 3.00")
    assert judged("concurrency 20,000 / 100", most, few).remark == ""
    hold = Case("g", "g-hold", "Hold", figures={"longest_hold_ms": 4.0, "full_longest_hold_ms": 6.5})
    assert judged("500 dirty partitions with 10,000-offset maps", hold).remark == "full maps: 6.50 ms"


def test_figures() -> None:
    """A figure is judged in its unit; not if it is missing, no number, or the case has problems."""
    steady = Case("f", "f-20000", "Latency", RECORDS, figures={"arrival_to_handler_p99_ms": 1.9})
    assert judged("p99", steady).verdict == Verdict.STRETCH
    steady.figures["arrival_to_handler_p99_ms"] = 2
    assert judged("p99", steady).verdict == Verdict.STRETCH
    steady.figures["arrival_to_handler_p99_ms"] = 5.1
    assert judged("p99", steady).verdict == Verdict.MISSED
    steady.problems.append("a record is missing")
    assert judged("p99", steady).remark == "f-20000 has problems"
    assert judged("p99", Case("f", "f-20000", "Latency")).remark == "f-20000 has no arrival_to_handler_p99_ms"


def test_density_is_better_when_higher() -> None:
    """2.3 is the least, 3 is the stretch."""
    for value, verdict in ((2.29, Verdict.MISSED), (2.3, Verdict.MUST), (3.0, Verdict.STRETCH)):
        density = Case("g", "g-density", "Density", figures={"density_ratio": value})
        assert judged("4,096 characters", density).verdict == verdict
