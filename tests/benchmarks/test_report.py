"""Results are written, read, merged and shown."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from aioparallel.records.errors import AioparallelError
from benchmarks import plots, report
from benchmarks.measures import Entry, Result
from benchmarks.pages import RESULTS

from .results import FACTS, entry, measured, result, run


def one_of_each() -> list[Result]:
    """A case of many groups."""
    patterns = [{"pattern": "1 %", "encode_ms": 1.5, "decode_ms": 0.5, "characters": 640}]
    return [
        result("a-key", entry("ours", 3_000), entry("java", 1_000), entry("pyrallel", 20, stopped=True)),
        result("b-key-2", entry("ours", 900), entry("java", 800), bound=1.0),
        result("b-key-20", entry("ours", 9_000), entry("java", 5_000), bound=0.1),
        result("e-keys-1000", entry("ours", 3_000)),
        Result("f", "f-half", "Latency", figures={"arrival_to_handler_p99_ms": 1.0, "produce_to_handler_p99_ms": 2.0}),
        Result("g", "g-time", "Times", figures={"encode_ms": 3.5, "patterns": patterns}),
        Result("i", "i-members-2", "Two members", figures={"rate_sleep": 84_000.0, "shares_sleep": [500, 500]}),
    ]


def test_reads_back_what_it_wrote(tmp_path: Path) -> None:
    """Every run, figure, problem and fact survives; the goals stand beside them for other programs."""
    bad = result("a-unordered", Entry("ours", "ours", [run(1, 10, problem="offset 3 is missing")]))
    bad.entries.append(Entry("java", "java", missing="no Java"))
    written = [measured(one) for one in [*one_of_each(), bad]]
    report.write(written, tmp_path)
    assert report.read(tmp_path) == written
    document = json.loads((tmp_path / "results.json").read_text())
    assert {"text", "value", "verdict", "must"} <= document["goals"][0].keys()


def test_the_stored_results_can_be_shown(tmp_path: Path) -> None:
    """Report and plots of the last full run come out of its JSON."""
    shutil.copy(RESULTS / "results.json", tmp_path)
    results = report.read(tmp_path)
    plots.draw([one.case for one in results], tmp_path)
    text = report.write(results, tmp_path)
    assert {path.name for path in RESULTS.glob("?-*.svg")} <= {path.name for path in tmp_path.glob("?-*.svg")}
    for one in results:
        assert f"- `{one.case.name}`: {one.case.title}" in text


def test_the_stored_report_is_that_of_the_stored_results(tmp_path: Path) -> None:
    """``results.md`` and the verdicts in ``results.json`` come out of its runs: neither was edited, nor is stale."""
    for plot in RESULTS.glob("?-*.svg"):
        shutil.copy(plot, tmp_path)
    report.write(report.read(RESULTS), tmp_path)
    for name in ("results.json", "results.md"):
        assert (RESULTS / name).read_text() == (tmp_path / name).read_text(), "run `python -m benchmarks --report`"


def test_a_case_replaces_its_older_result_as_a_whole() -> None:
    """In the order of groups, then of the numbers in names."""
    old = [measured(one) for one in one_of_each()]
    new = measured(result("b-key-20", entry("ours", 1)))
    found = report.merged(old, new)
    assert [one.case.name for one in found] == [one.case.name for one in old]
    assert found[2] is new


@pytest.mark.parametrize("text", ["no JSON", "{}", '{"format": 99, "results": []}'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    """It is left alone, and the message says what to do."""
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(AioparallelError, match="move it away, or choose another --output"):
        report.read(tmp_path)


def test_the_report_says_what_failed_and_what_is_small() -> None:
    """Problems of cases and runs, what is missing and what was stopped, and that a quick run says little."""
    bad = result("a-key", Entry("ours", "ours", [run(1, 10, problem="offset 3 | ran twice")]))
    bad.entries += [Entry("java", "java", missing="no Java"), entry("pyrallel", 20, stopped=True)]
    bad.problems.append("no records")
    text = report.markdown([replace(measured(bad), facts=replace(FACTS, scale=20))])
    for part in (
        "**Not at full size: all cases.**",
        "- a-key: no records",
        "- a-key: ours, round 1, counts for nothing: offset 3 \\| ran twice",
        "- java did not run in a-key: no Java",
        "- a-key: pyrallel was stopped at the limit of its time after 1,000 in round 0",
        "|  | pyrallel | 20.0 (18.0-24.0), stopped | 10.0 |",
        "record counts divided by 20",
    ):
        assert part in text
